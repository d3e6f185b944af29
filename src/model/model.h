// Model: a loaded checkpoint on a backend; chunks of sequences in, logits out. model.md 1-10.
//
// Knows nothing of who owns a sequence's memory: it is lent a slot and pages of the sizes its CacheLayout names. A
// chunk may continue a sequence anywhere, a step may mix chunks of any number of sequences; what a token's logits are
// depends on the sequence up to it and on nothing else.
//
// One thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "model/activations.h"
#include "model/cache_layout.h"
#include "model/chunk.h"
#include "model/forward.h"
#include "model/step_memory.h"
#include "model/weights.h"
#include "ops/backend.h"
#include "ops/numerics.h"

namespace fathom::model {

struct ModelOptions {
  ops::Numerics numerics = ops::kOfficial;
  std::int32_t max_step_tokens = 256;  // tokens of all chunks of a step
  std::int32_t max_logit_rows = 256;   // rows of logits a step may ask for
  std::int32_t rollback = 0;           // tokens a sequence may take back (CacheLayout)
};

class Model {
 public:
  // checkpoint and backend outlive the model. Errors: those of load_weights; kExhausted; kInvalid for options.
  static Result<std::unique_ptr<Model>> load(const checkpoint::Checkpoint& checkpoint, ops::Backend& backend,
                                             const ModelOptions& options);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const checkpoint::ModelConfig& config() const { return config_; }
  const CacheLayout& layout() const { return layout_; }
  const ModelOptions& options() const { return options_; }
  ops::Backend& backend() const { return backend_; }
  bool has_mtp() const { return !weights_.mtp.empty(); }

  // Runs one step. Returns the logits asked for, [rows, V] in backend memory, in the order of the chunks; valid until
  // the next call. Error: kInvalid where a token id, a position or the size of the step is out of bounds; then nothing
  // ran and no sequence changed. kExhausted, kInternal: those of Backend::finish(); then the backend is of no further
  // use. A chunk without tokens is legal and yields no row.
  Result<Mat<const float>> forward(std::span<const Chunk> chunks);

  // The streams that the last forward() left, [tokens, C*d] in backend memory: what the MTP block drafts from.
  Mat<const float> streams() const { return last_streams_; }

  // The MTP block (model.md 10.1), over chunks whose ids are the tokens that FOLLOW each position: row i of `streams`
  // is the trunk state of the token at the chunk's position start + i, ids[i] the token after it; its logits predict
  // the one after that. The block keeps its own window in the same slots. streams has one row per token of the chunks,
  // in their order. Errors as forward(), and kInvalid where the checkpoint has no MTP block.
  Result<Mat<const float>> draft(std::span<const Chunk> chunks, Mat<const float> streams);

  // The streams that the last draft() left: what a further draft step starts from.
  Mat<const float> draft_streams() const { return last_draft_streams_; }

 private:
  Model(const checkpoint::Checkpoint& checkpoint, ops::Backend& backend, const ModelOptions& options);

  Result<> check(std::span<const Chunk> chunks) const;
  // The logits that the chunks ask for, of the step's last streams.
  void head(const Forward& forward, std::span<const Chunk> chunks, const ops::HyperConnection& hc_head,
            const float* norm, Mat<const float> streams);
  // Runs `work`, which is all of a step of this batch, as something the backend may record where the batch and the kind
  // of step determine its every argument. Returns the rows of logits asked for.
  enum class Step : std::uint8_t { kTrunk, kDraft };
  Result<Mat<const float>> run(Step step, std::span<const Chunk> chunks, const ops::Batch& batch,
                               const std::function<void()>& work);
  ForwardContext context() const;

  checkpoint::ModelConfig config_;
  ops::Backend& backend_;
  ModelOptions options_;
  CacheLayout layout_;
  Weights weights_;
  Activations activations_;
  ops::Buffer logits_memory_;
  ops::Buffer frequencies_memory_;
  Mat<float> logits_;
  Mat<const float> last_streams_;
  Mat<const float> last_draft_streams_;
  StepMemory step_memory_;
};

}  // namespace fathom::model
