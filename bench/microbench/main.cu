// microbench [--json] [NAME...]: runs the benches named, or all.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "microbench.cuh"

namespace fathom::microbench {
namespace {

__global__ void fill(std::uint32_t* p, std::size_t n) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
       i += std::size_t{gridDim.x} * blockDim.x) {
    p[i] = hash(static_cast<std::uint32_t>(i));
  }
}

struct Bench {
  const char* name;
  Rows (*run)();
};
constexpr Bench kBenches[] = {{"exactness", exactness},
                              {"launch_boundary", launch_boundary},
                              {"tensor_rate", tensor_rate},
                              {"stream_read", stream_read},
                              {"l2_prefetch", l2_prefetch},
                              {"cluster", cluster},
                              {"peer", peer},
                              {"vendor", vendor},
                              {"matmul", matmul}};

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

Memory::Memory(std::size_t bytes) {
  check(cudaMalloc(&data_, bytes), "memory");
  fill<<<1024, 256>>>(as<std::uint32_t>(), bytes / 4);
  check(cudaDeviceSynchronize(), "fill");
}
Memory::~Memory() { cudaFree(data_); }

int multiprocessors() {
  int n = 0;
  check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0), "device");
  return n;
}

}  // namespace fathom::microbench

int main(int argc, char** argv) {
  using namespace fathom::microbench;
  bool json = false;
  bool all = true;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) json = true;
    else all = false;
  }
  bool first = true;
  for (const Bench& bench : kBenches) {
    bool wanted = all;
    for (int i = 1; i < argc; ++i) wanted = wanted || std::strcmp(argv[i], bench.name) == 0;
    if (!wanted) continue;
    for (const Row& row : bench.run()) {
      if (json) {
        std::printf("%s{\"bench\": \"%s\", \"what\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}", first ? "[" : ",\n",
                    row.bench.c_str(), row.what.c_str(), row.value, row.unit.c_str());
      } else {
        std::printf("%-16s %-64s %12.5g %s\n", row.bench.c_str(), row.what.c_str(), row.value, row.unit.c_str());
      }
      first = false;
      std::fflush(stdout);
    }
  }
  if (json) std::printf("%s]\n", first ? "[" : "");
  return 0;
}
