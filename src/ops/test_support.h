// What the tests of the operations share: matrices whose padding is poisoned, weights of every format, one CPU backend
// per number of threads, and a loop over the instruction sets of this machine.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/backend.h"
#include "ops/simd/targets.h"
//
#include <hwy/targets.h>

namespace fathom::ops::testing {

inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

using Rng = std::mt19937;

inline std::vector<float> normals(Rng& rng, std::int64_t n, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(static_cast<std::size_t>(n));
  for (float& x : v) x = normal(rng);
  return v;
}

// rows x cols values with `pad` NaNs behind each row, and in front of and behind the whole.
class Rows {
 public:
  Rows(std::int64_t rows, std::int64_t cols, std::int64_t pad = 3)
      : rows_(rows), cols_(cols), ld_(cols + pad), data_(static_cast<std::size_t>(rows * ld_ + 2 * kEdge), kPoison) {}

  static Rows normal(Rng& rng, std::int64_t rows, std::int64_t cols, float scale = 1, std::int64_t pad = 3) {
    Rows r(rows, cols, pad);
    std::normal_distribution<float> normal(0, scale);
    for (std::int64_t t = 0; t < rows; ++t) {
      for (std::int64_t c = 0; c < cols; ++c) r.at(t, c) = normal(rng);
    }
    return r;
  }

  float& at(std::int64_t r, std::int64_t c) { return data_[static_cast<std::size_t>(kEdge + r * ld_ + c)]; }
  float at(std::int64_t r, std::int64_t c) const { return data_[static_cast<std::size_t>(kEdge + r * ld_ + c)]; }
  Mat<float> mat() { return {data_.data() + kEdge, rows_, cols_, ld_}; }
  Mat<const float> mat() const { return {data_.data() + kEdge, rows_, cols_, ld_}; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }

  bool padding_untouched() const {
    for (std::size_t i = 0; i < data_.size(); ++i) {
      const auto inside = static_cast<std::int64_t>(i) - kEdge;
      const bool value = inside >= 0 && inside < rows_ * ld_ && inside % ld_ < cols_;
      if (!value && !std::isnan(data_[i])) return false;
    }
    return true;
  }

  // The same bits in every value.
  bool same(const Rows& o) const {
    return data_.size() == o.data_.size() && std::memcmp(data_.data(), o.data_.data(), 4 * data_.size()) == 0;
  }
  bool same_row(std::int64_t r, const Rows& o, std::int64_t other) const {
    return std::memcmp(&data_[static_cast<std::size_t>(kEdge + r * ld_)],
                       &o.data_[static_cast<std::size_t>(kEdge + other * o.ld_)],
                       4 * static_cast<std::size_t>(cols_)) == 0;
  }

 private:
  static constexpr std::int64_t kEdge = 5;
  std::int64_t rows_;
  std::int64_t cols_;
  std::int64_t ld_;
  std::vector<float> data_;
};

// A weight that owns its bytes; the bytes behind it are poisoned (FP8 and FP4: NaN codes and NaN scales).
struct OwnedWeight {
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  Weight w;
};

inline OwnedWeight random_weight(Rng& rng, DType dtype, std::int64_t rows, std::int64_t cols,
                                 DType scale_dtype = DType::kF8E8M0) {
  OwnedWeight o;
  o.w = {.dtype = dtype, .rows = rows, .cols = cols, .scale_dtype = scale_dtype};
  const auto bytes = static_cast<std::size_t>(rows * o.w.row_bytes());
  o.data.assign(bytes + 64, std::byte{0xff});
  std::normal_distribution<float> normal(0, 0.05F);
  for (std::size_t i = 0; i < bytes;) {
    switch (dtype) {
      case DType::kF32: {
        const float v = normal(rng);
        std::memcpy(&o.data[i], &v, 4);
        i += 4;
        break;
      }
      case DType::kBf16: {
        const quant::Bf16 v = quant::to_bf16(normal(rng));
        std::memcpy(&o.data[i], &v, 2);
        i += 2;
        break;
      }
      case DType::kF8E4M3: {
        const auto code = static_cast<std::uint8_t>(rng());
        o.data[i++] = std::byte{(code & 0x7fU) == 0x7fU ? std::uint8_t{0} : code};
        break;
      }
      default: o.data[i++] = std::byte{static_cast<std::uint8_t>(rng())};
    }
  }
  if (o.w.quantised()) {
    const std::int64_t n = dtype == DType::kFp4x2 ? rows * (cols / 32) : (rows + 127) / 128 * ((cols + 127) / 128);
    const std::size_t size = size_of(scale_dtype);
    o.scales.assign(static_cast<std::size_t>(n) * size + 64, std::byte{0xff});
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      if (scale_dtype == DType::kF32) {
        const float s = std::uniform_real_distribution<float>(0.001F, 0.01F)(rng);
        std::memcpy(&o.scales[4 * i], &s, 4);
      } else {
        o.scales[i] = std::byte{static_cast<std::uint8_t>(117 + rng() % 5)};
      }
    }
  }
  o.w.data = o.data.data();
  o.w.scales = o.scales.data();
  return o;
}

// Runs body(has_fma) once for every instruction set that this machine and this build have.
template <class Body>
void for_each_target(const Body& body) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body(target != HWY_SCALAR && target != HWY_SSE4 && target != HWY_SSSE3);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Backends of 1 to 3 threads, made once per test.
class Backends {
 public:
  Backend& threads(int n) { return made(made_[static_cast<std::size_t>(n)], {.threads = n}); }
  // One thread, without the processor's bf16 dot product.
  Backend& plain() { return made(plain_, {.threads = 1, .bf16_dot = false}); }

 private:
  static Backend& made(std::unique_ptr<Backend>& b, const CpuOptions& options) {
    if (b == nullptr) b = make_cpu_backend(options);
    return *b;
  }
  std::unique_ptr<Backend> made_[4];
  std::unique_ptr<Backend> plain_;
};

}  // namespace fathom::ops::testing
