#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

namespace fathom::engine {
namespace {

using ::testing::HasSubstr;
constexpr float kInf = std::numeric_limits<float>::infinity();

std::int32_t choose(std::span<const float> logits, const SamplingParams& p, std::int64_t index = 0,
                    const TokenHistory* history = nullptr, std::span<const std::uint64_t> allowed = {}) {
  Sampler sampler;
  const auto r =
      sampler.sample({.logits = logits, .params = p, .history = history, .index = index, .allowed = allowed});
  EXPECT_TRUE(r.has_value()) << r.error().what;
  return r ? r->id : -1;
}

// Rows with ties, far outliers and impossible tokens.
std::vector<float> random_row(std::mt19937& rng, std::size_t vocab) {
  std::vector<float> row(vocab);
  std::normal_distribution<float> normal(0, 3);
  for (float& x : row) x = rng() % 16 == 0 ? -kInf : std::round(normal(rng) * 4) / 4;
  row[rng() % vocab] = 9;
  return row;
}

// The ids that top-k, top-p and min-p leave, by sorting everything. The definition, not the way it is done.
std::set<std::int32_t> survivors(const std::vector<float>& row, const SamplingParams& p) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i] > -kInf) ids.push_back(static_cast<std::int32_t>(i));
  }
  const auto at = [&](std::int32_t id) { return row[static_cast<std::size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(), [&](auto a, auto b) { return at(a) > at(b); });
  const auto weight = [&](std::int32_t id) { return std::exp((double{at(id)} - at(ids[0])) / p.temperature); };
  if (p.top_k > 0 && static_cast<std::size_t>(p.top_k) < ids.size()) ids.resize(static_cast<std::size_t>(p.top_k));
  double total = 0;
  for (const auto id : ids) total += weight(id);
  double mass = 0;
  std::set<std::int32_t> out;
  for (const auto id : ids) {
    if (p.top_p < 1 && mass >= p.top_p * total) break;
    mass += weight(id);
    if (weight(id) >= p.min_p) out.insert(id);
  }
  return out;
}

TEST(Sampler, GreedyTakesTheLikeliestAndTheLowestIdAmongEquals) {
  const std::vector<float> row{1, 7, -kInf, 7, 6.5F};
  EXPECT_EQ(choose(row, {.temperature = 0, .seed = 3}), 1);
  EXPECT_EQ(choose(row, {.temperature = 0, .banned = {1}}), 3);
  EXPECT_EQ(choose(std::vector<float>{-5}, {.temperature = 0}), 0);
}

TEST(Sampler, DrawsTheSoftmaxOfTheTemperedLogits) {
  const std::vector<float> row{2, 0, 1, -kInf, 2, -3};
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    std::vector<double> p;
    for (const float x : row) p.push_back(std::exp(x / temperature));
    const double z = std::accumulate(p.begin(), p.end(), 0.0);
    const int n = 60'000;
    std::vector<int> count(row.size());
    for (int i = 0; i < n; ++i)
      ++count[static_cast<std::size_t>(choose(row, {.temperature = temperature, .seed = 42}, i))];
    for (std::size_t id = 0; id < row.size(); ++id) {
      const double q = p[id] / z;
      EXPECT_LE(std::abs(count[id] - n * q), 5 * std::sqrt(n * q * (1 - q)))
          << "id " << id << " temperature " << temperature;
    }
  }
}

TEST(Sampler, DifferentSeedsAndDifferentPositionsAreIndependent) {
  const std::vector<float> flat(2, 0.0F);
  int both[2][2] = {};
  for (int i = 0; i < 10'000; ++i) {
    const auto seed = static_cast<std::uint64_t>(i);
    ++both[choose(flat, {.seed = seed}, 0)][choose(flat, {.seed = seed}, 1)];
  }
  for (const auto& row : both) {
    for (const int n : row) EXPECT_NEAR(n, 2500, 5 * std::sqrt(10'000 * 0.25 * 0.75));
  }
  std::set<std::uint64_t> seeds;
  for (std::int32_t c = 0; c < 100; ++c) seeds.insert(seed_of_choice(7, c));
  EXPECT_EQ(seeds.size(), 100U);
  EXPECT_EQ(seed_of_choice(7, 0), 7U);
}

TEST(Sampler, FiltersKeepWhatTheirDefinitionKeeps) {
  std::mt19937 rng(11);
  for (int round = 0; round < 300; ++round) {
    const auto row = random_row(rng, round % 10 == 0 ? 3000 : 1 + rng() % 60);
    SamplingParams p;
    p.temperature = std::array{0.25F, 1.0F, 4.0F}[rng() % 3];
    p.top_k = std::array{0, 1, 3, 20, 700}[rng() % 5];
    p.top_p = std::array{1.0F, 0.01F, 0.5F, 0.9F, 0.999F}[rng() % 5];
    p.min_p = std::array{0.0F, 0.0F, 0.01F, 0.3F, 1.0F}[rng() % 5];
    p.seed = rng();
    const auto allowed = survivors(row, p);
    std::set<std::int32_t> seen;
    for (int i = 0; i < 40; ++i) seen.insert(choose(row, p, i));
    EXPECT_TRUE(std::includes(allowed.begin(), allowed.end(), seen.begin(), seen.end())) << "round " << round;
    // A few survivors of like weight all turn up.
    if (allowed.size() == 1) {
      EXPECT_EQ(seen, allowed);
    }
  }
}

TEST(Sampler, TheRaceAmongTheSurvivorsIsTheRaceAmongAllThatTheyWin) {
  // Filters remove runners; they do not change the noise of those that stay. So wherever the unfiltered winner
  // survives, it wins the filtered race too.
  std::mt19937 rng(5);
  for (int round = 0; round < 500; ++round) {
    const auto row = random_row(rng, 200);
    const SamplingParams all{.seed = rng()};
    SamplingParams some = all;
    some.top_k = 30;
    some.top_p = 0.8F;
    const std::int32_t winner = choose(row, all);
    if (survivors(row, some).contains(winner)) {
      EXPECT_EQ(choose(row, some), winner) << round;
    }
  }
}

TEST(Sampler, SharesOfAFilteredRaceAreRenormalised) {
  const std::vector<float> row{0, 1, 2, 3};
  int threes = 0;
  const int n = 40'000;
  for (int i = 0; i < n; ++i) threes += choose(row, {.top_k = 2, .seed = 9}, i) == 3 ? 1 : 0;
  const double p = 1 / (1 + std::exp(-1.0));
  EXPECT_NEAR(threes, n * p, 5 * std::sqrt(n * p * (1 - p)));
}

TEST(Sampler, PenaltiesFollowTheirFormulas) {
  TokenHistory history;
  history.add_prompt(std::vector<std::int32_t>{0, 0, 1});
  for (const std::int32_t id : {1, 2, 2}) history.add_output(id);
  const std::vector<float> row{4, 4, 4, 3, -1};
  const auto greedy = [&](SamplingParams p) {
    p.temperature = 0;
    return choose(row, p, 0, &history);
  };
  EXPECT_EQ(greedy({}), 0);
  EXPECT_EQ(greedy({.repetition_penalty = 1.5F}), 3);                             // 2.67 2.67 2.67 3
  EXPECT_EQ(greedy({.repetition_penalty = 1.25F}), 0);                            // 3.2 ...
  EXPECT_EQ(greedy({.repetition_penalty = 1.25F, .presence_penalty = 0.1F}), 0);  // the prompt is no presence
  EXPECT_EQ(greedy({.presence_penalty = 0.5F, .banned = {0}}), 1);                // 3.5 3.5 3
  EXPECT_EQ(greedy({.frequency_penalty = 0.6F, .banned = {0}}), 1);               // 3.4 2.8 3
  EXPECT_EQ(greedy({.frequency_penalty = -0.5F}), 2);                             // 4 4.5 5
  EXPECT_EQ(greedy({.presence_penalty = 2, .logit_bias = {{3, 2}, {0, -2}}}), 3);
  history.add_output(4);
  const std::vector<float> negative{-9, -9, -9, -1.5F, -1};
  EXPECT_EQ(choose(negative, {.temperature = 0, .repetition_penalty = 2}, 0, &history), 3);  // -1 becomes -2
}

TEST(Sampler, MaskBansAndBiasesBind) {
  const std::vector<float> row(130, 1.0F);
  std::vector<std::uint64_t> mask(3, 0);
  mask[2] = 1U << 1U;  // id 129
  for (int i = 0; i < 20; ++i) EXPECT_EQ(choose(row, {.seed = 1}, i, nullptr, mask), 129);
  EXPECT_EQ(choose(row, {.temperature = 0}, 0, nullptr, mask), 129);
  EXPECT_EQ(choose(row, {.temperature = 0, .logit_bias = {{77, 100}}}), 77);
}

TEST(Sampler, AnImpossibleRowIsAnErrorNotAToken) {
  // field-faults.md 4: a row of -inf gave the id one past the vocabulary.
  Sampler sampler;
  const auto error = [&](std::vector<float> row, SamplingParams p = {}, std::span<const std::uint64_t> mask = {}) {
    const auto r = sampler.sample({.logits = row, .params = p, .index = 5, .allowed = mask});
    EXPECT_FALSE(r.has_value());
    return r ? Error{} : r.error();
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float temperature : {0.0F, 1.0F}) {
    const SamplingParams p{.temperature = temperature};
    EXPECT_EQ(error({1, nan, 2}, p).code, Code::kInternal);
    EXPECT_EQ(error({nan, nan}, p).code, Code::kInternal);
    EXPECT_EQ(error({1, kInf}, p).code, Code::kInternal);
    EXPECT_THAT(error({-kInf, -kInf}, p).what, HasSubstr("token 5 of the answer"));
    EXPECT_EQ(error({1, 2}, {.temperature = temperature, .banned = {0, 1}}).code, Code::kInvalid);
    const std::vector<std::uint64_t> nothing(1, 0);
    EXPECT_EQ(error({1, 2}, p, nothing).code, Code::kInvalid);
  }
  EXPECT_EQ(error({}, {}).code, Code::kInvalid);
  // The sampler is as good as new afterwards.
  EXPECT_EQ(sampler.sample({.logits = std::vector<float>{1, 2}, .params = {.temperature = 0}})->id, 1);
}

TEST(Sampler, ExtremeTemperaturesStayInsideTheVocabulary) {
  std::mt19937 rng(3);
  for (const float temperature : {1e-38F, 1e-3F, 1e30F}) {
    for (int i = 0; i < 50; ++i) {
      auto row = random_row(rng, 33);
      row[7] = 3e38F;
      row[8] = -3e38F;
      const std::int32_t id = choose(row, {.temperature = temperature, .top_p = 0.9F, .seed = 4}, i);
      EXPECT_TRUE(id >= 0 && id < 33);
      if (temperature < 1) {
        EXPECT_EQ(id, 7);
      }
      EXPECT_GT(row[static_cast<std::size_t>(id)], -kInf);
    }
  }
}

TEST(Sampler, LogprobsAreTheModelsOwnAndSortedWithTies) {
  std::mt19937 rng(8);
  for (int round = 0; round < 50; ++round) {
    const auto row = random_row(rng, 1 + rng() % 100);
    SamplingParams p{.temperature = 0.7F, .top_k = 5, .logit_bias = {{0, -3}}, .seed = 2, .logprobs = true};
    p.top_logprobs = static_cast<std::int32_t>(rng() % 21);
    Sampler sampler;
    const auto got = sampler.sample({.logits = row, .params = p, .index = round});
    ASSERT_TRUE(got.has_value());
    double sum = 0;
    for (const float x : row) sum += std::exp(double{x});
    std::vector<std::int32_t> ids(row.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](auto a, auto b) {
      return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
    });
    EXPECT_NEAR(got->logprob, row[static_cast<std::size_t>(got->id)] - std::log(sum), 1e-5);
    ASSERT_EQ(got->top.size(), std::min<std::size_t>(static_cast<std::size_t>(p.top_logprobs), row.size()));
    for (std::size_t i = 0; i < got->top.size(); ++i) {
      EXPECT_EQ(got->top[i].id, ids[i]);
      const double want = row[static_cast<std::size_t>(ids[i])] - std::log(sum);
      if (std::isfinite(want)) {
        EXPECT_NEAR(got->top[i].logprob, want, 1e-5);
      }
    }
  }
}

TEST(Sampler, WhatItChoosesDoesNotDependOnWhatItChoseBefore) {
  std::mt19937 rng(21);
  const auto a = random_row(rng, 500);
  const auto b = random_row(rng, 120);
  const SamplingParams p{.top_p = 0.95F, .logit_bias = {{3, 1}}, .seed = 6, .logprobs = true, .top_logprobs = 4};
  Sampler used;
  for (int i = 0; i < 20; ++i) (void)used.sample({.logits = i % 2 == 0 ? a : b, .params = p, .index = i});
  Sampler fresh;
  for (std::int64_t i : {19, 0, 7}) {
    EXPECT_EQ(used.sample({.logits = a, .params = p, .index = i}).value(),
              fresh.sample({.logits = a, .params = p, .index = i}).value());
  }
}

TEST(Sampler, FullVocabularyWithNearlyFlatRow) {
  // 129,280 ids: the vocabulary of the published models. Flat rows are the worst case of top-p.
  std::vector<float> row(129'280);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>((i * 7919) % 1000) * 1e-3F;
  for (int i = 0; i < 3; ++i) {
    const std::int32_t id = choose(row, {.top_p = 0.999F, .seed = 1}, i);
    EXPECT_TRUE(id >= 0 && id < 129'280);
  }
}

TEST(SamplingParams, ErrorsNameTheField) {
  const auto what = [](const SamplingParams& p) {
    const auto r = validate(p, 100);
    return r ? std::string("valid") : r.error().what;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(what({}), "valid");
  EXPECT_EQ(what({.temperature = 0, .top_k = 500, .min_p = 1}), "valid");
  EXPECT_THAT(what({.temperature = -1}), HasSubstr("temperature is -1"));
  EXPECT_THAT(what({.temperature = nan}), HasSubstr("temperature"));
  EXPECT_THAT(what({.temperature = kInf}), HasSubstr("temperature"));
  EXPECT_THAT(what({.top_k = -2}), HasSubstr("top_k is -2"));
  EXPECT_THAT(what({.top_p = 0}), HasSubstr("top_p is 0"));
  EXPECT_THAT(what({.top_p = nan}), HasSubstr("top_p"));
  EXPECT_THAT(what({.min_p = 1.5F}), HasSubstr("min_p is 1.5"));
  EXPECT_THAT(what({.repetition_penalty = 0}), HasSubstr("repetition_penalty"));
  EXPECT_THAT(what({.frequency_penalty = 3}), HasSubstr("frequency_penalty"));
  EXPECT_THAT(what({.presence_penalty = nan}), HasSubstr("presence_penalty"));
  EXPECT_THAT(what({.logit_bias = {{100, 1}}}), HasSubstr("logit_bias names token 100"));
  EXPECT_THAT(what({.logit_bias = {{1, 1}, {2, 0}, {1, 3}}}), HasSubstr("token 1 more than once"));
  EXPECT_THAT(what({.logit_bias = {{1, kInf}}}), HasSubstr("logit_bias"));
  EXPECT_THAT(what({.banned = {-1}}), HasSubstr("banned tokens names token -1"));
  EXPECT_THAT(what({.top_logprobs = 3}), HasSubstr("logprobs is off"));
  EXPECT_THAT(what({.logprobs = true, .top_logprobs = 21}), HasSubstr("top_logprobs is 21"));
}

}  // namespace
}  // namespace fathom::engine
