// What a kernel that does nothing costs inside a graph, with and without programmatic dependent launch.
#include "microbench.cuh"

namespace fathom::microbench {
namespace {

__global__ void nothing(bool early) {
  if (early) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
  }
}

}  // namespace

Rows launch_boundary() {
  constexpr int kKernels = 1000;
  Rows rows;
  for (const unsigned blocks : {1U, 132U, 528U}) {
    for (const bool early : {false, true}) {
      const float ms = best_of(5, [&](cudaStream_t s) {
        for (int i = 0; i < kKernels; ++i) launch(s, {.blocks = blocks, .early = early}, nothing, early);
      });
      rows.push_back({"launch_boundary", std::to_string(blocks) + " blocks of 256" + (early ? ", early launch" : ""),
                      1e3 * ms / kKernels, "us a kernel"});
    }
  }
  return rows;
}

}  // namespace fathom::microbench
