// How much can be fetched ahead into L2: the time of reading S bytes after a prefetch of them, and after other reading.
#include "microbench.cuh"
#include "stream.cuh"

namespace fathom::microbench {
namespace {

__global__ void prefetch(const char* from, std::size_t bytes) {
  const std::size_t pieces = bytes / 4096;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < pieces;
       i += std::size_t{gridDim.x} * blockDim.x) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from + 4096 * i), "r"(4096) : "memory");
  }
}
// Time for the prefetch to arrive: it is asynchronous.
__global__ void pause() { __nanosleep(100000); }

enum class Ahead : int { kNothing, kPrefetch, kRead };

float read_after(Ahead ahead, std::size_t bytes, std::size_t between, const Memory& pool, const Memory& sink) {
  constexpr std::size_t kFlush = std::size_t{400} << 20;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  const char* matrix = pool.as<char>() + kFlush;
  float best = 1e30F;
  for (int i = 0; i < 5; ++i) {
    kReadings[0].launch(nullptr, pool.as<char>(), kFlush, sink.as<std::uint32_t>(), false);
    if (ahead == Ahead::kPrefetch) launch(nullptr, {.blocks = 132, .threads = 32}, prefetch, matrix, bytes);
    if (ahead == Ahead::kRead) kReadings[0].launch(nullptr, matrix, bytes, sink.as<std::uint32_t>(), false);
    for (int j = 0; j < 3; ++j) launch(nullptr, {}, pause);
    if (between > 0) kReadings[0].launch(nullptr, pool.as<char>(), between, sink.as<std::uint32_t>(), false);
    check(cudaEventRecord(begin, nullptr), "event");
    kReadings[0].launch(nullptr, matrix, bytes, sink.as<std::uint32_t>(), false);
    check(cudaEventRecord(end, nullptr), "event");
    check(cudaDeviceSynchronize(), "run");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "time");
    best = ms < best ? ms : best;
  }
  return best;
}

}  // namespace

Rows l2_prefetch() {
  const Memory pool(std::size_t{512} << 20);
  const Memory sink(4);
  Rows rows;
  for (const std::size_t mb : {8U, 16U, 24U, 33U, 40U}) {
    const std::size_t bytes = mb << 20;
    const std::string name = std::to_string(mb) + " MB read ";
    const auto add = [&](const char* what, Ahead ahead, std::size_t between) {
      rows.push_back({"l2_prefetch", name + what, 1e3 * read_after(ahead, bytes, between, pool, sink), "us"});
    };
    add("cold", Ahead::kNothing, 0);
    add("after its prefetch", Ahead::kPrefetch, 0);
    add("after its prefetch and 8 MB of others", Ahead::kPrefetch, std::size_t{8} << 20);
    add("again", Ahead::kRead, 0);
  }
  return rows;
}

}  // namespace fathom::microbench
