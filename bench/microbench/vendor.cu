// The vendor's library on two of our shapes, for comparison. Loaded if it is there; nothing links it.
#include <cublasLt.h>
#include <dlfcn.h>

#include "microbench.cuh"

namespace fathom::microbench {
namespace {

struct Library {
  void* handle = nullptr;
  template <class F>
  F* find(F*, const char* name) const {
    return reinterpret_cast<F*>(dlsym(handle, name));
  }
};
#define FATHOM_FIND(library, name) (library).find(&name, #name)

__global__ void numbers(std::uint8_t* p, std::size_t n, bool fp8) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const std::uint32_t h = hash(static_cast<std::uint32_t>(i));
    if (fp8) p[i] = static_cast<std::uint8_t>(h & 0xbfU);
    else reinterpret_cast<std::uint16_t*>(p)[i] = static_cast<std::uint16_t>((h & 0x807fU) | 0x3f00U);
  }
}

// TFLOP/s of [rows x inputs] times [inputs x tokens]; negative: the library refused.
double product(const Library& lib, bool fp8, int rows, int inputs, int tokens) {
  const auto create = FATHOM_FIND(lib, cublasLtCreate);
  const auto describe = FATHOM_FIND(lib, cublasLtMatmulDescCreate);
  const auto set = FATHOM_FIND(lib, cublasLtMatmulDescSetAttribute);
  const auto layout = FATHOM_FIND(lib, cublasLtMatrixLayoutCreate);
  const auto prefer = FATHOM_FIND(lib, cublasLtMatmulPreferenceCreate);
  const auto prefer_set = FATHOM_FIND(lib, cublasLtMatmulPreferenceSetAttribute);
  const auto choose = FATHOM_FIND(lib, cublasLtMatmulAlgoGetHeuristic);
  const auto matmul = FATHOM_FIND(lib, cublasLtMatmul);
  const std::size_t width = fp8 ? 1 : 2;
  const Memory w(width * rows * inputs);
  const Memory x(width * tokens * inputs);
  const Memory y(std::size_t{2} * rows * tokens);
  std::size_t room = std::size_t{64} << 20;
  const Memory workspace(room);
  numbers<<<1024, 256>>>(w.as<std::uint8_t>(), std::size_t(rows) * inputs, fp8);
  numbers<<<1024, 256>>>(x.as<std::uint8_t>(), std::size_t(tokens) * inputs, fp8);
  const cudaDataType_t type = fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulHeuristicResult_t found{};
  int n = 0;
  const cublasOperation_t turned = CUBLAS_OP_T;
  create(&handle);
  describe(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  set(op, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned);
  layout(&a, type, inputs, rows, inputs);
  layout(&b, type, inputs, tokens, inputs);
  layout(&c, CUDA_R_16BF, rows, tokens, rows);
  prefer(&preference);
  prefer_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room);
  if (choose(handle, op, a, b, c, c, preference, 1, &found, &n) != CUBLAS_STATUS_SUCCESS || n == 0) return -1;
  const float one = 1;
  const float zero = 0;
  constexpr int kTimes = 10;
  bool fine = true;
  const float ms = best_of(3, [&](cudaStream_t s) {
    for (int i = 0; i < kTimes; ++i) {
      fine = matmul(handle, op, &one, w.as<void>(), a, x.as<void>(), b, &zero, y.as<void>(), c, y.as<void>(), c,
                    &found.algo, workspace.as<void>(), room, s) == CUBLAS_STATUS_SUCCESS &&
             fine;
    }
  });
  return fine ? 2.0 * rows * inputs * tokens * kTimes / ms * 1e-9 : -1;
}

}  // namespace

Rows vendor() {
  Library lib;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
    if (lib.handle == nullptr) lib.handle = dlopen(name, RTLD_NOW);
  }
  if (lib.handle == nullptr) return {};
  Rows rows;
  for (const bool fp8 : {false, true}) {
    for (const int tokens : {2048, 8192}) {
      rows.push_back(
          {"vendor",
           std::string("cuBLASLt ") + (fp8 ? "FP8" : "bf16") + ", 4096 x 4096, " + std::to_string(tokens) + " tokens",
           product(lib, fp8, 4096, 4096, tokens), "TFLOP/s"});
    }
  }
  return rows;
}

}  // namespace fathom::microbench
