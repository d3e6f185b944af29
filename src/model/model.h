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
                                             const ModelOptions& options, const LoadProgress& progress = {});
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const checkpoint::ModelConfig& config() const { return config_; }
  const CacheLayout& layout() const { return layout_; }
  const ModelOptions& options() const { return options_; }
  ops::Backend& backend() const { return backend_; }
  bool has_mtp() const { return !weights_.mtp.empty(); }

  // What else to ask of the backend of the logits of a call, before they are waited for.
  using Then = std::function<void(Mat<const float> logits)>;

  // Runs one step. Returns the logits asked for, [rows, V] in backend memory, in the order of the chunks; valid until
  // the next call. Error: kInvalid where a token id, a position or the size of the step is out of bounds; then nothing
  // ran and no sequence changed. kExhausted, kInternal: those of Backend::finish(); then the backend is of no further
  // use. A chunk without tokens is legal and yields no row.
  Result<Mat<const float>> forward(std::span<const Chunk> chunks, const Then& then = {});

  // The streams that the last forward() left, [tokens, C*d] in backend memory: what the MTP block drafts from.
  Mat<const float> streams() const { return last_streams_; }

  // The logits of rows of such streams, [rows, C*d] in backend memory, kept from an earlier step: to the bit what
  // forward() returned for them. At most max_logit_rows; valid until the next call. Errors: those of Backend::finish().
  Result<Mat<const float>> logits_of(Mat<const float> streams, const Then& then = {});

  // The MTP block (model.md 10.1), over chunks whose ids are the tokens that FOLLOW each position: row i of `streams`
  // is the trunk state of the token at the chunk's position start + i, ids[i] the token after it; its logits predict
  // the one after that. The block keeps its own window in the same slots. streams has one row per token of the chunks,
  // in their order. Errors as forward(), and kInvalid where the checkpoint has no MTP block.
  Result<Mat<const float>> draft(std::span<const Chunk> chunks, Mat<const float> streams, const Then& then = {});

  // The streams that the last draft() left: what a further draft step starts from.
  Mat<const float> draft_streams() const { return last_draft_streams_; }

  // DSpark (model.md 10.2): tokens a block drafts; 0 where the checkpoint has no DSpark module.
  std::int32_t block_size() const { return weights_.dspark.stages.empty() ? 0 : config_.draft.block_size; }

  // Runs the stages over one block a chunk: chunk ids = {anchor}, the token sampled last, at position start (every
  // token before it has been through forward()). Keeps nothing in the sequences. The tokens of all blocks count as the
  // step's. Errors as forward(), and kInvalid where the checkpoint has no DSpark module.
  Result<> draft_block(std::span<const Chunk> anchors);
  // After draft_block: the logits of draft i (0 <= i < block_size()) of every block, [blocks, V], given the token
  // before it: the anchor for i = 0, else what was chosen for draft i-1. confidence [blocks, 1]: how sure the module is
  // that the draft will be accepted, as a logit. Both in backend memory, valid until the next call.
  struct BlockLogits {
    Mat<const float> logits;
    Mat<const float> confidence;
  };
  Result<BlockLogits> block_logits(std::int32_t i, std::span<const std::int32_t> previous, const Then& then = {});

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
                               const std::function<void()>& work, const Then& then);
  // Waits for the logits.
  Result<Mat<const float>> finish(Mat<const float> logits, const Then& then);
  ForwardContext context() const;
  Result<> allocate_dspark();

  // What a DSpark block leaves for its drafts. In backend memory.
  struct Dspark {
    ops::Buffer memory;
    std::int32_t max_blocks = 0;
    std::int32_t blocks = 0;     // of the last draft_block()
    Mat<float> base;             // [max_blocks * B, V] logits without the Markov correction
    Mat<float> y;                // [max_blocks * B, d] head inputs before their norm
    Mat<float> normed;           // [max_blocks * B, d]
    Mat<float> embedding;        // [max_blocks, rank] of the previous tokens
    Mat<float> correction;       // [max_blocks, V]
    Mat<float> logits;           // [max_blocks, V]
    Mat<float> confidence_y;     // [max_blocks, 1] the share of y in the confidence
    Mat<float> confidence_m;     // [max_blocks, 1] and that of the embedding
    Mat<float> confidence;       // [max_blocks, 1]
    Mat<std::int32_t> previous;  // [max_blocks, 1]
  };

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
  Dspark dspark_;
  StepMemory step_memory_;
};

}  // namespace fathom::model
