// The matrix product of src/ops/cuda on the shapes of prefill: the kernel for any GPU and the one for Hopper, whether
// their bits are the same, and how fast each is.
#include <cstring>

#include "microbench.cuh"
#include "ops/cuda/context.h"
#include "ops/cuda/matmul.h"

namespace fathom::microbench {
namespace {

using ops::Carrier;
using ops::Weight;
using ops::cuda::Context;

__global__ void make_codes(std::uint8_t* p, std::size_t n, int kind) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const std::uint32_t h = hash(static_cast<std::uint32_t>(i) + 99U);
    if (kind == 0) p[i] = static_cast<std::uint8_t>(i % 2 == 0 ? h : (h & 0x81U) | 0x3cU);  // bf16
    else if (kind == 1) p[i] = static_cast<std::uint8_t>((h & 0x7fU) == 0x7fU ? 0 : h);     // e4m3
    else if (kind == 2) p[i] = static_cast<std::uint8_t>(h);                                // e2m1
    else p[i] = static_cast<std::uint8_t>(118U + h % 8U);                                   // scales
  }
}
__global__ void make_values(float* p, std::size_t n) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const std::uint32_t h = hash(static_cast<std::uint32_t>(i) + 5U);
    p[i] = __uint_as_float((h & 0x807f0000U) | (121U + h % 8U) << 23);
  }
}
__global__ void differences(const std::uint32_t* a, const std::uint32_t* b, std::size_t n, unsigned long long* count) {
  unsigned long long mine = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
       i += std::size_t{gridDim.x} * blockDim.x) {
    mine += a[i] != b[i] ? 1 : 0;
  }
  if (mine > 0) atomicAdd(count, mine);
}

struct Shape {
  const char* name;
  DType dtype;
  std::int64_t rows, cols, groups;
  bool gate;
  std::int64_t tokens;
};
constexpr Shape kShapes[] = {
    {"wq_a", DType::kF8E4M3, 1024, 4096, 1, false, 8192},       {"wq_b", DType::kF8E4M3, 32768, 1024, 1, false, 2048},
    {"wo_a", DType::kF8E4M3, 8192, 4096, 8, false, 2048},       {"wo_b", DType::kF8E4M3, 4096, 8192, 1, false, 8192},
    {"shared gate", DType::kF8E4M3, 2048, 4096, 1, true, 8192}, {"FP4", DType::kFp4x2, 4096, 4096, 1, false, 8192},
    {"FP4 gate", DType::kFp4x2, 2048, 4096, 1, true, 8192},     {"FP4 down", DType::kFp4x2, 4096, 2048, 1, false, 8192},
    {"BF16", DType::kBf16, 1024, 4096, 1, false, 8192},         {"odd", DType::kF8E4M3, 200, 1168, 1, false, 333},
    {"odd gate", DType::kFp4x2, 200, 1184, 1, true, 77},        {"wo_b", DType::kF8E4M3, 4096, 8192, 1, false, 64},
    {"wo_b", DType::kF8E4M3, 4096, 8192, 1, false, 128},
};

// Milliseconds; y: [tokens, rows]. quantise is what FP8 and FP4 weights get.
float product(Context& c, const Shape& s, const Weight& w, const Weight& w3, const Mat<const float>& x, float* y,
              std::byte* memory) {
  using namespace ops::cuda;
  const Values values = s.dtype == DType::kBf16 || s.groups > 1 ? Values::kBf16 : Values::kQuantise;
  const Planes planes = make_planes(
      c, {.x = x, .groups = s.groups, .values = values, .order = order_for(c, w, values, s.tokens), .memory = memory});
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  float best = 1e30F;
  for (int i = 0; i < 3; ++i) {
    check(cudaEventRecord(begin, c.stream), "event");
    run_matmul(c, "matmul",
               {.w = w,
                .w3 = w3,
                .part = s.gate ? Part::kGate : Part::kDown,
                .groups = s.groups,
                .x = planes,
                .rows = s.tokens,
                .swiglu_limit = 10,
                .y = mat(y, s.tokens, s.rows),
                .carrier = Carrier::kF32});
    check(cudaEventRecord(end, c.stream), "event");
    check(cudaStreamSynchronize(c.stream), "run");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "time");
    best = ms < best ? ms : best;
  }
  check(c.fault.status(), c.fault.what());
  return best;
}

}  // namespace

Rows matmul() {
  Rows rows;
  Context c;
  check(c.open(), "stream");
  c.multiprocessors = multiprocessors();
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "device");
  c.capability = 10 * major;
  const Memory counts(8);
  for (const Shape& s : kShapes) {
    const std::size_t bytes = static_cast<std::size_t>(s.rows * s.cols) * 2;
    const Memory w(2 * bytes);
    const Memory scales(bytes);
    const Memory x(static_cast<std::size_t>(s.tokens * s.cols * s.groups) * 4);
    const Memory planes(ops::cuda::planes_bytes(s.tokens * s.groups, s.cols, ops::cuda::Values::kBf16));
    const Memory y(static_cast<std::size_t>(s.tokens * s.rows) * 4);
    const Memory z(static_cast<std::size_t>(s.tokens * s.rows) * 4);
    make_codes<<<1024, 256>>>(w.as<std::uint8_t>(), 2 * bytes,
                              s.dtype == DType::kBf16     ? 0
                              : s.dtype == DType::kF8E4M3 ? 1
                                                          : 2);
    make_codes<<<1024, 256>>>(scales.as<std::uint8_t>(), bytes, 3);
    make_values<<<1024, 256>>>(x.as<float>(), static_cast<std::size_t>(s.tokens * s.cols * s.groups));
    check(cudaDeviceSynchronize(), "values");
    const auto weight = [&](std::size_t at) {
      return Weight{.dtype = s.dtype,
                    .data = w.as<std::byte>() + at,
                    .rows = s.rows,
                    .cols = s.cols,
                    .scales = scales.as<std::byte>() + at / 2};
    };
    const Mat<const float> in{x.as<float>(), s.tokens, s.cols * s.groups, s.cols * s.groups};
    c.kernels = {};
    const float slow = product(c, s, weight(0), weight(bytes), in, y.as<float>(), planes.as<std::byte>());
    c.kernels = ops::KernelChoice(c.capability, true, {});
    const float fast = product(c, s, weight(0), weight(bytes), in, z.as<float>(), planes.as<std::byte>());
    unsigned long long differ = 0;
    check(cudaMemset(counts.as<void>(), 0, 8), "counts");
    differences<<<1024, 256>>>(y.as<std::uint32_t>(), z.as<std::uint32_t>(),
                               static_cast<std::size_t>(s.tokens * s.rows), counts.as<unsigned long long>());
    check(cudaMemcpy(&differ, counts.as<void>(), 8, cudaMemcpyDeviceToHost), "counts");
    const double flops = 2.0 * static_cast<double>(s.rows * s.cols * s.tokens) * (s.gate ? 2 : 1);
    const std::string what = std::string(s.name) + " [" + std::to_string(s.rows) + ", " + std::to_string(s.cols) +
                             "] x " + std::to_string(s.tokens);
    rows.push_back({"matmul", what + ", any GPU", flops / slow * 1e-9, "TFLOP/s"});
    rows.push_back({"matmul", what + ", wgmma", flops / fast * 1e-9, "TFLOP/s"});
    rows.push_back({"matmul", what + ", bits that differ", static_cast<double>(differ), "results"});
  }
  return rows;
}

}  // namespace fathom::microbench
