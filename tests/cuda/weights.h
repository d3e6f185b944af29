// Random matrices in every format of a checkpoint, on both sides.
#pragma once

#include "cuda/twin.h"
#include "ops/weight.h"

namespace fathom::testing {

struct Format {
  DType dtype;
  DType scale_dtype = DType::kF8E8M0;
};
inline constexpr Format kF32 = {DType::kF32};
inline constexpr Format kBf16 = {DType::kBf16};
inline constexpr Format kFp8 = {DType::kF8E4M3};
inline constexpr Format kFp8F32 = {DType::kF8E4M3, DType::kF32};
inline constexpr Format kFp4 = {DType::kFp4x2};
inline constexpr Format kFp4F32 = {DType::kFp4x2, DType::kF32};

inline std::string name_of(Format f) {
  return std::string(name_of(f.dtype)) + (f.scale_dtype == DType::kF32 ? " scaled by F32" : "");
}

class TwinWeight {
 public:
  // quantised_inputs: as in ops::Weight.
  TwinWeight(Format f, std::int64_t rows, std::int64_t cols, std::uint32_t seed, bool quantised_inputs = false)
      : TwinWeight(f, rows, cols, seed, quantised_inputs, [](std::vector<std::uint8_t>&, std::vector<std::uint8_t>&) {}) {}
  // change: of the bytes of its codes and its scales, before they go to the device.
  template <class Change>
  TwinWeight(Format f, std::int64_t rows, std::int64_t cols, std::uint32_t seed, bool quantised_inputs, const Change& change) {
    std::mt19937 rng(seed);
    w_ = {.dtype = f.dtype,
          .data = nullptr,
          .rows = rows,
          .cols = cols,
          .scale_dtype = f.scale_dtype,
          .scales = nullptr,
          .quantised_inputs = quantised_inputs};
    std::vector<std::uint8_t> scales;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(rows * w_.row_bytes()));
    if (!w_.quantised()) {
      const auto values = normal(rows * cols, seed, 0.1F);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint16_t narrow = quant::to_bf16(values[i]).bits;
        if (f.dtype == DType::kF32) std::memcpy(&bytes[4 * i], &values[i], 4);
        else std::memcpy(&bytes[2 * i], &narrow, 2);
      }
    } else {
      for (std::uint8_t& b : bytes) {
        b = static_cast<std::uint8_t>(rng());
        if (f.dtype == DType::kF8E4M3 && (b & 0x7fU) == 0x7fU) b &= 0x3fU;  // no NaN
      }
      const std::int64_t block = f.dtype == DType::kFp4x2 ? 32 : 128;
      const std::int64_t scale_rows = f.dtype == DType::kFp4x2 ? rows : (rows + 127) / 128;
      const std::int64_t n = scale_rows * ((cols + block - 1) / block);
      scales.resize(static_cast<std::size_t>(n) * size_of(f.scale_dtype));
      for (std::int64_t i = 0; i < n; ++i) {
        // Powers of two from 2^-14 to 2^-5; as F32 anything between.
        const auto code = static_cast<std::uint8_t>(113 + rng() % 10);
        const float wide = std::ldexp(1 + static_cast<float>(rng() % 1000) / 1000, code - 127);
        if (f.scale_dtype == DType::kF32) std::memcpy(&scales[static_cast<std::size_t>(4 * i)], &wide, 4);
        else scales[static_cast<std::size_t>(i)] = code;
      }
    }
    change(bytes, scales);
    if (!scales.empty()) scales_ = Twin<std::uint8_t>(std::move(scales));
    data_ = Twin<std::uint8_t>(std::move(bytes));
    Device::get().backend->prepare(on_device());
  }

  ops::Weight on_host() const { return with(data_.host().data(), scales_.host().data()); }
  ops::Weight on_device() const { return with(data_.device(), scales_.device()); }

 private:
  ops::Weight with(const std::uint8_t* data, const std::uint8_t* scales) const {
    ops::Weight w = w_;
    w.data = reinterpret_cast<const std::byte*>(data);
    w.scales = reinterpret_cast<const std::byte*>(scales);
    return w;
  }
  ops::Weight w_;
  Twin<std::uint8_t> data_;
  Twin<std::uint8_t> scales_;
};

}  // namespace fathom::testing
