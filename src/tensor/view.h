// Views of numbers in memory: what an operation is handed. A view owns nothing and says nothing of where the memory is;
// it lives where its backend's memory lives, and only that backend dereferences it. Owners are HostBuffer (here) and
// the device buffers of a backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace fathom {

// Element types as they stand in a checkpoint or a buffer.
enum class DType : std::uint8_t {
  kF32,
  kBf16,
  kF8E4M3,  // one byte, quant/e4m3.h
  kF8E8M0,  // one byte, a power of two, quant/ue8m0.h
  kFp4x2,   // one byte, two E2M1 values, low nibble first; safetensors calls it I8
  kI32,
  kI64,
};

// Bytes of one element (kFp4x2: of one pair).
constexpr std::size_t size_of(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kBf16: return 2;
    case DType::kI64: return 8;
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kFp4x2: return 1;
  }
  return 0;
}

// The name safetensors gives the type ("F32", "BF16", "F8_E4M3", "F8_E8M0", "I8", "I32", "I64").
constexpr std::string_view name_of(DType t) {
  switch (t) {
    case DType::kF32: return "F32";
    case DType::kI32: return "I32";
    case DType::kBf16: return "BF16";
    case DType::kI64: return "I64";
    case DType::kF8E4M3: return "F8_E4M3";
    case DType::kF8E8M0: return "F8_E8M0";
    case DType::kFp4x2: return "I8";
  }
  return "?";
}

// A row-major matrix. `ld` is the distance of rows in elements, >= cols.
template <class T>
struct Mat {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t ld = 0;

  T* row(std::int64_t r) const {
    FATHOM_DCHECK(0 <= r && r < rows, "row inside the matrix");
    return data + r * ld;
  }
  // Rows [first, first + n).
  Mat slice(std::int64_t first, std::int64_t n) const {
    FATHOM_DCHECK(0 <= first && first + n <= rows, "slice inside the matrix");
    return {data + first * ld, n, cols, ld};
  }
  operator Mat<const T>() const { return {data, rows, cols, ld}; }
};

template <class T>
Mat<T> mat(T* data, std::int64_t rows, std::int64_t cols) {
  return {data, rows, cols, cols};
}
template <class T>
Mat<T> mat(std::vector<T>& v, std::int64_t rows, std::int64_t cols) {
  FATHOM_CHECK(static_cast<std::int64_t>(v.size()) >= rows * cols, "the vector holds the matrix");
  return {v.data(), rows, cols, cols};
}
template <class T>
Mat<const T> mat(const std::vector<T>& v, std::int64_t rows, std::int64_t cols) {
  FATHOM_CHECK(static_cast<std::int64_t>(v.size()) >= rows * cols, "the vector holds the matrix");
  return {v.data(), rows, cols, cols};
}

}  // namespace fathom
