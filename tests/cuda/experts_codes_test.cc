// Packed experts (ops/moe/experts_codes.cuh): the bits of the plain kernel for every number of tokens and any choices.
#include <algorithm>

#include "cuda/weights.h"

namespace fathom::testing {
namespace {

using ops::Carrier;
using ExpertsCodes = OnDevice;

struct PackedExpert {
  PackedExpert(Format f, std::int64_t inner, std::int64_t d, std::uint32_t seed)
      : w1(f, inner, d, seed, true), w3(f, inner, d, seed + 1, true), w2(f, d, inner, seed + 2, true) {}
  ops::ExpertWeights on_host() const { return {w1.on_host(), w3.on_host(), w2.on_host()}; }
  ops::ExpertWeights on_device() const { return {w1.on_device(), w3.on_device(), w2.on_device()}; }
  TwinWeight w1, w3, w2;
};

struct PackedModel {
  PackedModel(std::int64_t n, std::int64_t inner_, std::int64_t d_, Format shared_format = kFp8)
      : inner(inner_), d(d_), shared(shared_format, inner_, d_, 9000) {
    for (std::int64_t e = 0; e < n; ++e) {
      routed.push_back(std::make_unique<PackedExpert>(kFp4, inner, d, static_cast<std::uint32_t>(10 * e + 1)));
      on_host.push_back(routed.back()->on_host());
      on_device.push_back(routed.back()->on_device());
    }
    table = Twin<ops::ExpertWeights>(on_device);
  }
  std::int64_t inner;
  std::int64_t d;
  std::vector<std::unique_ptr<PackedExpert>> routed;
  PackedExpert shared;
  std::vector<ops::ExpertWeights> on_host;
  std::vector<ops::ExpertWeights> on_device;
  Twin<ops::ExpertWeights> table;
};

// Inputs of `tokens` tokens, and the choices of each.
struct PackedStep {
  PackedStep(const PackedModel& m, std::int64_t tokens_, std::vector<std::int32_t> chosen)
      : tokens(tokens_),
        k(static_cast<std::int64_t>(chosen.size()) / tokens_),
        x(normal(tokens_ * m.d, 31, 0.5F, Carrier::kBf16)),
        weights(normal(tokens_ * k, 33, 0.5F)),
        experts(std::move(chosen)) {}
  std::int64_t tokens;
  std::int64_t k;
  Twin<float> x;
  Twin<float> weights;
  Twin<std::int32_t> experts;
};

// Tokens [first, first + n) of the step.
std::vector<float> run(ops::Backend& backend, const PackedModel& m, PackedStep& s, bool here, Carrier carrier,
                       std::int64_t first, std::int64_t n) {
  auto y = Twin<float>::poisoned(n * m.d);
  backend.experts(
      {.x = (here ? s.x.on_device(s.tokens, m.d) : s.x.on_host(s.tokens, m.d)).slice(first, n),
       .routed = here ? m.table.device() : m.on_host.data(),
       .n_routed = static_cast<std::int32_t>(m.on_host.size()),
       .routed_like = here ? m.on_device.front() : m.on_host.front(),
       .shared = here ? m.shared.on_device() : m.shared.on_host(),
       .experts = (here ? s.experts.on_device(s.tokens, s.k) : s.experts.on_host(s.tokens, s.k)).slice(first, n),
       .weights = (here ? s.weights.on_device(s.tokens, s.k) : s.weights.on_host(s.tokens, s.k)).slice(first, n),
       .swiglu_limit = 10,
       .quantise = true,
       .y = here ? y.on_device(n, m.d) : y.on_host(n, m.d),
       .carrier = carrier});
  EXPECT_TRUE(backend.finish());
  return here ? y.fetch() : y.host();
}

// k of n experts for each token, ascending.
std::vector<std::int32_t> random_choices(std::int64_t tokens, std::int64_t k, std::int32_t n, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::int32_t> all;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int32_t e = 0; e < n; ++e) ids[static_cast<std::size_t>(e)] = e;
    std::shuffle(ids.begin(), ids.end(), rng);
    std::sort(ids.begin(), ids.begin() + k);
    all.insert(all.end(), ids.begin(), ids.begin() + k);
  }
  return all;
}

// More than 64 tokens go another way, so the first of 72 must be what few of them give alone.
void expect_own_results(ops::Backend& device, const PackedModel& m, const std::vector<std::int32_t>& chosen,
                        const std::vector<std::int64_t>& few, Carrier carrier) {
  constexpr std::int64_t kMany = 72;
  PackedStep s(m, kMany, chosen);
  const auto whole = run(device, m, s, true, carrier, 0, kMany);
  for (const std::int64_t n : few) {
    for (const std::int64_t first : {std::int64_t{0}, kMany - n}) {
      const std::vector<float> want(whole.begin() + first * m.d, whole.begin() + (first + n) * m.d);
      EXPECT_TRUE(run(device, m, s, true, carrier, first, n) == want)
          << n << " tokens from " << first << " of " << m.d << " by " << m.inner << ", "
          << (carrier == Carrier::kBf16 ? "BF16" : "F32");
    }
  }
}

TEST_F(ExpertsCodes, ATokensResultIsItsOwn) {
  const auto few = sizes({1, 2, 7, 8, 9, 16, 17, 33, 63, 64}, {1, 9});
  // Odd numbers of blocks; inputs in one block.
  for (const auto& [inner, d] : {std::pair<std::int64_t, std::int64_t>{256, 512}, {384, 640}, {128, 1152}}) {
    const PackedModel m(20, inner, d, inner == 256 ? kFp8F32 : kFp8);
    for (const Carrier carrier : {Carrier::kBf16, Carrier::kF32}) {
      expect_own_results(device(), m, random_choices(72, 6, 20, 1), few, carrier);
      std::vector<std::int32_t> same;  // experts of 64 tokens, 9, some and none
      for (std::int32_t t = 0; t < 72; ++t) same.insert(same.end(), {0, t < 9 ? 1 : 3 + t % 10, 13 + t % 4});
      expect_own_results(device(), m, same, few, carrier);
    }
  }
}

TEST_F(ExpertsCodes, RealGeometry) {
  const PackedModel m(24, 2048, 4096);
  expect_own_results(device(), m, random_choices(72, 6, 24, 2), sizes({1, 2, 8, 9, 64}, {1}), Carrier::kBf16);
}

TEST_F(ExpertsCodes, LikeTheReference) {
  const PackedModel m(12, 256, 512);
  for (const std::int64_t tokens : {1, 5, 40}) {
    PackedStep s(m, tokens, random_choices(tokens, 6, 12, 3));
    const auto got = run(device(), m, s, true, Carrier::kBf16, 0, tokens);
    const auto want = run(reference(), m, s, false, Carrier::kBf16, 0, tokens);
    double size = 0;
    for (const float v : want) size += std::fabs(v) / static_cast<double>(want.size());
    // A value of z on the border of its quantiser moves a whole row a little, and sums of FP8 tensor units move more of
    // them.
    EXPECT_TRUE(close(got, want, {size / 32, 1.0 / 64}, want.size() / 200)) << tokens;
  }
}

}  // namespace
}  // namespace fathom::testing
