// Weight: a matrix as it stands in the checkpoint, with its block scales. checkpoint.md 5.3, 5.4.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/view.h"

namespace fathom::ops {

// [rows (out), cols (in)], row-major, in backend memory; owned by whoever loaded the model.
//   kF32, kBf16          aligned to the element
//   kF8E4M3              one scale per 128 x 128 block, [ceil(rows/128), ceil(cols/128)]
//   kFp4x2               two values a byte, one scale per row and 32 columns, [rows, cols/32]
// Scales are E8M0 bytes or, in Base checkpoints, f32.
struct Weight {
  DType dtype = DType::kF32;
  const std::byte* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  DType scale_dtype = DType::kF8E8M0;
  const std::byte* scales = nullptr;
  // Whether the inputs of every product with it go through FP8 (Linear::quantise_x) and FP8 tensor units may add them up: a
  // device may pack it for such products alone.
  bool quantised_inputs = false;

  bool quantised() const { return dtype == DType::kF8E4M3 || dtype == DType::kFp4x2; }
  bool present() const { return data != nullptr; }
  // Bytes from row to row.
  std::int64_t row_bytes() const {
    return dtype == DType::kFp4x2 ? cols / 2 : cols * static_cast<std::int64_t>(size_of(dtype));
  }
  // Rows [first, first + n), for weights whose scale blocks start at `first` (FP8: a multiple of 128).
  Weight row_slice(std::int64_t first, std::int64_t n) const;
};

// Row r as f32: value times scale, exact for power-of-two scales. Host memory. out: cols values.
void dequantise_row(const Weight& w, std::int64_t r, float* out);

}  // namespace fathom::ops
