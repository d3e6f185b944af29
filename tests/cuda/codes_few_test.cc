// Products of packed FP8 weights for 1 to 8 tokens: lists of them, beside BF16 ones, have the bits of one product for more
// tokens.
#include <cstring>
#include <string>

#include "cuda/weights.h"

namespace fathom::testing {
namespace {

using CodesFew = OnDevice;

constexpr std::int64_t kMany = 16;  // tokens, more than few
constexpr std::int64_t kFew = 8;

struct Shape {
  std::int64_t cols;
  std::vector<std::int64_t> rows;  // of each product
  Format format = kFp8;
};

std::vector<float> first_tokens(const std::vector<float>& all, std::int64_t first, std::int64_t n, std::int64_t rows) {
  return {all.begin() + first * rows, all.begin() + (first + n) * rows};
}

// Where the first results differ, or nothing.
std::string difference(const std::vector<float>& got, const std::vector<float>& want, std::int64_t rows) {
  std::string text;
  std::size_t n = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(float)) == 0 || ++n > 4) continue;
    const auto at = static_cast<std::int64_t>(i);
    text += "token " + std::to_string(at / rows) + " row " + std::to_string(at % rows) + ": " + std::to_string(got[i]) +
            ", expected " + std::to_string(want[i]) + "; ";
  }
  return n == 0 ? "" : text + std::to_string(n) + " differ";
}

// Rows [first, first + tokens) of x times every weight at once.
std::vector<std::vector<float>> products(ops::Backend& device, const std::vector<TwinWeight>& weights, Mat<const float> x) {
  std::vector<Twin<float>> y;
  std::vector<ops::Linear> list;
  for (const TwinWeight& w : weights) {
    const ops::Weight on_device = w.on_device();
    y.push_back(Twin<float>::poisoned(x.rows * on_device.rows));
    list.push_back({.x = x,
                    .w = on_device,
                    .y = y.back().on_device(x.rows, on_device.rows),
                    .quantise_x = on_device.quantised(),
                    .x_carrier = ops::Carrier::kBf16});
  }
  device.linears(list);
  std::vector<std::vector<float>> got;
  for (const auto& each : y) got.push_back(each.fetch());
  return got;
}

// One segment and several, of whole and of uneven numbers of blocks; one tile of rows, and more than there are blocks.
TEST_F(CodesFew, ListsHaveTheBitsOfManyTokens) {
  const Shape shapes[] = {{128, {128}},
                          {512, {128, 8320, 256}, kFp8F32},
                          {1024, {8192, 8448}},
                          {1024, {128, 384}},
                          {1152, {9088, 128}},
                          {2176, {256, 128, 128, 384, 128, 128, 256, 128, 128}},
                          {4096, {4480, 512}, kFp8F32},
                          {4224, {128, 256}},
                          {8192, {4096}}};
  for (const Shape& s : shapes) {
    std::vector<TwinWeight> weights;
    for (const std::int64_t rows : s.rows) {
      weights.emplace_back(s.format, rows, s.cols, static_cast<std::uint32_t>(rows + s.cols), true);
    }
    Twin<float> x(normal(kMany * s.cols, static_cast<std::uint32_t>(s.cols)));
    const auto many = products(device(), weights, x.on_device(kMany, s.cols));
    for (std::int64_t tokens = 1; tokens <= kFew; ++tokens) {
      const auto few = products(device(), weights, x.on_device(kMany, s.cols).slice(2, tokens));
      for (std::size_t i = 0; i < few.size(); ++i) {
        EXPECT_EQ(difference(few[i], first_tokens(many[i], 2, tokens, s.rows[i]), s.rows[i]), "")
            << "product " << i << " of [" << s.rows[i] << ", " << s.cols << "], " << tokens << " tokens";
      }
    }
  }
}

TEST_F(CodesFew, BesideBf16) {
  for (const std::int64_t cols : {256, 1024, 4096}) {
    std::vector<TwinWeight> weights;
    weights.emplace_back(kBf16, 320, cols, 1);
    weights.emplace_back(kFp8, 512, cols, 2, true);
    weights.emplace_back(kFp8, 1024, cols, 3, true);
    weights.emplace_back(kBf16, 1040, cols, 4);
    Twin<float> x(normal(kMany * cols, 5, 1, ops::Carrier::kBf16));
    const auto many = products(device(), weights, x.on_device(kMany, cols));
    for (std::int64_t tokens = 1; tokens <= kFew; ++tokens) {
      const auto few = products(device(), weights, x.on_device(kMany, cols).slice(5, tokens));
      for (std::size_t i = 0; i < few.size(); ++i) {
        const std::int64_t rows = weights[i].on_device().rows;
        EXPECT_EQ(difference(few[i], first_tokens(many[i], 5, tokens, rows), rows), "") << i << " of " << cols << ", " << tokens << " tokens";
      }
    }
  }
}

}  // namespace
}  // namespace fathom::testing
