#include "ops/sampling/choose.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/sampling/noise.h"
#include "ops/test_support.h"

namespace fathom::ops::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

ChoiceRule greedy() { return {.temperature = 0}; }
ChoiceRule race(float temperature, std::uint64_t seed = 1, std::int64_t index = 0) {
  return {.key = noise::key(seed, index), .temperature = temperature};
}

std::vector<std::int32_t> choose(Backend& backend, const Rows& logits, const std::vector<ChoiceRule>& rules) {
  std::vector<std::int32_t> chosen(rules.size(), 12345);
  backend.choose({.logits = logits.mat(), .rules = rules.data(), .chosen = chosen.data()});
  return chosen;
}

Rows rows_of(const std::vector<std::vector<float>>& rows) {
  Rows r(static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(rows.at(0).size()));
  for (std::size_t t = 0; t < rows.size(); ++t) {
    for (std::size_t i = 0; i < rows[t].size(); ++i)
      r.at(static_cast<std::int64_t>(t), static_cast<std::int64_t>(i)) = rows[t][i];
  }
  return r;
}

TEST(Choose, WhatTheRulesSay) {
  const auto ref = make_ref_backend();
  const float nan = kPoison;
  const Rows logits = rows_of({{1, 7, -kInf, 7, 6.5F},
                               {-0.0F, 0.0F, -0.0F, -1, -1},
                               {-1, 0.0F, -0.0F, -1, -1},
                               {-kInf, -kInf, -kInf, -kInf, -kInf},
                               {1, nan, 3, 4, 5},
                               {1, 2, kInf, 4, 5},
                               {-kInf, -kInf, -kInf, -kInf, -3},
                               {1, 7, -kInf, 7, 6.5F}});
  std::vector<ChoiceRule> rules(8, greedy());
  rules[7] = {};
  EXPECT_EQ(choose(*ref, logits, rules), (std::vector<std::int32_t>{1, 0, 1, -1, -1, -1, 4, -1}));
  std::fill_n(rules.begin(), 7, race(1e-30F));  // cold enough to be greedy, but for the equal ones
  const auto cold = choose(*ref, logits, rules);
  EXPECT_TRUE(cold[0] == 1 || cold[0] == 3);
  EXPECT_GE(cold[1], 0);
  EXPECT_EQ((std::vector<std::int32_t>(cold.begin() + 3, cold.end())), (std::vector<std::int32_t>{-1, -1, -1, 4, -1}));
  // Never a token that cannot be.
  for (int i = 0; i < 200; ++i) EXPECT_NE(choose(*ref, rows_of({{1, -kInf}}), {race(1e30F, 5, i)})[0], 1);
}

TEST(Choose, DrawsTheSoftmax) {
  const auto ref = make_ref_backend();
  const std::vector<float> row{2, 0, 1, -kInf, 2, -3};
  const Rows logits = rows_of({row});
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    double sum = 0;
    for (const float x : row) sum += std::exp(double{x} / temperature);
    std::vector<int> count(row.size());
    const int n = 40'000;
    for (int i = 0; i < n; ++i) ++count[static_cast<std::size_t>(choose(*ref, logits, {race(temperature, 42, i)})[0])];
    for (std::size_t id = 0; id < row.size(); ++id) {
      const double p = std::exp(double{row[id]} / temperature) / sum;
      EXPECT_LE(std::abs(count[id] - n * p), 5 * std::sqrt(n * p * (1 - p))) << id << " at " << temperature;
    }
  }
}

// Rows of every kind: flat (many contenders), peaked, with ties, with holes, spoilt.
Rows rows_of_every_kind(Rng& rng, std::int64_t rows, std::int64_t vocab) {
  Rows x = Rows::normal(rng, rows, vocab, 3);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < vocab; ++i) {
      if (r % 7 == 1) x.at(r, i) = 0.25F;
      if (r % 7 == 2) x.at(r, i) = std::round(x.at(r, i));
      if (r % 7 == 3 && rng() % 3 != 0) x.at(r, i) = -kInf;
    }
    const auto somewhere = static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(vocab));
    if (r % 7 == 4) x.at(r, somewhere) = kPoison;
    if (r % 7 == 5) x.at(r, somewhere) = r % 2 == 0 ? kInf : 60;
  }
  return x;
}

TEST(Choose, EveryBackendChoosesTheSame) {
  const auto ref = make_ref_backend();
  Backends cpu;
  for_each_target([&](bool) {
    Rng rng(7);
    for (const std::int64_t vocab : {1, 2, 15, 16, 17, 1000, 8191, 8192, 8193, 20'011}) {
      for (const std::int64_t rows : {0, 1, 2, 17}) {
        const Rows x = rows_of_every_kind(rng, rows, vocab);
        std::vector<ChoiceRule> rules;
        for (std::int64_t r = 0; r < rows; ++r) {
          rules.push_back(r % 5 == 0 ? greedy() : race(std::array{0.01F, 0.7F, 1.0F, 40.0F}[rng() % 4], rng(), r));
          if (r % 11 == 3) rules.back() = {};
        }
        const auto want = choose(*ref, x, rules);
        for (const int threads : {1, 3}) {
          EXPECT_EQ(choose(cpu.threads(threads), x, rules), want) << vocab << " " << rows << " " << threads;
        }
        for (const std::int32_t id : want) EXPECT_TRUE(id >= kNoChoice && id < vocab);
        EXPECT_TRUE(x.padding_untouched());
      }
    }
  });
}

TEST(Choose, ARowsChoiceDoesNotDependOnItsNeighbours) {
  Backends cpu;
  Rng rng(3);
  const Rows x = rows_of_every_kind(rng, 14, 9000);
  std::vector<ChoiceRule> rules;
  for (std::int64_t r = 0; r < x.rows(); ++r) rules.push_back(race(1, 9, r));
  const auto together = choose(cpu.threads(2), x, rules);
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    std::int32_t alone = 0;
    cpu.threads(1).choose(
        {.logits = x.mat().slice(r, 1), .rules = &rules[static_cast<std::size_t>(r)], .chosen = &alone});
    EXPECT_EQ(alone, together[static_cast<std::size_t>(r)]) << r;
  }
}

TEST(Noise, IsGumbelsToTheLastUnits) {
  Rng rng(1);
  const auto want = [](std::uint64_t bits) {
    const long double c = (static_cast<double>(bits) + 0.5) * 0x1p-64;  // as a double has it
    return -std::log(-std::log1p(-c));
  };
  double worst = 0;
  std::vector<std::uint64_t> all{0, 1, 2, 1ULL << 52, 1ULL << 62, (1ULL << 62) - 1, 1ULL << 63, (1ULL << 63) - 1};
  for (int i = 0; i < 20'000; ++i) all.push_back((std::uint64_t{rng()} << 32 | rng()) >> (i % 64));
  for (const std::uint64_t bits : all) {
    const auto exact = static_cast<double>(want(bits));
    const double got = noise::value(bits);
    // Near 0 the outer logarithm is of a number near 1, whose own last place counts.
    worst = std::max(worst, std::abs(got - exact) / std::max(1.0, std::abs(exact)));
    EXPECT_GE(noise::bound(bits) * (1 + 1e-15), got) << bits;
  }
  EXPECT_LE(worst, 4 * 0x1p-53);
  // The far end, where the complement rounds to 1.
  EXPECT_TRUE(std::isfinite(noise::value(~std::uint64_t{0})));
  EXPECT_NEAR(noise::value(~std::uint64_t{0}), -std::log(53 * std::log(2.0)), 1e-12);
}

TEST(Noise, IsTheSameEverywhere) {
  // What other processors computed.
  constexpr std::uint64_t key = noise::key(42, 7);
  static_assert(noise::bits(key, 3) != noise::bits(key, 4));
  constexpr double constant = noise::value(noise::bits(key, 3));
  const volatile std::int32_t id = 3;
  EXPECT_EQ(noise::value(noise::bits(key, id)), constant) << "as the compiler computes it";
}

}  // namespace
}  // namespace fathom::ops::testing
