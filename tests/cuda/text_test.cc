// Whole texts of fathom-tiny on the device beside the CPU's: greedy, 20 prompts of 200 tokens. The two round in
// different places, so a choice may fall differently where two tokens are about equally likely, and nowhere else.
#include <algorithm>
#include <string>

#include "cuda/twin.h"
#include "support/golden.h"

namespace fathom::testing {
namespace {

constexpr std::int32_t kTokens = 200;
constexpr int kPrompts = 20;

// Made-up beginnings: enough for a model to be in some state, which is all that matters here.
std::vector<std::int32_t> prompt(int i, std::int32_t vocab, std::int32_t bos) {
  std::mt19937 rng(static_cast<std::uint32_t>(100 + i));
  std::vector<std::int32_t> ids = {bos};
  const int n = 3 + 7 * i;
  while (static_cast<int>(ids.size()) < n)
    ids.push_back(static_cast<std::int32_t>(rng() % static_cast<unsigned>(vocab)));
  return ids;
}

std::int32_t likeliest(const std::vector<float>& row) {
  return static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

struct Divergence {
  int prompt = 0;
  std::int32_t token = 0;
  float margin = 0;  // by which the first side prefers its own choice, in nats
};

// Decodes greedily on both sides until they differ; both follow the same tokens until then.
std::vector<Divergence> compare(Session& a, Session& b, std::int32_t& agreed) {
  std::vector<Divergence> all;
  const std::int32_t vocab = a.model->config().vocab;
  for (int p = 0; p < kPrompts; ++p) {
    a.restart();
    b.restart();
    std::vector<std::int32_t> ids = prompt(p, vocab, a.model->config().bos_token);
    for (std::int32_t t = 0; t < kTokens; ++t) {
      const std::vector<float> x = a.run(ids, model::Rows::kLast);
      const std::vector<float> y = b.run(ids, model::Rows::kLast);
      const std::int32_t chosen = likeliest(x);
      const std::int32_t other = likeliest(y);
      if (chosen != other) {
        all.push_back({p, t, x[static_cast<std::size_t>(chosen)] - x[static_cast<std::size_t>(other)]});
        break;
      }
      ++agreed;
      ids = {chosen};
    }
  }
  return all;
}

void expect_ties(ops::Numerics host, ops::Numerics device, float margin) {
  if (Device::get().backend == nullptr) GTEST_SKIP() << Device::get().why;
  Session cpu("fathom-tiny", "cpu", {.numerics = host, .max_step_tokens = 256, .max_logit_rows = 1});
  Session cuda("fathom-tiny", "cuda", {.numerics = device, .max_step_tokens = 256, .max_logit_rows = 1});
  std::int32_t agreed = 0;
  const std::vector<Divergence> all = compare(cpu, cuda, agreed);
  std::printf("%d tokens agreed, %zu of %d texts diverged\n", agreed, all.size(), kPrompts);
  for (const Divergence& d : all) {
    std::printf("  prompt %d, token %d: margin %.4f nats\n", d.prompt, d.token, static_cast<double>(d.margin));
    EXPECT_LT(d.margin, margin) << "prompt " << d.prompt << ", token " << d.token << " is no near-tie";
  }
  EXPECT_GT(agreed, kPrompts);  // something was compared
}

TEST(Text, OfFloatNumericsIsTheCpus) { expect_ties(ops::kFloat, ops::kFloat, 1e-3F); }

// What users run on either: the roundings of one are not those of the other, so logits differ by some tenths.
TEST(Text, OfOfficialNumericsDivergesAtNearTiesAlone) { expect_ties(ops::kOfficial, ops::kOfficialBf16, 0.7F); }

}  // namespace
}  // namespace fathom::testing
