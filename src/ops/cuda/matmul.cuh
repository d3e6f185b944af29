// Which kernel of matmul.h takes a job, for one weight format; matmul_FORMAT_cuda.cu instantiates it.
#pragma once

#include <algorithm>

#include "ops/cuda/matmul_stream.cuh"
#include "ops/cuda/matmul_tile.cuh"
#include "ops/cuda/matmul_wgmma.cuh"

namespace fathom::ops::cuda {

template <Format F, bool kGate>
void launch_matmul(Context& c, const char* name, const Job& job, int tokens, std::int64_t items) {
  const auto y = static_cast<unsigned>(items);
  const auto z = static_cast<unsigned>(job.groups);
  const auto streams = static_cast<unsigned>(ceil_div(ceil_div(job.group_rows, 16), kMatmulWarps / job.segments));
  if constexpr (F != Format::kWide) {
    if (is_shared(job.x.order)) {
      const std::int64_t tiles = ceil_div(job.group_rows, wgmma_rows(kGate)) * items * job.groups;
      launch(c, name, wgmma<F, kGate>, dim3(static_cast<unsigned>(std::min<std::int64_t>(tiles, c.multiprocessors))),
             kWgmmaThreads, kWgmmaShared, job, static_cast<int>(items));
      return;
    }
  }
  if (tokens <= 8) {
    launch(c, name, stream<F, kGate, 1>, dim3(streams, y, z), kMatmulThreads, 0, job);
  } else if constexpr (F == Format::kWide) {
    FATHOM_CHECK(false, "wide weights come in items of up to 8 tokens");
  } else if (tokens <= 32) {
    launch(c, name, stream<F, kGate, 4>, dim3(streams, y, z), kMatmulThreads, 0, job);
  } else {
    launch(c, name, tile<F, kGate>, dim3(static_cast<unsigned>(ceil_div(job.group_rows, tile_rows(kGate))), y, z),
           kMatmulThreads, kTileShared, job);
  }
}

#define FATHOM_MATMUL_FORMAT(F)                                                                                     \
  template <>                                                                                                       \
  void launch_format<F>(Context & c, const char* name, const Job& job, bool gate, int tokens, std::int64_t items) { \
    if (gate) {                                                                                                     \
      launch_matmul<F, true>(c, name, job, tokens, items);                                                          \
    } else {                                                                                                        \
      launch_matmul<F, false>(c, name, job, tokens, items);                                                         \
    }                                                                                                               \
  }

}  // namespace fathom::ops::cuda
