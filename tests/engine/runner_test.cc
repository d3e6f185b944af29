// A model as the engine's runner, on every backend there is: tokens where rules ask for them, logits elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/runner.h"
#include "engine/sampler.h"
#include "support/golden.h"

namespace fathom::testing {
namespace {

class ModelRows : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr std::int32_t kTokens = 9;

  std::vector<model::Chunk> chunks() {
    const auto vocab = static_cast<std::uint32_t>(session_.model->config().vocab);
    std::mt19937 rng(3);
    ids_.clear();
    for (int i = 0; i < kTokens; ++i) ids_.push_back(static_cast<std::int32_t>(rng() % vocab));
    session_.restart();
    EXPECT_TRUE(session_.sequence->reserve(kTokens));
    return {{.ids = ids_,
             .start = 0,
             .slot = session_.sequence->slot(),
             .pages = session_.sequence->pages(),
             .logits = model::Rows::kAll}};
  }
  // The logits of the chunks, without any choice.
  std::vector<std::vector<float>> logits() {
    const auto rows = runner_.forward(chunks(), {});
    EXPECT_TRUE(rows) << rows.error().what;
    EXPECT_TRUE(rows->chosen.empty());
    std::vector<std::vector<float>> out;
    for (std::int64_t i = 0; i < rows->rows(); ++i) out.emplace_back(rows->row(i).begin(), rows->row(i).end());
    return out;
  }

  Session session_{"micro-random", GetParam(), {.max_step_tokens = 16, .max_logit_rows = 16}};
  engine::ModelRunner runner_{*session_.model, "test"};
  std::vector<std::int32_t> ids_;
};

TEST_P(ModelRows, AreTokensWhereRulesSaySoAndLogitsElsewhere) {
  const auto want = logits();
  ASSERT_EQ(want.size(), static_cast<std::size_t>(kTokens));
  for (const unsigned wanted : {0U, 0x1ffU, 0x155U, 0x0f0U, 0x10fU, 0x001U}) {  // bit i: row i's token
    std::vector<ops::ChoiceRule> rules(kTokens);
    engine::SamplingParams p{.temperature = 1, .seed = 5};
    for (int i = 0; i < kTokens; ++i) {
      p.temperature = i % 3 == 0 ? 0.0F : 0.8F;
      if ((wanted >> i & 1U) != 0) rules[static_cast<std::size_t>(i)] = engine::rule_for(p, i);
    }
    const auto rows = runner_.forward(chunks(), rules);
    ASSERT_TRUE(rows) << rows.error().what;
    for (int i = 0; i < kTokens; ++i) {
      const auto& row = want[static_cast<std::size_t>(i)];
      p.temperature = i % 3 == 0 ? 0.0F : 0.8F;
      if ((wanted >> i & 1U) != 0) {
        engine::Sampler sampler;
        EXPECT_EQ(rows->token(i), sampler.sample({.logits = row, .params = p, .index = i})->id) << i;
      } else {
        EXPECT_EQ(rows->token(i), ops::kNoChoice) << i;
        EXPECT_EQ(std::vector<float>(rows->row(i).begin(), rows->row(i).end()), row) << i;
      }
    }
  }
}

// Logits that come again from kept streams, and a draft's, by the same rules.
TEST_P(ModelRows, OfKeptStreamsAndOfDrafts) {
  const auto want = logits();
  ops::Backend& backend = *session_.backend;
  const Mat<const float> last = runner_.streams();
  const auto bytes = static_cast<std::size_t>(last.rows * last.cols) * sizeof(float);
  auto kept = backend.allocate(bytes);
  ASSERT_TRUE(kept);
  backend.copy(kept->get(), reinterpret_cast<const std::byte*>(last.data), bytes);
  const Mat<const float> streams = mat(reinterpret_cast<const float*>(kept->get()), last.rows, last.cols);
  std::vector<ops::ChoiceRule> rules(kTokens, engine::rule_for({.temperature = 0}, 0));
  rules[4] = {};
  const auto rows = runner_.logits_of(streams, rules);
  ASSERT_TRUE(rows) << rows.error().what;
  for (int i = 0; i < kTokens; ++i) {
    const auto& row = want[static_cast<std::size_t>(i)];
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    EXPECT_EQ(rows->token(i), i == 4 ? ops::kNoChoice : best) << i;
  }
  EXPECT_EQ(std::vector<float>(rows->row(4).begin(), rows->row(4).end()), want[4]);

  if (!runner_.facts().drafts) return;
  const auto plain = runner_.draft(chunks(), streams, {});
  ASSERT_TRUE(plain) << plain.error().what;
  std::vector<std::int32_t> best;
  for (std::int64_t i = 0; i < plain->rows(); ++i) {
    const auto row = plain->row(i);
    best.push_back(static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
  }
  const auto drafted = runner_.draft(chunks(), streams, std::vector(kTokens, engine::rule_for({.temperature = 0}, 0)));
  ASSERT_TRUE(drafted) << drafted.error().what;
  EXPECT_EQ(std::vector<std::int32_t>(drafted->chosen.begin(), drafted->chosen.end()), best);
}

INSTANTIATE_TEST_SUITE_P(Backends, ModelRows, ::testing::ValuesIn(backends()),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace fathom::testing
