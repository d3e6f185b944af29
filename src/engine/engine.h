// Engine: a Core on a thread of its own. Submit, cancel and ask from any thread; answers come by the requests' sinks,
// on the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/core.h"

namespace fathom::engine {

struct EngineHealth {
  bool ok = true;           // false: the model failed, every request is refused
  std::string why;          // then
  bool stepping = false;    // a step is being computed
  double step_seconds = 0;  // for so long; a step that does not end shows here
  std::uint64_t steps = 0;
};

class Engine {
 public:
  // The runner outlives the engine and is used by its thread only. options: clock and notify are the engine's own.
  // Errors: those of Core::create.
  static Result<std::unique_ptr<Engine>> start(Runner& runner, CoreOptions options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  // Ends what is there with kCancelled. What was to be written to disk is written.
  ~Engine();

  // Accepts a request: from then on its sink hears the end exactly once. Errors, with the sink destroyed untold:
  // kInvalid (the request cannot be, naming the field), kExhausted (the queue is full; or the cache can never hold it),
  // kUnavailable (the engine stops, or the model failed).
  Result<RequestId> submit(Request request);
  // The request ends at the next step, with kCancelled. No effect where it has ended.
  void cancel(RequestId id);

  // Takes no more requests. wait: until those that were accepted are done; else they are cancelled.
  void stop(bool wait);

  // As Core::position_limit.
  std::int32_t position_limit() const;
  CoreStats stats() const;
  EngineHealth health() const;
  // The plan of the cache's memory, for people.
  std::string describe() const;

 private:
  struct State;
  Engine() = default;
  static void run(State& state);

  std::unique_ptr<State> state_;
};

}  // namespace fathom::engine
