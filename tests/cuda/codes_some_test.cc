// Products of packed FP8 weights for 9 to 64 tokens: the bits of eight tokens at a time, whatever the shape.
#include "cuda/weights.h"

namespace fathom::testing {
namespace {

using CodesSome = OnDevice;
using ops::Carrier;

// Products of the same x, in one call.
std::vector<std::vector<float>> run_together(ops::Backend& device, const std::vector<TwinWeight>& weights,
                                             const Mat<const float>& x, Carrier carrier) {
  std::vector<Twin<float>> y;
  std::vector<ops::Linear> all;
  for (const TwinWeight& w : weights) {
    const ops::Weight on_device = w.on_device();
    y.push_back(Twin<float>::poisoned(x.rows * on_device.rows));
    all.push_back({.x = x,
                   .w = on_device,
                   .y = y.back().on_device(x.rows, on_device.rows),
                   .quantise_x = true,
                   .carrier = carrier});
  }
  device.linears(all);
  EXPECT_TRUE(device.finish());
  std::vector<std::vector<float>> results;
  for (const auto& one : y) results.push_back(one.fetch());
  return results;
}

struct Shape {
  std::vector<std::int64_t> rows;  // of products of one x
  std::int64_t cols;
  Format format = kFp8;
};

void expect_as_eight_at_a_time(ops::Backend& device, const Shape& s) {
  constexpr std::int64_t kMost = 64;
  std::vector<TwinWeight> weights;
  for (const std::int64_t rows : s.rows) {
    weights.emplace_back(s.format, rows, s.cols, static_cast<std::uint32_t>(rows + s.cols), true);
  }
  Twin<float> x(normal(kMost * s.cols, 6));
  std::vector<std::vector<float>> want(weights.size());
  for (std::int64_t t = 0; t < kMost; t += 8) {
    const auto eight = run_together(device, weights, x.on_device(kMost, s.cols).slice(t, 8), Carrier::kF32);
    for (std::size_t i = 0; i < want.size(); ++i) want[i].insert(want[i].end(), eight[i].begin(), eight[i].end());
  }
  for (const std::int64_t tokens : sizes({9, 15, 16, 17, 31, 33, 64}, {9, 33})) {
    const auto got = run_together(device, weights, x.on_device(kMost, s.cols).slice(0, tokens), Carrier::kF32);
    for (std::size_t i = 0; i < want.size(); ++i) {
      std::size_t bad = 0;
      for (std::size_t k = 0; k < got[i].size(); ++k) bad += std::memcmp(&got[i][k], &want[i][k], sizeof(float)) != 0;
      EXPECT_EQ(bad, 0U) << "[" << s.rows[i] << ", " << s.cols << "] x " << tokens;
    }
  }
}

TEST_F(CodesSome, OneSegment) {
  expect_as_eight_at_a_time(device(), {{128}, 128});
  expect_as_eight_at_a_time(device(), {{640}, 896, kFp8F32});
  if (small_sizes()) return;
  expect_as_eight_at_a_time(device(), {{40960}, 128});  // several tiles a warpgroup
  expect_as_eight_at_a_time(device(), {{16384, 8320}, 1536});
}

TEST_F(CodesSome, SegmentsOfACluster) {
  expect_as_eight_at_a_time(device(), {{384}, 1152});  // 4 and 5 blocks
  expect_as_eight_at_a_time(device(), {{128}, 2048});
  expect_as_eight_at_a_time(device(), {{128}, 7168, kFp8F32});
  if (small_sizes()) return;
  expect_as_eight_at_a_time(device(), {{4096}, 8192});
  expect_as_eight_at_a_time(device(), {{6272}, 4096});  // more than two turns
  expect_as_eight_at_a_time(device(), {{256}, 24576});  // more inputs than fit for 64 tokens
}

TEST_F(CodesSome, ProductsOfOneInput) {
  expect_as_eight_at_a_time(device(), {{1024, 512}, 4096});
  expect_as_eight_at_a_time(device(), {{256, 128, 384}, 1152, kFp8F32});
  expect_as_eight_at_a_time(device(), {{128, 8192, 256}, 1024});  // one has a single segment
}

TEST_F(CodesSome, RoundsToTheCarrier) {
  std::vector<TwinWeight> weights;
  weights.emplace_back(kFp8, 128, 1024, 3, true);
  Twin<float> x(normal(20 * 1024, 6));
  const auto wide = run_together(device(), weights, x.on_device(20, 1024), Carrier::kF32);
  const auto narrow = run_together(device(), weights, x.on_device(20, 1024), Carrier::kBf16);
  for (std::size_t i = 0; i < wide[0].size(); ++i) ASSERT_EQ(narrow[0][i], rounded(wide[0][i], Carrier::kBf16)) << i;
}

}  // namespace
}  // namespace fathom::testing
