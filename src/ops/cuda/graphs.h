// Graphs: steps recorded once and launched again as one piece.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>

#include "ops/cuda/context.h"

namespace fathom::ops::cuda {

class Graphs {
 public:
  Graphs() = default;
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;
  ~Graphs();

  // Backend::replay. The first time a key comes its step simply runs (kernels are loaded, scratch memory grows), the
  // second time it is recorded; from then on the recording is launched.
  void run(std::uint64_t key, const std::function<void()>& step, Context& context);

 private:
  struct Entry {
    cudaGraphExec_t graph = nullptr;  // null: seen once
    std::uint64_t used = 0;           // when
    std::uint64_t launches = 0;       // that it holds
  };
  void drop_oldest();

  static constexpr std::size_t kMost = 256;
  std::map<std::uint64_t, Entry> entries_;
  std::uint64_t now_ = 0;
};

}  // namespace fathom::ops::cuda
