// FakeRunner: a FakeModel as the engine's runner, with logits that follow from the tokens by hashing, and a draft block
// that guesses them mostly right. What a request must get is then known without any engine: expected().
#pragma once

#include <functional>
#include <vector>

#include "engine/request.h"
#include "engine/runner.h"
#include "support/fake_model.h"

namespace fathom::testing {

struct FakeRunnerOptions {
  FakeShape shape;
  std::int32_t vocab = 40;
  std::int32_t max_positions = 4096;
  std::int32_t step_tokens = 64;
  std::int32_t logit_rows = 64;
  std::int32_t percent_right = 70;  // of the guesses
  bool chooses = true;              // tokens by the rules given; the logits of those rows are then void
};

class FakeRunner final : public engine::Runner {
 public:
  explicit FakeRunner(const FakeRunnerOptions& options = {});

  const engine::RunnerFacts& facts() const override { return facts_; }
  const model::CacheLayout& layout() const override { return model_.layout(); }
  cache::Memory& memory() override { return memory_; }
  Result<engine::LogitRows> forward(std::span<const model::Chunk> chunks, engine::Rules rules) override;
  Result<engine::LogitRows> draft(std::span<const model::Chunk> chunks, Mat<const float> streams,
                                  engine::Rules rules) override;
  Result<engine::LogitRows> logits_of(Mat<const float> streams, engine::Rules rules) override;
  Mat<const float> streams() const override { return {streams_.data(), rows_, 2, 2}; }
  Mat<const float> draft_streams() const override { return {draft_streams_.data(), draft_rows_, 2, 2}; }

  // The logits after tokens with this hash.
  void logits(FakeModel::Hash hash, std::span<float> out) const;

  const std::string& error() const { return model_.error(); }
  // Times the draft block met a window that had been cleared.
  std::uint64_t cleared_windows() const { return model_.cleared_windows(); }
  std::uint64_t chosen = 0;  // tokens
  std::uint64_t steps = 0;
  std::uint64_t tokens = 0;
  std::int32_t most_tokens = 0;  // of any step
  std::function<void(std::span<const model::Chunk>)> before_forward;
  std::function<void(FakeModel::Hash, std::span<float>)> spoil;  // changes a row of logits
  bool fail_next = false;

 private:
  engine::LogitRows rows(engine::Rules rules);
  void add_row(FakeModel::Hash hash);
  Result<> check(std::span<const model::Chunk> chunks) const;

  FakeRunnerOptions options_;
  FakeModel model_;
  cache::HostMemory memory_;
  engine::RunnerFacts facts_;
  std::vector<float> streams_;
  std::vector<float> draft_streams_;
  std::vector<float> logits_;
  std::vector<std::int32_t> chosen_;
  std::int64_t rows_ = 0;
  std::int64_t draft_rows_ = 0;
};

// What a choice of a request gets, computed with the sampler alone.
struct Expected {
  std::vector<engine::Sampled> tokens;
  engine::Finish finish = engine::Finish::kLength;
  bool fails = false;  // the sampler refuses a row
};
// run: takes the tokens that come next and gives the logits after them; first the prompt, then what was chosen.
using RunTokens = std::function<std::span<const float>(std::span<const std::int32_t> next)>;
using StopsAt = std::function<bool(std::int32_t)>;
Expected expected(const RunTokens& run, const engine::Request& request, std::int32_t choice,
                  std::int32_t position_limit, const StopsAt& stop = {});
Expected expected(const FakeRunner& runner, const engine::Request& request, std::int32_t choice,
                  std::int32_t position_limit, const StopsAt& stop = {});
// What a request that scores its prompt must be told of it.
std::vector<engine::Sampled> expected_scores(const RunTokens& run, const engine::Request& request);
std::vector<engine::Sampled> expected_scores(const FakeRunner& runner, const engine::Request& request);

}  // namespace fathom::testing
