// Generator: what the server needs of an engine. Abstract so that the wire is tested against answers written down.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "engine/engine.h"

namespace fathom::server {

class Generator {
 public:
  Generator() = default;
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;
  virtual ~Generator() = default;

  // As engine::Engine.
  virtual Result<engine::RequestId> submit(engine::Request request) = 0;
  virtual void cancel(engine::RequestId id) = 0;
  virtual engine::CoreStats stats() const = 0;
  virtual engine::EngineHealth health() const = 0;
};

class EngineGenerator final : public Generator {
 public:
  explicit EngineGenerator(engine::Engine& engine) : engine_(engine) {}
  Result<engine::RequestId> submit(engine::Request request) override { return engine_.submit(std::move(request)); }
  void cancel(engine::RequestId id) override { engine_.cancel(id); }
  engine::CoreStats stats() const override { return engine_.stats(); }
  engine::EngineHealth health() const override { return engine_.health(); }

 private:
  engine::Engine& engine_;
};

}  // namespace fathom::server
