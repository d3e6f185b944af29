// Same input, same bytes: a token's logits depend on the tokens before it and on nothing else. Not on how the prompt
// was cut, not on who shares the step, not on the number of threads, not on what ran before in the same memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "support/golden.h"

namespace fathom::testing {
namespace {

struct Case {
  std::string model;
  std::string backend;
  ops::Numerics numerics;
};
void PrintTo(const Case& c, std::ostream* os) { *os << c.model << " on " << c.backend; }

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string& backend : backends()) {
    all.push_back({"micro-random-fp", backend, ops::kFloat});
    all.push_back({"micro-random", backend, ops::kOfficial});
  }
  for (const std::string& backend : backends()) {
    if (backend != "cpu") all.push_back({"micro-random", backend, ops::kOfficialBf16});
  }
  return all;
}

std::vector<std::int32_t> random_ids(std::int32_t n, std::int32_t vocab, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(rng() % static_cast<std::uint32_t>(vocab));
  return ids;
}

bool same_bytes(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

class Invariance : public ::testing::TestWithParam<Case> {
 protected:
  Session session(int threads = 2) const {
    return {GetParam().model,
            GetParam().backend,
            {.numerics = GetParam().numerics, .max_step_tokens = 600, .max_logit_rows = 600},
            threads};
  }
  std::int32_t vocab() const { return open_model(GetParam().model).config().vocab; }
};

TEST_P(Invariance, AnyChunkingOfAPromptGivesTheSameBytes) {
  const auto ids = random_ids(300, vocab(), 1);
  Session s = session();
  const auto whole = s.run(ids, model::Rows::kAll);
  for (const std::int32_t chunk : {1, 3, 4, 5, 127, 128, 129}) {
    s.restart();
    EXPECT_TRUE(same_bytes(s.run(ids, model::Rows::kAll, chunk), whole)) << "chunks of " << chunk;
  }
}

// Every prompt length, not a sample: one engine's garbage began at 18 tokens and every gate used 6 (field-faults.md 2).
TEST_P(Invariance, EveryPromptLengthFrom1To300EndsInTheSameLogits) {
  // The reference is too slow to sweep every length twice; it steps over the lengths and keeps the borders.
  const bool every = GetParam().backend != "ref";
  const auto ids = random_ids(301, vocab(), 2);
  Session s = session();
  const auto whole = s.run(ids, model::Rows::kAll);
  const auto v = static_cast<std::size_t>(vocab());
  for (std::int32_t n = 1; n <= 300; ++n) {
    const bool border = n <= 8 || (n >= 126 && n <= 131) || (n >= 255 && n <= 258) || n == 300;
    if (!every && !border) continue;
    s.restart();
    const auto prompt = s.run(std::span(ids).first(static_cast<std::size_t>(n)), model::Rows::kLast);
    ASSERT_TRUE(same_bytes(prompt, std::span(whole).subspan(static_cast<std::size_t>(n - 1) * v, v))) << n << " tokens";
    const auto next = s.run(std::span(ids).subspan(static_cast<std::size_t>(n), 1), model::Rows::kLast);
    ASSERT_TRUE(same_bytes(next, std::span(whole).subspan(static_cast<std::size_t>(n) * v, v)))
        << n << " tokens, one decoded";
  }
}

TEST_P(Invariance, AnyMixtureOfSequencesInAStepGivesTheSameBytes) {
  const std::int32_t n_sequences = 5;
  Session s = session();
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<std::vector<float>> alone;
  for (std::int32_t i = 0; i < n_sequences; ++i) {
    ids.push_back(random_ids(40 + 60 * i, vocab(), 100U + static_cast<std::uint32_t>(i)));
    s.restart();
    alone.push_back(s.run(ids.back(), model::Rows::kAll));
  }
  for (std::uint32_t seed = 0; seed < 3; ++seed) {
    std::mt19937 rng(seed);
    std::vector<cache::Sequence> sequences;
    for (std::int32_t i = 0; i < n_sequences; ++i) {
      auto created = cache::Sequence::create(s.model->layout(), *s.backend);
      ASSERT_TRUE(created);
      sequences.push_back(std::move(*created));
    }
    std::vector<std::vector<float>> mixed(static_cast<std::size_t>(n_sequences));
    for (bool more = true; more;) {
      more = false;
      std::vector<model::Chunk> chunks;
      std::vector<std::size_t> order(static_cast<std::size_t>(n_sequences));
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), rng);
      for (const std::size_t i : order) {
        const auto have = static_cast<std::size_t>(sequences[i].length());
        // A chunk may be empty: a row of zero length is legal and changes nothing.
        const std::size_t n = std::min<std::size_t>(rng() % (rng() % 3 == 0 ? 90 : 3), ids[i].size() - have);
        ASSERT_TRUE(sequences[i].reserve(static_cast<std::int32_t>(n)));
        chunks.push_back({.ids = std::span(ids[i]).subspan(have, n),
                          .start = sequences[i].length(),
                          .slot = sequences[i].slot(),
                          .pages = sequences[i].pages(),
                          .logits = model::Rows::kAll});
        more = more || have + n < ids[i].size();
      }
      const auto out = s.model->forward(chunks);
      ASSERT_TRUE(out) << out.error().what;
      std::int64_t row = 0;
      for (std::size_t c = 0; c < chunks.size(); ++c) {
        for (std::size_t k = 0; k < chunks[c].ids.size(); ++k, ++row) {
          const auto logits = fetch(*s.backend, out->slice(row, 1));
          mixed[order[c]].insert(mixed[order[c]].end(), logits.begin(), logits.end());
        }
        sequences[order[c]].advance(static_cast<std::int32_t>(chunks[c].ids.size()));
      }
    }
    for (std::size_t i = 0; i < mixed.size(); ++i)
      EXPECT_TRUE(same_bytes(mixed[i], alone[i])) << "sequence " << i << " seed " << seed;
  }
}

TEST_P(Invariance, AnyThreadCountGivesTheSameBytes) {
  const auto ids = random_ids(150, vocab(), 3);
  Session one = session(1);
  const auto want = one.run(ids, model::Rows::kAll);
  for (const int threads : {2, 3, 5}) {
    Session s = session(threads);
    EXPECT_TRUE(same_bytes(s.run(ids, model::Rows::kAll), want)) << threads << " threads";
  }
}

// What a sequence's memory held before is invisible: state left by a longer sequence, or garbage.
TEST_P(Invariance, DirtyMemoryIsNeverRead) {
  Session s = session();
  const auto ids = random_ids(140, vocab(), 4);
  const auto want = s.run(ids, model::Rows::kAll);
  for (const int filler : {0xff, 0x7f, 0x5a}) {  // 0xff: every float and every scale a NaN
    ASSERT_TRUE(s.sequence->reserve(0));
    const model::CacheLayout& layout = s.model->layout();
    const std::vector<std::uint8_t> dirt(std::max(layout.slot_bytes, layout.page_bytes),
                                         static_cast<std::uint8_t>(filler));
    s.backend->copy_in(s.sequence->slot(), dirt.data(), layout.slot_bytes);
    for (std::byte* page : s.sequence->pages()) s.backend->copy_in(page, dirt.data(), layout.page_bytes);
    s.sequence->restart();
    EXPECT_TRUE(same_bytes(s.run(ids, model::Rows::kAll), want)) << "memory filled with " << filler;
  }
}

// Tokens taken back leave no trace, at every position modulo 4 and around every border of 128.
TEST_P(Invariance, TakingTokensBackIsForgettingThem) {
  const std::int32_t rollback = 6;
  Session s(GetParam().model, GetParam().backend,
            {.numerics = GetParam().numerics, .max_step_tokens = 64, .max_logit_rows = 64, .rollback = rollback});
  const auto ids = random_ids(272, vocab(), 5);
  const auto drafts = random_ids(272 * rollback, vocab(), 6);
  const auto want = s.run(ids, model::Rows::kAll, 64);
  s.restart();
  std::vector<float> got;
  for (std::int32_t p = 0; p < 272; ++p) {
    if (p % 4 == 3 || p % 128 > 118 || p < 12 || p % 7 == 0) {
      s.run(std::span(drafts).subspan(static_cast<std::size_t>(p * rollback), rollback), model::Rows::kNone);
      s.sequence->take_back(rollback);
    }
    const auto row = s.run(std::span(ids).subspan(static_cast<std::size_t>(p), 1), model::Rows::kAll);
    got.insert(got.end(), row.begin(), row.end());
  }
  EXPECT_TRUE(same_bytes(got, want));
}

TEST_P(Invariance, ABadTokenIsAnErrorAndChangesNothing) {
  Session s = session();
  const auto ids = random_ids(20, vocab(), 7);
  const auto want = s.run(ids, model::Rows::kLast);
  s.restart();
  s.run(std::span(ids).first(10), model::Rows::kNone);
  ASSERT_TRUE(s.sequence->reserve(10));
  for (const std::int32_t bad : {-1, vocab(), 129280, 2147483647}) {
    std::vector<std::int32_t> broken(ids.begin() + 10, ids.end());
    broken[5] = bad;
    const model::Chunk c{.ids = broken, .start = 10, .slot = s.sequence->slot(), .pages = s.sequence->pages()};
    const auto out = s.model->forward(std::span(&c, 1));
    ASSERT_FALSE(out);
    EXPECT_EQ(out.error().code, Code::kInvalid);
    EXPECT_NE(out.error().what.find(std::to_string(bad)), std::string::npos);
    EXPECT_FALSE(s.model->draft(std::span(&c, 1), s.model->streams()));
  }
  EXPECT_TRUE(same_bytes(s.run(std::span(ids).subspan(10), model::Rows::kLast), want));
}

TEST_P(Invariance, StepsBeyondTheLimitsAreRefused) {
  Session s(GetParam().model, GetParam().backend,
            {.numerics = GetParam().numerics, .max_step_tokens = 8, .max_logit_rows = 4});
  const auto ids = random_ids(9, vocab(), 8);
  ASSERT_TRUE(s.sequence->reserve(9));
  const auto forward = [&](std::size_t n, model::Rows rows, std::int32_t start) {
    const model::Chunk c{.ids = std::span(ids).first(n),
                         .start = start,
                         .slot = s.sequence->slot(),
                         .pages = s.sequence->pages(),
                         .logits = rows};
    return s.model->forward(std::span(&c, 1)).has_value();
  };
  EXPECT_FALSE(forward(9, model::Rows::kLast, 0));
  EXPECT_FALSE(forward(5, model::Rows::kAll, 0));
  EXPECT_TRUE(forward(8, model::Rows::kLast, 0));
  EXPECT_TRUE(forward(0, model::Rows::kAll, 0));
  EXPECT_FALSE(forward(1, model::Rows::kLast, -1));
  EXPECT_FALSE(forward(1, model::Rows::kLast, s.model->config().max_positions));
}

INSTANTIATE_TEST_SUITE_P(Models, Invariance, ::testing::ValuesIn(cases()), [](const auto& param_info) {
  std::string name = param_info.param.model + "_" + std::string(ops::name_of(param_info.param.numerics)) + "_" +
                     param_info.param.backend;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace fathom::testing
