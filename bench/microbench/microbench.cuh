// Microbenchmarks: what a GPU's mechanisms cost, one by one. Design constants of src/ops/cuda follow from them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fathom::microbench {

struct Row {
  std::string bench;
  std::string what;
  double value;
  std::string unit;
};
using Rows = std::vector<Row>;

// Ends the program with a message if `status` is an error.
void check(cudaError_t status, const char* what);

// Device memory, freed at the end. Filled with pseudo-random bits, never with zeros: power and clocks depend on them.
class Memory {
 public:
  explicit Memory(std::size_t bytes);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

int multiprocessors();

// Milliseconds of the best of `times` runs of `work(stream)`, recorded into a graph once, after one run to warm up.
template <class Work>
float best_of(int times, const Work& work) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t run = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  work(stream);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&run, graph, 0), "graph");
  check(cudaGraphLaunch(run, stream), "launch");
  float best = 1e30F;
  for (int i = 0; i < times; ++i) {
    check(cudaEventRecord(begin, stream), "event");
    check(cudaGraphLaunch(run, stream), "launch");
    check(cudaEventRecord(end, stream), "event");
    check(cudaStreamSynchronize(stream), "run");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "time");
    best = ms < best ? ms : best;
  }
  cudaGraphExecDestroy(run);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return best;
}

// Launches with programmatic dependent launch or without; shared: dynamic shared memory; cluster: blocks of a cluster.
struct How {
  unsigned blocks = 1;
  unsigned threads = 256;
  std::size_t shared = 0;
  bool early = false;
  unsigned cluster = 1;
};
template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, const How& how, void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = how.early ? 1 : 0;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {how.cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(how.blocks);
  config.blockDim = dim3(how.threads);
  config.dynamicSmemBytes = how.shared;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = how.cluster > 1 ? 2 : 1;
  if (how.shared > 48 * 1024) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(how.shared)),
          "shared memory");
  }
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "launch");
}

__host__ __device__ inline std::uint32_t hash(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  return x ^ x >> 16;
}

// The benches, each in a file of its name.
Rows launch_boundary();
Rows stream_read();
Rows l2_prefetch();
Rows tensor_rate();
Rows exactness();
Rows cluster();
Rows peer();
Rows vendor();
Rows matmul();

}  // namespace fathom::microbench
