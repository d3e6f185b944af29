// Runner: the model as the engine sees it. A step of chunks in, logits in host memory out; streams stay where they are.
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

class Runner {
 public:
  Runner() = default;
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  virtual ~Runner() = default;

  virtual const RunnerFacts& facts() const = 0;
  virtual const model::CacheLayout& layout() const = 0;
  virtual cache::Memory& memory() = 0;

  // As Model::forward, draft and logits_of; the rows returned are in host memory and valid until the next call. An
  // error means that the model is of no further use.
  virtual Result<Mat<const float>> forward(std::span<const model::Chunk> chunks) = 0;
  virtual Result<Mat<const float>> draft(std::span<const model::Chunk> chunks, Mat<const float> streams) = 0;
  virtual Result<Mat<const float>> logits_of(Mat<const float> streams) = 0;
  // As Model::draft_block and the logits of Model::block_logits, where there are DSpark stages.
  virtual Result<> draft_block(std::span<const model::Chunk> /*anchors*/) { return no_stages(); }
  virtual Result<Mat<const float>> block_logits(std::int32_t /*i*/, std::span<const std::int32_t> /*previous*/) {
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
  Result<Mat<const float>> forward(std::span<const model::Chunk> chunks) override;
  Result<Mat<const float>> draft(std::span<const model::Chunk> chunks, Mat<const float> streams) override;
  Result<Mat<const float>> logits_of(Mat<const float> streams) override;
  Result<> draft_block(std::span<const model::Chunk> anchors) override { return model_.draft_block(anchors); }
  Result<Mat<const float>> block_logits(std::int32_t i, std::span<const std::int32_t> previous) override;
  std::span<const float> block_confidence() const override { return confidence_; }
  Mat<const float> streams() const override { return model_.streams(); }
  Mat<const float> draft_streams() const override { return model_.draft_streams(); }

 private:
  Result<Mat<const float>> to_host(Result<Mat<const float>> logits);

  model::Model& model_;
  cache::BackendMemory memory_;
  RunnerFacts facts_;
  std::vector<float> host_logits_;
  std::vector<float> confidence_;
};

}  // namespace fathom::engine
