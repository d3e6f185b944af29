// Products of packed weights on FP8 tensor units (ops/cuda/codes.h): what they compute, and that every number of tokens
// gets the same bits. They are off where the GPU is no Hopper; then these tests hold of what takes their place.
#include <algorithm>
#include <limits>

#include "cuda/weights.h"

namespace fathom::testing {
namespace {

using ops::Carrier;
using Codes = OnDevice;

struct Case {
  Format format;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t tokens;
  std::int32_t groups = 1;
};

// The tensor unit drops what is about 2^13 below the largest number that it adds: 2^-10 of the sum of magnitudes is allowed,
// of random codes, where one product is often most of the sum.
void expect_like_reference(ops::Backend& device, ops::Backend& reference, const Case& c, const TwinWeight& w) {
  Twin<float> x(normal(c.tokens * c.groups * c.cols, static_cast<std::uint32_t>(c.cols + c.tokens)));
  auto y = Twin<float>::poisoned(c.tokens * c.rows);
  device.linear({.x = x.on_device(c.tokens, c.groups * c.cols),
                 .w = w.on_device(),
                 .y = y.on_device(c.tokens, c.rows),
                 .groups = c.groups,
                 .quantise_x = true});
  EXPECT_TRUE(device.finish());
  reference.linear({.x = x.on_host(c.tokens, c.groups * c.cols),
                    .w = w.on_host(),
                    .y = y.on_host(c.tokens, c.rows),
                    .groups = c.groups,
                    .quantise_x = true});
  const auto got = y.fetch();
  std::vector<float> row(static_cast<std::size_t>(c.cols));
  double worst = 0;
  for (std::int64_t o = 0; o < c.rows; ++o) {
    ops::dequantise_row(w.on_host(), o, row.data());
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      double magnitude = 1e-30;
      const std::int64_t from = t * c.groups * c.cols + o / (c.rows / c.groups) * c.cols;
      for (std::int64_t i = 0; i < c.cols; ++i) {
        magnitude +=
            std::fabs(double{row[static_cast<std::size_t>(i)]} * double{x.host()[static_cast<std::size_t>(from + i)]});
      }
      const auto at = static_cast<std::size_t>(t * c.rows + o);
      const double off = std::fabs(double{got[at]} - double{y.host()[at]}) / magnitude;
      worst = std::max(worst, std::isnan(off) ? 1e9 : off);
    }
  }
  EXPECT_LE(worst, 0x1p-10) << name_of(c.format) << " [" << c.rows << ", " << c.cols << "] x " << c.tokens << ", "
                            << c.groups << " groups";
}

void expect_like_reference(ops::Backend& device, ops::Backend& reference, const Case& c) {
  expect_like_reference(device, reference, c, TwinWeight(c.format, c.rows, c.cols, 7, true));
}

TEST_F(Codes, EveryFormatAndNumberOfTokens) {
  for (const Format f : {kFp8, kFp8F32, kFp4}) {
    for (const std::int64_t tokens : sizes({0, 1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 100, 129, 300}, {1, 9, 65})) {
      expect_like_reference(device(), reference(), {f, 256, 512, tokens});
    }
  }
}

TEST_F(Codes, EveryNumberOfBlocksAndSegments) {
  for (const Format f : {kFp8, kFp4}) {
    for (const std::int64_t cols : sizes({128, 384, 896, 1024, 1152, 2048, 4096, 7168, 8192}, {128, 1152})) {
      for (const std::int64_t tokens : {1, 20, 70}) expect_like_reference(device(), reference(), {f, 128, cols, tokens});
    }
  }
  expect_like_reference(device(), reference(), {kFp8, 8192, 256, 3});  // one segment
  expect_like_reference(device(), reference(), {kFp8, 1024, 1024, 5, 4});
}

// Weights that are not packed beside the packed ones, and the same x for several.
TEST_F(Codes, SeveralAtOnce) {
  constexpr std::int64_t kCols = 1024;
  const TwinWeight a(kFp8, 256, kCols, 1, true);
  const TwinWeight b(kBf16, 96, kCols, 2);
  const TwinWeight c(kFp8, 128, kCols, 3, true);
  const TwinWeight d(kFp8, 100, kCols, 4, true);  // rows that are no whole blocks
  for (const std::int64_t tokens : {1, 8, 9, 64, 65}) {
    Twin<float> x(normal(tokens * kCols, 5, 1, Carrier::kBf16));
    std::vector<Twin<float>> y;
    std::vector<ops::Linear> together;
    std::vector<std::vector<float>> one_by_one;
    for (const TwinWeight* w : {&a, &b, &c, &d}) {
      const ops::Weight on_device = w->on_device();
      y.push_back(Twin<float>::poisoned(tokens * on_device.rows));
      together.push_back({.x = x.on_device(tokens, kCols),
                          .w = on_device,
                          .y = y.back().on_device(tokens, on_device.rows),
                          .quantise_x = on_device.quantised(),
                          .x_carrier = Carrier::kBf16});
      device().linear(together.back());
      one_by_one.push_back(y.back().fetch());
      y.back().upload();
    }
    device().linears(together);
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i].fetch(), one_by_one[i]) << i << " of " << tokens;
  }
}

// A token's outputs are its own, to the bit: not changed by the others, nor by which kernel their number chose.
TEST_F(Codes, ATokensOutputsAreItsOwn) {
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{384, 1024}, {256, 4096}, {128, 8192}, {8192, 384}};
  for (const Format f : {kFp8, kFp8F32, kFp4}) {
    for (const auto& [rows, cols] : shapes) {
      const TwinWeight w(f, rows, cols, 5, true);
      Twin<float> x(normal(600 * cols, 6));
      const auto run = [&](std::int64_t first, std::int64_t tokens) {
        const auto y = Twin<float>::poisoned(tokens * rows);
        device().linear({.x = x.on_device(600, cols).slice(first, tokens),
                         .w = w.on_device(),
                         .y = y.on_device(tokens, rows),
                         .quantise_x = true});
        return y.fetch();
      };
      const auto all = run(0, 600);
      for (const std::int64_t tokens : sizes({1, 2, 8, 9, 15, 16, 17, 32, 33, 64, 65, 96, 127, 128, 129, 500}, {1, 9, 33, 65})) {
        const std::vector<float> want(all.begin() + 3 * rows, all.begin() + (3 + tokens) * rows);
        EXPECT_TRUE(run(3, tokens) == want) << name_of(f) << " [" << rows << ", " << cols << "], " << tokens << " tokens";
      }
      EXPECT_TRUE(run(0, 600) == all) << "again";
    }
  }
}

// Groups of FP4 weights far below their block's largest count as zeros; scales of groups of zeros do not count.
TEST_F(Codes, ScalesFarApart) {
  const auto far = [](std::vector<std::uint8_t>& codes, std::vector<std::uint8_t>& scales) {
    for (std::size_t i = 0; i < scales.size(); ++i) {
      switch (i % 4) {
        case 0: scales[i] = 127; break;
        case 1: scales[i] = 116; break;  // 2^11 below: the last that is kept
        case 2: scales[i] = i % 8 < 4 ? 20 : 1; break;
        default:
          scales[i] = 254;
          std::fill_n(codes.begin() + static_cast<std::ptrdiff_t>(16 * i), 16, std::uint8_t{0x80});  // zeros, signed
      }
    }
  };
  const Case c{kFp4, 128, 512, 9};
  expect_like_reference(device(), reference(), c, TwinWeight(c.format, c.rows, c.cols, 7, true, far));
  // Nothing but the smallest and the largest scales.
  for (const std::uint8_t scale : {std::uint8_t{3}, std::uint8_t{6}, std::uint8_t{200}}) {
    const auto all = [&](std::vector<std::uint8_t>&, std::vector<std::uint8_t>& scales) {
      std::fill(scales.begin(), scales.end(), scale);
    };
    const TwinWeight w(c.format, c.rows, c.cols, 7, true, all);
    Twin<float> x(std::vector<float>(static_cast<std::size_t>(9 * 512), scale < 100 ? 0x1p20F : 1.0F));
    const auto y = Twin<float>::poisoned(9 * 128);
    device().linear({.x = x.on_device(9, 512), .w = w.on_device(), .y = y.on_device(9, 128), .quantise_x = true});
    for (const float v : y.fetch()) EXPECT_TRUE(std::isfinite(v)) << int{scale};
  }
}

TEST_F(Codes, NanAndInfinityStayInTheirRow) {
  for (const Format f : {kFp8, kFp4}) {
    for (const std::int64_t tokens : {3, 8, 40, 100}) {
      const TwinWeight w(f, 128, 256, 8, true);
      std::vector<float> values = normal(tokens * 256, 9);
      values[256 + 100] = std::numeric_limits<float>::quiet_NaN();
      values[2 * 256 + 7] = std::numeric_limits<float>::infinity();
      Twin<float> x(values);
      const auto y = Twin<float>::poisoned(tokens * 128);
      device().linear(
          {.x = x.on_device(tokens, 256), .w = w.on_device(), .y = y.on_device(tokens, 128), .quantise_x = true});
      const auto got = y.fetch();
      for (std::int64_t t = 0; t < tokens; ++t) {
        if (t == 2) continue;  // an infinity times what has either sign
        for (std::int64_t o = 0; o < 128; ++o) {
          EXPECT_EQ(std::isnan(got[static_cast<std::size_t>(t * 128 + o)]), t == 1) << t << " " << o;
        }
      }
    }
  }
}

}  // namespace
}  // namespace fathom::testing
