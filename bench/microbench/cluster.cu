// A sum over the 8 blocks of a cluster through distributed shared memory.
#include <cooperative_groups.h>

#include "microbench.cuh"

namespace fathom::microbench {
namespace {

constexpr int kValues = 64;
constexpr int kRounds = 1000;

// Every block pushes its values to all, one barrier, every block adds what came. Two buffers, so one barrier a round.
__global__ void __launch_bounds__(256) reduce(float* out) {
  namespace cg = cooperative_groups;
  __shared__ float came[2][8][kValues];
  const cg::cluster_group all = cg::this_cluster();
  float value = static_cast<float>(threadIdx.x);
  all.sync();
  for (int r = 0; r < kRounds; ++r) {
    float* const mine = came[r % 2][all.block_rank()];
    for (unsigned i = threadIdx.x; i < 8 * kValues; i += blockDim.x) {
      *all.map_shared_rank(mine + i % kValues, i / kValues) = value;
    }
    all.sync();
    float sum = 0;
    if (threadIdx.x < kValues) {
      for (int b = 0; b < 8; ++b) sum += came[r % 2][b][threadIdx.x];
    }
    value = sum * 0.125F;
  }
  all.sync();
  out[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

}  // namespace

Rows cluster() {
  const Memory out(std::size_t{8} * 256 * 4);
  const float ms = best_of(5, [&](cudaStream_t s) { launch(s, {.blocks = 8, .cluster = 8}, reduce, out.as<float>()); });
  return {{"cluster", "sum of 64 values over 8 blocks, pushed to all, one barrier", 1e3 * ms / kRounds, "us"}};
}

}  // namespace fathom::microbench
