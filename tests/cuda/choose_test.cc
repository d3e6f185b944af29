// Tokens chosen on the device: the very ones that the reference chooses.
#include <array>
#include <limits>

#include "cuda/twin.h"
#include "ops/sampling/noise.h"

namespace fathom::testing {
namespace {

using Choices = OnDevice;

constexpr float kInf = std::numeric_limits<float>::infinity();

// Rows of every kind: as they come, flat, with ties, with holes, with zeros of both signs, spoilt, empty of hope.
std::vector<float> rows_of_every_kind(std::int64_t rows, std::int64_t vocab, std::uint32_t seed) {
  std::vector<float> x = normal(rows * vocab, seed, 3);
  std::mt19937 rng(seed);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < vocab; ++i) {
      float& v = x[static_cast<std::size_t>(r * vocab + i)];
      if (r % 9 == 1) v = 0.25F;
      if (r % 9 == 2) v = std::round(v);
      if (r % 9 == 3 && rng() % 3 != 0) v = -kInf;
      if (r % 9 == 4) v = rng() % 2 == 0 ? 0.0F : -0.0F;
      if (r % 9 == 5) v = -kInf;
    }
    float& somewhere =
        x[static_cast<std::size_t>(r * vocab + static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(vocab)))];
    if (r % 9 == 6) somewhere = std::numeric_limits<float>::quiet_NaN();
    if (r % 9 == 7) somewhere = kInf;
    if (r % 9 == 8) somewhere = 60;
  }
  return x;
}

TEST_F(Choices, AreTheReferences) {
  std::mt19937 rng(1);
  for (const std::int64_t vocab : {1, 2, 31, 32, 33, 1023, 1024, 1025, 20'011, 129'280}) {
    for (const std::int64_t rows : {0, 1, 2, 18, 70}) {
      if (vocab * rows > 3'000'000) continue;
      const Twin<float> x(rows_of_every_kind(rows, vocab, rng()));
      std::vector<ops::ChoiceRule> rules;
      for (std::int64_t r = 0; r < rows; ++r) {
        const float temperature = std::array{0.0F, 0.01F, 0.7F, 1.0F, 40.0F, 1e-38F, 1e30F}[rng() % 7];
        rules.push_back({.key = ops::noise::key(rng(), r), .temperature = temperature});
        if (r % 13 == 12) rules.back() = {};
      }
      const Twin<ops::ChoiceRule> rule(rules);
      auto chosen = Twin<std::int32_t>::poisoned(rows);
      device().choose({.logits = x.on_device(rows, vocab), .rules = rule.device(), .chosen = chosen.device()});
      const auto first = chosen.fetch();
      device().choose({.logits = x.on_device(rows, vocab), .rules = rule.device(), .chosen = chosen.device()});
      const auto again = chosen.fetch();
      reference().choose(
          {.logits = mat(x.host(), rows, vocab), .rules = rule.host().data(), .chosen = chosen.host().data()});
      EXPECT_EQ(first, chosen.host()) << vocab << " ids, " << rows << " rows";
      EXPECT_EQ(again, first);
      // Alone, a row is cut into other parts.
      for (std::int64_t r = 0; r < rows; r += 7) {
        const auto one = Twin<std::int32_t>::poisoned(1);
        device().choose(
            {.logits = x.on_device(rows, vocab).slice(r, 1), .rules = rule.device() + r, .chosen = one.device()});
        EXPECT_EQ(one.fetch()[0], chosen.host()[static_cast<std::size_t>(r)]) << vocab << " ids, row " << r << " alone";
      }
    }
  }
}

// Many draws over a flat row, where everything contends and worths lie close.
TEST_F(Choices, OfManySeedsOverFlatRows) {
  const std::int64_t vocab = 20'000;
  const std::int64_t rows = 128;
  const Twin<float> x(normal(rows * vocab, 4, 0.01F));
  std::vector<ops::ChoiceRule> rules;
  for (std::int64_t r = 0; r < rows; ++r) rules.push_back({.key = ops::noise::key(99, r), .temperature = 1});
  const Twin<ops::ChoiceRule> rule(rules);
  auto chosen = Twin<std::int32_t>::poisoned(rows);
  device().choose({.logits = x.on_device(rows, vocab), .rules = rule.device(), .chosen = chosen.device()});
  reference().choose(
      {.logits = mat(x.host(), rows, vocab), .rules = rule.host().data(), .chosen = chosen.host().data()});
  EXPECT_EQ(chosen.fetch(), chosen.host());
}

// Rows whose elements no 32 bits can count.
TEST_F(Choices, BeyondFourGibibytes) {
  const std::int64_t vocab = 129'280;
  const std::int64_t rows = 17'000;
  const auto memory = device().allocate(static_cast<std::size_t>(rows * vocab) * sizeof(float));
  if (!memory) GTEST_SKIP() << memory.error().what;
  auto* x = reinterpret_cast<float*>(memory->get());
  const float most = 1;
  device().copy_in(reinterpret_cast<std::byte*>(x + (rows - 1) * vocab + 129'000), &most, sizeof most);
  std::vector<ops::ChoiceRule> rules(static_cast<std::size_t>(rows));
  rules.back().temperature = 0;
  const Twin<ops::ChoiceRule> rule(rules);
  const auto chosen = Twin<std::int32_t>::poisoned(rows);
  device().choose({.logits = mat(x, rows, vocab), .rules = rule.device(), .chosen = chosen.device()});
  std::vector<std::int32_t> want(static_cast<std::size_t>(rows), ops::kNoChoice);
  want.back() = 129'000;
  EXPECT_EQ(chosen.fetch(), want);
}

}  // namespace
}  // namespace fathom::testing
