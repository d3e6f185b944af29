// Difference tests: the same operation on the same data by the reference on the host and by the device.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/backend.h"
#include "ops/device_plugin.h"
#include "ops/kernel_table.h"
#include "quant/bf16.h"

namespace fathom::testing {

// FATHOM_CUDA_TEST_SMALL: sizes for compute-sanitizer's racecheck, under which a kernel takes a thousand times as long.
inline bool small_sizes() { return std::getenv("FATHOM_CUDA_TEST_SMALL") != nullptr; }
inline std::vector<std::int64_t> sizes(std::vector<std::int64_t> all, std::vector<std::int64_t> few) {
  return small_sizes() ? few : all;
}

// The device, opened once for the program; null where there is none, and `why` says why.
struct Device {
  static Device& get() {
    static Device d;
    return d;
  }
  std::unique_ptr<ops::Backend> backend;
  std::string why;

 private:
  Device() {
    auto opened = ops::open_cuda({});
    if (opened) {
      backend = std::move(*opened);
    } else {
      why = opened.error().what;
    }
  }
};

class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Device::get().backend == nullptr) GTEST_SKIP() << Device::get().why;
  }
  static ops::Backend& device() { return *Device::get().backend; }
  static ops::Backend& reference() {
    static const auto ref = ops::make_ref_backend();
    return *ref;
  }
};

// The device without some of its leaves, for results that must not differ with them.
inline std::unique_ptr<ops::Backend> device_without(const std::vector<std::string>& kernels) {
  auto off = ops::leaves_named(kernels);
  EXPECT_TRUE(off) << off.error().what;
  auto opened = ops::open_cuda({.off = *off});
  EXPECT_TRUE(opened) << opened.error().what;
  return std::move(*opened);
}

// Values on the host and their copy on the device.
template <class T>
class Twin {
 public:
  Twin() = default;
  explicit Twin(std::vector<T> values) : host_(std::move(values)) {
    auto memory = Device::get().backend->allocate(bytes());
    EXPECT_TRUE(memory) << memory.error().what;
    memory_ = std::move(*memory);
    upload();
  }
  // Room for `n` values, full of what no operation may leave standing.
  static Twin poisoned(std::int64_t n) {
    T poison;
    std::memset(&poison, 0x7e, sizeof(T));  // a float of 8e37, an absurd index
    return Twin(std::vector<T>(static_cast<std::size_t>(n), poison));
  }

  std::vector<T>& host() { return host_; }
  const std::vector<T>& host() const { return host_; }
  T* device() const { return reinterpret_cast<T*>(memory_.get()); }
  void upload() { Device::get().backend->copy_in(memory_.get(), host_.data(), bytes()); }
  std::vector<T> fetch() const {
    std::vector<T> values(host_.size());
    Device::get().backend->copy_out(values.data(), memory_.get(), bytes());
    return values;
  }
  std::size_t bytes() const { return host_.size() * sizeof(T); }

  // Matrices over the first values, on either side.
  Mat<T> on_host(std::int64_t rows, std::int64_t cols) { return mat(host_, rows, cols); }
  Mat<T> on_device(std::int64_t rows, std::int64_t cols) const { return mat(device(), rows, cols); }

 private:
  std::vector<T> host_;
  ops::Buffer memory_;
};

inline float rounded(float x, ops::Carrier c) { return c == ops::Carrier::kBf16 ? quant::round_bf16(x) : x; }

// Normal numbers, as the carrier has them.
inline std::vector<float> normal(std::int64_t n, std::uint32_t seed, float deviation = 1,
                                 ops::Carrier c = ops::Carrier::kF32) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> d(0, deviation);
  std::vector<float> v(static_cast<std::size_t>(n));
  for (float& x : v) x = rounded(d(rng), c);
  return v;
}

// How far the device may be from the reference: sums in f32 and in another order, then one rounding to the carrier.
struct Tolerance {
  double absolute = 1e-5;
  double relative = 1e-5;

  static Tolerance of(ops::Carrier c, double absolute = 1e-5) {
    return {absolute, c == ops::Carrier::kBf16 ? 1.0 / 128 : 1e-5};
  }
};

// The number of values that differ by more; the message shows the worst.
inline ::testing::AssertionResult close(const std::vector<float>& got, const std::vector<float>& want, Tolerance t,
                                        std::size_t allowed = 0) {
  if (got.size() != want.size())
    return ::testing::AssertionFailure() << got.size() << " values, expected " << want.size();
  std::size_t bad = 0;
  std::size_t worst = 0;
  double worst_excess = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    const double d = std::fabs(double{got[i]} - double{want[i]});
    const double excess = d - t.absolute - t.relative * std::fabs(double{want[i]});
    if (excess <= 0 || got[i] == want[i]) continue;
    ++bad;
    if (bad == 1 || !(excess <= worst_excess)) {
      worst = i;
      worst_excess = excess;
    }
  }
  if (bad <= allowed) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << bad << " of " << got.size() << " values differ (" << allowed
                                       << " may), worst at " << worst << ": " << got[worst] << ", expected "
                                       << want[worst];
}

inline constexpr ops::Numerics kAllNumerics[] = {ops::kFloat, ops::kOfficial, ops::kOfficialBf16};

// A few values may fall on the other side of a quantiser's rounding border: one in a thousand, and at least one.
inline std::size_t few(std::size_t n) { return n / 1000 + 1; }

}  // namespace fathom::testing
