#include "ops/weight.h"

#include <cstring>

#include "base/check.h"
#include "quant/bf16.h"
#include "quant/block.h"
#include "quant/e2m1.h"
#include "quant/e4m3.h"
#include "quant/ue8m0.h"

namespace fathom::ops {
namespace {

template <class T>
T load(const std::byte* base, std::int64_t index) {
  T v;
  std::memcpy(&v, base + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return v;
}

float scale_at(const Weight& w, std::int64_t index) {
  if (w.scale_dtype == DType::kF32) return load<float>(w.scales, index);
  return quant::ue8m0_value(load<std::uint8_t>(w.scales, index));
}

std::int64_t scale_bytes_per_row(const Weight& w) {
  const std::int64_t block = w.dtype == DType::kFp4x2 ? quant::kFp4Block : quant::kWeightBlock;
  return (w.cols + block - 1) / block * static_cast<std::int64_t>(size_of(w.scale_dtype));
}

}  // namespace

Weight Weight::row_slice(std::int64_t first, std::int64_t n) const {
  FATHOM_CHECK(first >= 0 && first + n <= rows, "slice inside the weight");
  FATHOM_CHECK(dtype != DType::kF8E4M3 || first % quant::kWeightBlock == 0, "FP8 slices start at a scale block");
  Weight s = *this;
  s.data = data + first * row_bytes();
  s.rows = n;
  if (quantised()) {
    const std::int64_t scale_row = dtype == DType::kFp4x2 ? first : first / quant::kWeightBlock;
    s.scales = scales + scale_row * scale_bytes_per_row(*this);
  }
  return s;
}

void dequantise_row(const Weight& w, std::int64_t r, float* out) {
  const std::byte* row = w.data + r * w.row_bytes();
  switch (w.dtype) {
    case DType::kF32: std::memcpy(out, row, 4 * static_cast<std::size_t>(w.cols)); return;
    case DType::kBf16:
      for (std::int64_t i = 0; i < w.cols; ++i) out[i] = quant::to_f32(load<quant::Bf16>(row, i));
      return;
    case DType::kF8E4M3: {
      const std::int64_t blocks = (w.cols + quant::kWeightBlock - 1) / quant::kWeightBlock;
      for (std::int64_t i = 0; i < w.cols; ++i) {
        const float scale = scale_at(w, r / quant::kWeightBlock * blocks + i / quant::kWeightBlock);
        out[i] = quant::kE4m3Values[load<std::uint8_t>(row, i)] * scale;
      }
      return;
    }
    case DType::kFp4x2: {
      const std::int64_t blocks = w.cols / quant::kFp4Block;
      for (std::int64_t i = 0; i < w.cols; i += 2) {
        const float scale = scale_at(w, r * blocks + i / quant::kFp4Block);
        const auto pair = load<std::uint8_t>(row, i / 2);
        out[i] = quant::kE2m1Values[pair & 15U] * scale;
        out[i + 1] = quant::kE2m1Values[pair >> 4] * scale;
      }
      return;
    }
    default: FATHOM_CHECK(false, "a weight is F32, BF16, F8_E4M3 or packed FP4");
  }
}

}  // namespace fathom::ops
