// Runner: the model as the engine sees it. A step of chunks in, tokens or logits in host memory out; streams stay where
// they are.
// Abstract so that the engine is tested, and its own cost measured, without a model.
//
// One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/memory.h"
#include "model/cache_layout.h"
#include "model/chunk.h"
#include "model/model.h"
#include "ops/sampling/choose.h"

namespace fathom::engine {

struct RunnerFacts {
  std::int32_t vocab = 0;
  std::int32_t max_positions = 0;
  std::int32_t step_tokens = 0;   // of all chunks of a step
  std::int32_t logit_rows = 0;    // of a step
  bool drafts = false;            // there is a block that draft() runs
  std::int32_t block_drafts = 0;  // or DSpark stages: the tokens of a block that draft_block() guesses; 0: none
  std::int32_t draft_layers = 0;  // of the layout, the last ones, whether or not draft() runs them
  std::int64_t stream_width = 0;  // floats of the streams of one token
  std::string identity;           // of model, numerics and backend: what remembered bytes depend on
};

// How the token of each row of a call's logits is to be chosen, in their order; empty: not at all. Rows whose rule says
// kChosenElsewhere are the caller's.
using Rules = std::span<const ops::ChoiceRule>;

// What came of the rows of a call, until the next call. A row has a token or its logits: where none was chosen, be it
// that none was asked for or that the row allows none, the logits are there; else they may be void.
struct LogitRows {
  Mat<const float> logits;                    // [rows, V], host memory
  std::span<const std::int32_t> chosen = {};  // [rows], ops::kNoChoice for none; empty: none at all

  std::int64_t rows() const { return logits.rows; }
  std::span<const float> row(std::int64_t i) const { return {logits.row(i), static_cast<std::size_t>(logits.cols)}; }
  std::int32_t token(std::int64_t i) const {
    return chosen.empty() ? ops::kNoChoice : chosen[static_cast<std::size_t>(i)];
  }
};

class Runner {
 public:
  Runner() = default;
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  virtual ~Runner() = default;

  virtual const RunnerFacts& facts() const = 0;
  virtual const model::CacheLayout& layout() const = 0;
  virtual cache::Memory& memory() = 0;

  // As Model::forward, draft and logits_of. An error means that the model is of no further use.
  virtual Result<LogitRows> forward(std::span<const model::Chunk> chunks, Rules rules) = 0;
  virtual Result<LogitRows> draft(std::span<const model::Chunk> chunks, Mat<const float> streams, Rules rules) = 0;
  virtual Result<LogitRows> logits_of(Mat<const float> streams, Rules rules) = 0;
  // As Model::draft_block and the logits of Model::block_logits, where there are DSpark stages.
  virtual Result<> draft_block(std::span<const model::Chunk> /*anchors*/) { return no_stages(); }
  virtual Result<LogitRows> block_logits(std::int32_t /*i*/, std::span<const std::int32_t> /*previous*/,
                                         Rules /*rules*/) {
    return no_stages();
  }
  // How sure the stages are of the guess that the last block_logits() is for, one value for each block, a
  // logit. Empty: they do not say. In host memory, until the next call.
  virtual std::span<const float> block_confidence() const { return {}; }
  // What the last forward() or draft() left, in the runner's memory.
  virtual Mat<const float> streams() const = 0;
  virtual Mat<const float> draft_streams() const = 0;

 private:
  static tl::unexpected<Error> no_stages() { return fail(Code::kInvalid, "this runner has no DSpark stages"); }
};

// Over a loaded model, which outlives it. identity: see RunnerFacts, without numerics and backend, which are added.
class ModelRunner final : public Runner {
 public:
  ModelRunner(model::Model& model, std::string_view identity);

  const RunnerFacts& facts() const override { return facts_; }
  const model::CacheLayout& layout() const override { return model_.layout(); }
  cache::Memory& memory() override { return memory_; }
  Result<LogitRows> forward(std::span<const model::Chunk> chunks, Rules rules) override;
  Result<LogitRows> draft(std::span<const model::Chunk> chunks, Mat<const float> streams, Rules rules) override;
  Result<LogitRows> logits_of(Mat<const float> streams, Rules rules) override;
  Result<> draft_block(std::span<const model::Chunk> anchors) override { return model_.draft_block(anchors); }
  Result<LogitRows> block_logits(std::int32_t i, std::span<const std::int32_t> previous, Rules rules) override;
  std::span<const float> block_confidence() const override { return confidence_; }
  Mat<const float> streams() const override { return model_.streams(); }
  Mat<const float> draft_streams() const override { return model_.draft_streams(); }

 private:
  // Whether tokens are to be chosen by these rules, and memory for that. Error: kExhausted.
  Result<> take_rules(Rules rules);
  void choose(Mat<const float> logits);
  const model::Model::Then& then() const { return choosing_ ? choose_ : nothing_; }
  Result<LogitRows> rows(const Result<Mat<const float>>& logits);

  model::Model& model_;
  cache::BackendMemory memory_;
  RunnerFacts facts_;
  std::vector<float> host_logits_;
  std::vector<float> confidence_;

  model::Model::Then choose_ = [this](Mat<const float> logits) { choose(logits); };
  model::Model::Then nothing_;
  Rules rules_;  // of the call under way
  bool choosing_ = false;
  ops::Buffer choice_memory_;    // rules, then chosen tokens
  std::size_t choice_rows_ = 0;  // that there is room for
  std::vector<std::int32_t> chosen_;
};

}  // namespace fathom::engine
