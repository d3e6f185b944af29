// The matrix product over every weight format, edge shapes and numbers of tokens.
#include <limits>

#include "cuda/weights.h"

namespace fathom::testing {
namespace {

using ops::Carrier;
using Linear = OnDevice;

struct Case {
  Format format;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t tokens;
  std::int32_t groups = 1;
  bool quantise = false;
  Carrier x_carrier = Carrier::kF32;
  Carrier carrier = Carrier::kF32;
};

void expect_like_reference(ops::Backend& device, ops::Backend& reference, const Case& c) {
  const TwinWeight w(c.format, c.rows, c.cols, static_cast<std::uint32_t>(c.rows * 7 + c.cols));
  Twin<float> x(normal(c.tokens * c.groups * c.cols, static_cast<std::uint32_t>(c.cols + c.tokens), 1, c.x_carrier));
  auto y = Twin<float>::poisoned(c.tokens * c.rows);
  EXPECT_TRUE(Device::get().backend->finish());  // the copies are its, and `device` may be another
  device.linear({.x = x.on_device(c.tokens, c.groups * c.cols),
                 .w = w.on_device(),
                 .y = y.on_device(c.tokens, c.rows),
                 .groups = c.groups,
                 .quantise_x = c.quantise,
                 .x_carrier = c.x_carrier,
                 .carrier = c.carrier});
  EXPECT_TRUE(device.finish());
  reference.linear({.x = x.on_host(c.tokens, c.groups * c.cols),
                    .w = w.on_host(),
                    .y = y.on_host(c.tokens, c.rows),
                    .groups = c.groups,
                    .quantise_x = c.quantise,
                    .x_carrier = c.x_carrier,
                    .carrier = c.carrier});
  const auto got = y.fetch();
  // An f32 sum may lose 2^-20 of the sum of magnitudes, one of F32 weights (9 products for each) twice that.
  const double loss = c.format.dtype == DType::kF32 ? 0x1p-19 : 0x1p-20;
  std::vector<float> row(static_cast<std::size_t>(c.cols));
  const std::int64_t group_rows = c.rows / c.groups;
  std::size_t bad = 0;
  double worst = 0;
  for (std::int64_t o = 0; o < c.rows; ++o) {
    ops::dequantise_row(w.on_host(), o, row.data());
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      double magnitude = 0;
      const float* xt = &x.host()[static_cast<std::size_t>(t * c.groups * c.cols + o / group_rows * c.cols)];
      for (std::int64_t i = 0; i < c.cols; ++i)
        magnitude += std::fabs(double{row[static_cast<std::size_t>(i)]} * double{xt[i]});
      const auto at = static_cast<std::size_t>(t * c.rows + o);
      const double want = y.host()[at];
      double allowed = magnitude * loss;
      if (c.carrier == Carrier::kBf16) allowed += std::fabs(want) / 128;
      const double excess = std::fabs(double{got[at]} - want) / allowed;
      if (!(excess <= 1)) ++bad;
      worst = std::max(worst, std::isnan(excess) ? 1e9 : excess);
    }
  }
  EXPECT_EQ(bad, 0U) << name_of(c.format) << " [" << c.rows << ", " << c.cols << "] x " << c.tokens << " groups "
                     << c.groups << " quantise " << c.quantise << " x "
                     << (c.x_carrier == Carrier::kBf16 ? "bf16" : "f32") << ": worst " << worst
                     << " of what is allowed";
}

// What a kernel may have of shared memory is the process's: a second backend that needs less must not take it away.
TEST_F(Linear, ASecondBackendTakesNothingAway) {
  const Case large{kFp8, 64, 4096, 8, 1, true, Carrier::kBf16, Carrier::kBf16};
  const Case small{kFp8, 64, 128, 1, 1, true, Carrier::kBf16, Carrier::kBf16};
  expect_like_reference(device(), reference(), large);
  const auto second = device_without({});
  expect_like_reference(*second, reference(), small);
  expect_like_reference(device(), reference(), large);
}

TEST_F(Linear, EveryFormatAndNumberOfTokens) {
  for (const Format f : {kF32, kBf16, kFp8, kFp8F32, kFp4, kFp4F32}) {
    const bool quantised = f.dtype == DType::kF8E4M3 || f.dtype == DType::kFp4x2;
    for (const std::int64_t tokens : {0, 1, 2, 7, 8, 9, 17, 31, 32, 33, 64, 65, 97, 100, 129, 300}) {
      expect_like_reference(device(), reference(), {f, 96, 512, tokens, 1, quantised, Carrier::kF32, Carrier::kF32});
      expect_like_reference(device(), reference(), {f, 96, 512, tokens, 1, false, Carrier::kBf16, Carrier::kBf16});
      expect_like_reference(device(), reference(), {f, 96, 512, tokens, 1, false, Carrier::kF32, Carrier::kF32});
    }
  }
}

TEST_F(Linear, EdgesOfRowsAndColumns) {
  for (const std::int64_t rows : {1, 6, 15, 16, 17, 31, 33, 127, 128, 129, 200}) {
    for (const std::int64_t tokens : {1, 9, 70}) {
      for (const Format f : {kBf16, kFp8, kFp4}) {
        expect_like_reference(device(), reference(), {f, rows, 256, tokens, 1, f.dtype != DType::kBf16});
      }
    }
  }
  for (const std::int64_t tokens : {1, 9, 70}) {
    for (const std::int64_t cols : {1, 3, 16, 17, 32, 64, 96, 100, 112, 127, 128, 144, 160, 1000}) {
      expect_like_reference(device(), reference(), {kBf16, 24, cols, tokens});
      expect_like_reference(device(), reference(), {kF32, 24, cols, tokens});
    }
    for (const std::int64_t cols : {32, 64, 96, 160})
      expect_like_reference(device(), reference(), {kFp4, 24, cols, tokens, 1, true});
    expect_like_reference(device(), reference(), {kFp8, 24, 144, tokens, 1, true});
  }
}

TEST_F(Linear, EveryNumberOfSegments) {
  for (const std::int64_t cols : {896, 1024, 1536, 2048, 3072, 4096, 7168, 8192}) {
    for (const Format f : {kBf16, kFp8, kFp4}) {
      for (const std::int64_t tokens : {1, 20, 66}) {
        expect_like_reference(device(), reference(),
                              {f, 40, cols, tokens, 1, f.dtype != DType::kBf16, Carrier::kBf16, Carrier::kBf16});
      }
    }
  }
}

TEST_F(Linear, Groups) {
  for (const Format f : {kBf16, kFp8}) {
    for (const std::int64_t tokens : {0, 1, 9, 70}) {
      expect_like_reference(device(), reference(),
                            {f, 8 * 128, 1024, tokens, 8, false, Carrier::kBf16, Carrier::kBf16});
      expect_like_reference(device(), reference(), {f, 2 * 64, 128, tokens, 2});
      expect_like_reference(device(), reference(),
                            {f, 2 * 40, 128, tokens, 2});  // groups that end inside a scale block
    }
  }
}

// A token's outputs are its own, to the bit: not changed by the others, nor by which kernel their number chose.
TEST_F(Linear, ATokensOutputsAreItsOwn) {
  for (const Format f : {kBf16, kFp8, kFp4}) {
    for (const std::int64_t cols : sizes({128, 1024, 2048, 4096}, {1024})) {
      for (const Carrier x_carrier : {Carrier::kF32, Carrier::kBf16}) {
        const std::int64_t rows = 144;  // more than a tile of any kernel
        const TwinWeight w(f, rows, cols, 5);
        Twin<float> x(normal(200 * cols, 6, 1, x_carrier));
        const auto run = [&](std::int64_t first, std::int64_t tokens) {
          const auto y = Twin<float>::poisoned(tokens * rows);
          device().linear({.x = x.on_device(200, cols).slice(first, tokens),
                           .w = w.on_device(),
                           .y = y.on_device(tokens, rows),
                           .x_carrier = x_carrier});
          return y.fetch();
        };
        const auto all = run(0, 200);
        for (const std::int64_t tokens : sizes({1, 8, 9, 32, 33, 64, 65, 97, 128, 129}, {1, 9, 33, 65})) {
          const auto some = run(3, tokens);
          const std::vector<float> want(all.begin() + 3 * rows, all.begin() + (3 + tokens) * rows);
          EXPECT_EQ(some, want) << name_of(f) << " " << cols << " inputs, " << tokens << " tokens";
        }
        EXPECT_EQ(run(0, 200), all) << "again";
      }
    }
  }
}

// The kernel that keeps its inputs has the bits of those that stream them: groups, odd numbers of blocks and of rows.
TEST_F(Linear, ResidentAsStreamed) {
  const auto streamed = device_without({"linear.bf16.resident64", "linear.fp8.resident64"});
  struct Shape {
    Format format;
    std::int64_t rows;
    std::int64_t cols;
    std::int32_t groups = 1;
  };
  for (const Shape& s : {Shape{kFp8, 4096, 8192}, {kFp8, 8 * 192, 4096, 8}, {kFp8, 2 * 40, 1152, 2}, {kFp8F32, 300, 896},
                         {kFp8, 2048, 1024}, {kFp8, 30000, 384}, {kBf16, 17000, 640}, {kBf16, 160, 4096}, {kBf16, 1, 7168}}) {
    const TwinWeight w(s.format, s.rows, s.cols, 5);
    Twin<float> x(normal(64 * s.groups * s.cols, 6, 1, Carrier::kBf16));
    for (const std::int64_t tokens : {9, 15, 16, 17, 31, 32, 33, 63, 64}) {
      const auto run = [&](ops::Backend& backend) {
        const auto y = Twin<float>::poisoned(tokens * s.rows);
        EXPECT_TRUE(device().finish());  // which may be another one
        backend.linear({.x = x.on_device(64, s.groups * s.cols).slice(0, tokens),
                        .w = w.on_device(),
                        .y = y.on_device(tokens, s.rows),
                        .groups = s.groups,
                        .quantise_x = s.format.dtype != DType::kBf16,
                        .x_carrier = Carrier::kBf16});
        EXPECT_TRUE(backend.finish());
        return y.fetch();
      };
      EXPECT_TRUE(run(device()) == run(*streamed))
          << name_of(s.format) << " [" << s.rows << ", " << s.cols << "] " << s.groups << " groups, " << tokens << " tokens";
    }
  }
}

// Several of both formats at once, as a layer has them.
TEST_F(Linear, ResidentTogether) {
  const auto streamed = device_without({"linear.bf16.resident64", "linear.fp8.resident64"});
  const std::int64_t cols = 1024;
  std::vector<TwinWeight> weights;
  for (const auto& [format, rows] : {std::pair<Format, std::int64_t>{kFp8, 1536}, {kBf16, 64}, {kFp8, 100}, {kBf16, 1024},
                                     {kFp8F32, 64}, {kBf16, 3}}) {
    weights.emplace_back(format, rows, cols, static_cast<std::uint32_t>(rows));
  }
  Twin<float> x(normal(64 * cols, 6, 1, Carrier::kBf16));
  for (const std::int64_t tokens : {9, 17, 64}) {
    const auto run = [&](ops::Backend& backend) {
      std::vector<Twin<float>> y;
      std::vector<ops::Linear> all;
      for (const TwinWeight& w : weights) {
        const ops::Weight device_w = w.on_device();
        y.push_back(Twin<float>::poisoned(tokens * device_w.rows));
        all.push_back({.x = x.on_device(64, cols).slice(0, tokens),
                       .w = device_w,
                       .y = y.back().on_device(tokens, device_w.rows),
                       .quantise_x = device_w.quantised(),
                       .x_carrier = Carrier::kBf16});
      }
      EXPECT_TRUE(device().finish());  // which may be another one
      backend.linears(all);
      EXPECT_TRUE(backend.finish());
      std::vector<float> results;
      for (const auto& one : y) {
        const auto values = one.fetch();
        results.insert(results.end(), values.begin(), values.end());
      }
      return results;
    };
    EXPECT_TRUE(run(device()) == run(*streamed)) << tokens;
  }
}

TEST_F(Linear, NanAndInfinityStayInTheirRow) {
  for (const Format f : {kBf16, kFp8, kFp4}) {
    for (const bool quantise : {false, true}) {
      if (quantise && f.dtype == DType::kBf16) continue;
      for (const std::int64_t tokens : {3, 40, 100}) {
        const TwinWeight w(f, 32, 256, 8);
        std::vector<float> values = normal(tokens * 256, 9);
        values[256 + 100] = std::numeric_limits<float>::quiet_NaN();
        values[2 * 256 + 7] = std::numeric_limits<float>::infinity();
        Twin<float> x(values);
        const auto y = Twin<float>::poisoned(tokens * 32);
        device().linear(
            {.x = x.on_device(tokens, 256), .w = w.on_device(), .y = y.on_device(tokens, 32), .quantise_x = quantise});
        const auto got = y.fetch();
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t o = 0; o < 32; ++o) {
            const float v = got[static_cast<std::size_t>(t * 32 + o)];
            if (t == 2) continue;  // an infinity times what has either sign
            EXPECT_EQ(std::isnan(v), t == 1) << t << " " << o;
          }
        }
      }
    }
  }
}

TEST_F(Linear, RealGeometries) {
  expect_like_reference(device(), reference(), {kFp8, 1024, 4096, 1, 1, true, Carrier::kBf16, Carrier::kBf16});
  expect_like_reference(device(), reference(), {kFp8, 512, 4096, 3, 1, true, Carrier::kBf16, Carrier::kBf16});
  expect_like_reference(device(), reference(), {kBf16, 256, 4096, 5, 1, false, Carrier::kBf16, Carrier::kF32});
  expect_like_reference(device(), reference(), {kFp8, 1024, 4096, 70, 1, true, Carrier::kBf16, Carrier::kBf16});
}

}  // namespace
}  // namespace fathom::testing
