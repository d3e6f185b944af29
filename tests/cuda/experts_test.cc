// Mixture of experts: every format, one token and hundreds, uneven and lonely experts.
#include <algorithm>

#include "cuda/weights.h"

namespace fathom::testing {
namespace {

using ops::Carrier;
using Experts = OnDevice;

struct TwinExpert {
  TwinExpert(Format f, std::int64_t inner, std::int64_t d, std::uint32_t seed)
      : w1(f, inner, d, seed), w3(f, inner, d, seed + 1), w2(f, d, inner, seed + 2) {}
  ops::ExpertWeights on_host() const { return {w1.on_host(), w3.on_host(), w2.on_host()}; }
  ops::ExpertWeights on_device() const { return {w1.on_device(), w3.on_device(), w2.on_device()}; }
  TwinWeight w1, w3, w2;
};

struct Model {
  Model(Format routed_format, Format shared_format, std::int64_t n, std::int64_t inner_, std::int64_t d_)
      : inner(inner_), d(d_), shared(shared_format, inner_, d_, 9000) {
    for (std::int64_t e = 0; e < n; ++e) {
      routed.push_back(std::make_unique<TwinExpert>(routed_format, inner, d, static_cast<std::uint32_t>(10 * e + 1)));
      host_table.push_back(routed.back()->on_host());
      device_table_values.push_back(routed.back()->on_device());
    }
    device_table = Twin<ops::ExpertWeights>(device_table_values);
  }
  std::int64_t inner;
  std::int64_t d;
  std::vector<std::unique_ptr<TwinExpert>> routed;
  TwinExpert shared;
  std::vector<ops::ExpertWeights> host_table;
  std::vector<ops::ExpertWeights> device_table_values;
  Twin<ops::ExpertWeights> device_table;
};

struct Step {
  std::int64_t tokens;
  std::int64_t k;
  ops::Numerics numerics;
  int skew = 0;  // 0: even; 1: most tokens choose the lowest experts
};

// Ascending choices, distinct within a token.
std::vector<std::int32_t> choices(const Step& s, std::int64_t n, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::int32_t> all;
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    std::vector<std::int32_t> mine;
    while (static_cast<std::int64_t>(mine.size()) < s.k) {
      const bool low = s.skew == 1 && rng() % 4 != 0;
      const auto range = static_cast<std::uint32_t>(low ? s.k : n);
      const auto e = static_cast<std::int32_t>(rng() % range);
      if (std::find(mine.begin(), mine.end(), e) == mine.end()) mine.push_back(e);
    }
    std::sort(mine.begin(), mine.end());
    all.insert(all.end(), mine.begin(), mine.end());
  }
  return all;
}

std::vector<float> run(ops::Backend& backend, const Model& m, const Step& s, Twin<float>& x,
                       Twin<std::int32_t>& experts, Twin<float>& weights, float limit, bool on_device) {
  auto y = Twin<float>::poisoned(s.tokens * m.d);
  if (on_device) {
    EXPECT_TRUE(Device::get().backend->finish());  // `backend` may be another one
  }
  backend.experts({.x = on_device ? x.on_device(s.tokens, m.d) : x.on_host(s.tokens, m.d),
                   .routed = on_device ? m.device_table.device() : m.host_table.data(),
                   .n_routed = static_cast<std::int32_t>(m.host_table.size()),
                   .routed_like = on_device ? m.device_table_values.front() : m.host_table.front(),
                   .shared = on_device ? m.shared.on_device() : m.shared.on_host(),
                   .experts = on_device ? experts.on_device(s.tokens, s.k) : experts.on_host(s.tokens, s.k),
                   .weights = on_device ? weights.on_device(s.tokens, s.k) : weights.on_host(s.tokens, s.k),
                   .swiglu_limit = limit,
                   .quantise = s.numerics.quantise,
                   .y = on_device ? y.on_device(s.tokens, m.d) : y.on_host(s.tokens, m.d),
                   .carrier = s.numerics.carrier});
  EXPECT_TRUE(backend.finish());
  return on_device ? y.fetch() : y.host();
}

void expect_like_reference(ops::Backend& device, ops::Backend& reference, const Model& m, const Step& s,
                           float limit = 10) {
  Twin<float> x(normal(s.tokens * m.d, 31, 0.5F, s.numerics.carrier));
  Twin<std::int32_t> experts(choices(s, static_cast<std::int64_t>(m.host_table.size()), 32));
  Twin<float> weights(normal(s.tokens * s.k, 33, 0.5F));
  const auto got = run(device, m, s, x, experts, weights, limit, true);
  const auto want = run(reference, m, s, x, experts, weights, limit, false);
  double size = 0;
  for (const float v : want) size += std::fabs(v);
  size = want.empty() ? 0 : size / static_cast<double>(want.size());
  // A value of z on the border of its quantiser moves a whole row a little: then by an eighth of z's share of the sum.
  const bool rounded = s.numerics.quantise;
  const Tolerance t = s.numerics.carrier == Carrier::kBf16 ? Tolerance{size / 32, 1.0 / 64}
                                                           : Tolerance{rounded ? size / 100 : size * 2e-5, 1e-5};
  EXPECT_TRUE(close(got, want, t, rounded ? few(want.size()) : 0))
      << s.tokens << " tokens, k " << s.k << ", " << name_of(s.numerics) << ", skew " << s.skew << ", mean |y| "
      << size;
}

TEST_F(Experts, EveryFormatAndNumberOfTokens) {
  const std::pair<Format, Format> formats[] = {{kFp4, kFp8}, {kFp8, kFp8}, {kFp8F32, kFp8F32}, {kBf16, kBf16}};
  for (const auto& [routed, shared] : formats) {
    const Model m(routed, shared, 12, 128, 256);
    for (const ops::Numerics n : kAllNumerics) {
      for (const std::int64_t tokens : sizes({0, 1, 2, 9, 40, 150}, {1, 9, 40})) {
        expect_like_reference(device(), reference(), m, {tokens, 3, n});
      }
      expect_like_reference(device(), reference(), m, {150, 2, n, 1});
      expect_like_reference(device(), reference(), m, {5, 12, n});
    }
  }
}

TEST_F(Experts, SmallAndOddShapes) {
  for (const std::int64_t inner : {32, 96, 128}) {
    const Model m(kBf16, kBf16, 4, inner, 64);
    for (const std::int64_t tokens : {1, 30, 100})
      expect_like_reference(device(), reference(), m, {tokens, 2, ops::kFloat});
  }
  const Model wide(kF32, kBf16, 4, 32, 48);
  for (const std::int64_t tokens : {1, 30})
    expect_like_reference(device(), reference(), wide, {tokens, 2, ops::kFloat});
}

TEST_F(Experts, TheClampIsThere) {
  const Model m(kFp4, kFp8, 4, 128, 256);
  expect_like_reference(device(), reference(), m, {9, 2, ops::kFloat}, 0.01F);
  expect_like_reference(device(), reference(), m, {9, 2, ops::kFloat}, 0);
}

// A token's result is its own, to the bit: whoever shares its experts, and however many do.
TEST_F(Experts, ATokensResultIsItsOwn) {
  const Model m(kFp4, kFp8, 8, 256, 512);
  for (const ops::Numerics n : kAllNumerics) {
    const Step all{300, 3, n, 1};
    Twin<float> x(normal(all.tokens * m.d, 41, 0.5F, n.carrier));
    Twin<std::int32_t> experts(choices(all, 8, 42));
    Twin<float> weights(normal(all.tokens * all.k, 43, 0.5F));
    const auto whole = run(device(), m, all, x, experts, weights, 10, true);
    EXPECT_EQ(run(device(), m, all, x, experts, weights, 10, true), whole) << "again";
    for (const std::int64_t tokens : {1, 5, 64, 130}) {
      const auto some = run(device(), m, {tokens, 3, n}, x, experts, weights, 10, true);
      EXPECT_EQ(some, std::vector<float>(whole.begin(), whole.begin() + tokens * m.d)) << tokens << " " << name_of(n);
    }
  }
}

// What a warp sums alone has the bits of what eight warps sum together.
TEST_F(Experts, AloneAsInCompany) {
  const auto company = device_without({"experts.fp4.alone8"});
  const auto expect_same = [&](const Model& m, const Step& s, std::vector<std::int32_t> chosen) {
    Twin<float> x(normal(s.tokens * m.d, 51, 0.5F, s.numerics.carrier));
    Twin<std::int32_t> experts(std::move(chosen));
    Twin<float> weights(normal(s.tokens * s.k, 53, 0.5F));
    const auto alone = run(device(), m, s, x, experts, weights, 10, true);
    EXPECT_EQ(alone, run(*company, m, s, x, experts, weights, 10, true))
        << s.tokens << " tokens of " << m.d << " by " << m.inner << ", " << name_of(s.numerics);
  };
  // Odd numbers of blocks, of rows and of segments.
  for (const auto& [inner, d] : {std::pair<std::int64_t, std::int64_t>{256, 512}, {384, 640}, {128, 1152}}) {
    const Model m(kFp4, kFp8, 80, inner, d);
    for (const ops::Numerics n : {ops::kOfficialBf16, ops::kOfficial}) {
      for (const std::int64_t tokens : {9, 15, 16, 17, 31, 32, 33, 63, 64}) {
        const Step s{tokens, 6, n};
        expect_same(m, s, choices(s, 80, static_cast<std::uint32_t>(tokens)));
      }
      // Experts with 64 tokens, 9, 8, 1 and none.
      std::vector<std::int32_t> uneven;
      for (std::int32_t t = 0; t < 64; ++t) {
        for (const std::int32_t e : {0, t < 9 ? 1 : 10 + t % 20, t == 20 ? 79 : t < 8 ? 31 : 32 + t % 40})
          uneven.push_back(e);
      }
      expect_same(m, {64, 3, n}, uneven);
    }
  }
  const Model real(kFp4, kFp8, 6, 2048, 4096);
  const Step s{9, 3, ops::kOfficialBf16};
  expect_same(real, s, choices(s, 6, 7));
}

TEST_F(Experts, RealGeometry) {
  const Model m(kFp4, kFp8, 6, 2048, 4096);
  expect_like_reference(device(), reference(), m, {1, 6, ops::kOfficialBf16});
  expect_like_reference(device(), reference(), m, {2, 3, ops::kOfficial});
}

}  // namespace
}  // namespace fathom::testing
