// Products of packed weights with many tokens have, token by token, the bits of those with few.
#include <algorithm>

#include "cuda/weights.h"

namespace fathom::testing {
namespace {

using ops::Carrier;
using CodesMany = OnDevice;

constexpr std::int64_t kAtOnce = 8;  // tokens, for the kernels for few

struct Shape {
  Format format;
  std::int64_t rows;
  std::int64_t cols;
};

// One and eight segments, odd numbers of tiles of rows, items of 1 to 128 tokens.
TEST_F(CodesMany, LinearAsWithFewTokens) {
  for (const Shape& s : {Shape{kFp8, 8320, 384}, {kFp8, 640, 4096}, {kFp8F32, 384, 1024}, {kFp4, 384, 2048}, {kFp4, 8192, 128}}) {
    const TwinWeight w(s.format, s.rows, s.cols, 5, /*quantised_inputs=*/true);
    for (const std::int64_t tokens : sizes({65, 127, 128, 129, 180, 500}, {65, 129, 180})) {
      Twin<float> x(normal(tokens * s.cols, 6, 1, Carrier::kBf16));
      const auto y = Twin<float>::poisoned(tokens * s.rows);
      const auto want = Twin<float>::poisoned(tokens * s.rows);
      const auto run = [&](const Twin<float>& to, std::int64_t first, std::int64_t n) {
        device().linear({.x = x.on_device(tokens, s.cols).slice(first, n),
                         .w = w.on_device(),
                         .y = to.on_device(tokens, s.rows).slice(first, n),
                         .quantise_x = true,
                         .x_carrier = Carrier::kBf16});
      };
      run(y, 0, tokens);
      for (std::int64_t t = 0; t < tokens; t += kAtOnce) run(want, t, std::min(kAtOnce, tokens - t));
      EXPECT_TRUE(device().finish());
      EXPECT_TRUE(y.fetch() == want.fetch()) << name_of(s.format) << " [" << s.rows << ", " << s.cols << "] x " << tokens;
    }
  }
}

struct TwinExpert {
  TwinExpert(Format f, std::int64_t inner, std::int64_t d, std::uint32_t seed)
      : w1(f, inner, d, seed, true), w3(f, inner, d, seed + 1, true), w2(f, d, inner, seed + 2, true) {}
  ops::ExpertWeights on_device() const { return {w1.on_device(), w3.on_device(), w2.on_device()}; }
  TwinWeight w1, w3, w2;
};

// Experts with more than an item, with one token and with none; odd numbers of tiles of rows.
TEST_F(CodesMany, ExpertsAsWithFewTokens) {
  constexpr std::int64_t kInner = 384;
  constexpr std::int64_t kInputs = 640;
  constexpr std::int64_t kChosen = 2;
  constexpr std::int32_t kExperts = 7;
  for (const Format f : {kFp4, kFp8}) {
    std::vector<TwinExpert> experts;
    std::vector<ops::ExpertWeights> table;
    for (std::uint32_t e = 0; e < kExperts; ++e) {
      experts.emplace_back(f, kInner, kInputs, 10 * e);
      table.push_back(experts.back().on_device());
    }
    const TwinExpert shared(kFp8, kInner, kInputs, 99);
    const Twin<ops::ExpertWeights> on_device(table);
    for (const std::int64_t tokens : sizes({100, 193, 500}, {100})) {
      std::vector<std::int32_t> chosen;
      for (std::int64_t t = 0; t < tokens; ++t) {
        chosen.push_back(t == 50 ? 3 : t % 8 == 0 ? 1 : 0);
        chosen.push_back(t % 3 == 0 ? 4 : 5);
      }
      Twin<float> x(normal(tokens * kInputs, 6, 1, Carrier::kBf16));
      Twin<std::int32_t> choices(chosen);
      Twin<float> weights(normal(tokens * kChosen, 7));
      const auto y = Twin<float>::poisoned(tokens * kInputs);
      const auto want = Twin<float>::poisoned(tokens * kInputs);
      const auto run = [&](const Twin<float>& to, std::int64_t first, std::int64_t n) {
        device().experts({.x = x.on_device(tokens, kInputs).slice(first, n),
                          .routed = on_device.device(),
                          .n_routed = kExperts,
                          .routed_like = table.front(),
                          .shared = shared.on_device(),
                          .experts = choices.on_device(tokens, kChosen).slice(first, n),
                          .weights = weights.on_device(tokens, kChosen).slice(first, n),
                          .swiglu_limit = 10,
                          .quantise = true,
                          .y = to.on_device(tokens, kInputs).slice(first, n),
                          .carrier = Carrier::kBf16});
      };
      run(y, 0, tokens);
      for (std::int64_t t = 0; t < tokens; t += kAtOnce) run(want, t, std::min(kAtOnce, tokens - t));
      EXPECT_TRUE(device().finish());
      EXPECT_TRUE(y.fetch() == want.fetch()) << name_of(f) << ", " << tokens << " tokens";
    }
  }
}

}  // namespace
}  // namespace fathom::testing
