// Values and a flag stored into the memory of another GPU, and back. Only where there are two.
#include "microbench.cuh"

namespace fathom::microbench {
namespace {

constexpr int kRounds = 1000;
constexpr int kValues = 1024;  // 16 bytes each

// Both sides run this. A side that waits for more than two seconds gives up, so that nothing hangs.
__global__ void __launch_bounds__(256)
    ping(uint4* mine, uint4* theirs, std::uint32_t* flag, std::uint32_t* their_flag, bool begins) {
  const long long start = clock64();
  for (std::uint32_t r = 1; r <= kRounds; ++r) {
    const auto send = [&] {
      for (int i = threadIdx.x; i < kValues; i += 256) theirs[i] = mine[i];
      __threadfence_system();
      __syncthreads();
      if (threadIdx.x == 0) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(their_flag), "r"(r) : "memory");
    };
    if (begins) send();
    if (threadIdx.x == 0) {
      std::uint32_t seen = 0;
      do {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
      } while (seen < r && clock64() - start < 4'000'000'000LL);
    }
    __syncthreads();
    if (!begins) send();
  }
}

}  // namespace

Rows peer() {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "devices");
  if (devices < 2) return {};
  uint4* data[2] = {};
  std::uint32_t* flag[2] = {};
  cudaStream_t stream[2] = {};
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  for (int d = 0; d < 2; ++d) {
    check(cudaSetDevice(d), "device");
    check(cudaDeviceEnablePeerAccess(1 - d, 0), "peer access");
    check(cudaMalloc(&data[d], sizeof(uint4) * kValues), "memory");
    check(cudaMalloc(&flag[d], sizeof(std::uint32_t)), "memory");
    check(cudaMemset(flag[d], 0, sizeof(std::uint32_t)), "memory");
    check(cudaStreamCreate(&stream[d]), "stream");
  }
  check(cudaSetDevice(0), "device");
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  check(cudaDeviceSynchronize(), "memory");
  check(cudaEventRecord(begin, stream[0]), "event");
  for (int d = 0; d < 2; ++d) {
    check(cudaSetDevice(d), "device");
    launch(stream[d], {}, ping, data[d], data[1 - d], flag[d], flag[1 - d], d == 0);
  }
  check(cudaSetDevice(0), "device");
  check(cudaEventRecord(end, stream[0]), "event");
  check(cudaEventSynchronize(end), "run");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin, end), "time");
  for (int d = 0; d < 2; ++d) {
    cudaFree(data[d]);
    cudaFree(flag[d]);
  }
  return {{"peer", "16 KB and a flag to another GPU, one way", 1e3 * ms / kRounds / 2, "us"}};
}

}  // namespace fathom::microbench
