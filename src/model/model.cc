#include "model/model.h"

#include <bit>

#include "base/check.h"
#include "ops/rope/rope.h"

namespace fathom::model {
Model::Model(const checkpoint::Checkpoint& checkpoint, ops::Backend& backend, const ModelOptions& options)
    : config_(checkpoint.config()),
      backend_(backend),
      options_(options),
      layout_(plan_cache(checkpoint.config(), options.numerics, options.rollback)),
      step_memory_(backend) {}

Result<std::unique_ptr<Model>> Model::load(const checkpoint::Checkpoint& checkpoint, ops::Backend& backend,
                                           const ModelOptions& options, const LoadProgress& progress) {
  if (options.max_step_tokens < 1 || options.max_logit_rows < 1 || options.rollback < 0) {
    return fail(Code::kInvalid, "a step needs room for at least one token and one row of logits (asked for {} and {})",
                options.max_step_tokens, options.max_logit_rows);
  }
  std::unique_ptr<Model> m(new Model(checkpoint, backend, options));
  const checkpoint::ModelConfig& c = m->config_;
  FATHOM_ASSIGN(m->weights_, load_weights(checkpoint, backend, options.numerics, progress));
  FATHOM_ASSIGN(m->activations_, Activations::allocate(c, options.max_step_tokens, backend));

  // Logits, and the inputs of the head beside them: the rows asked for, gathered.
  const std::int64_t rows = options.max_logit_rows;
  FATHOM_ASSIGN(m->logits_memory_,
                backend.allocate(sizeof(float) * static_cast<std::size_t>(rows * (std::int64_t{c.vocab} + c.hidden))));
  m->logits_ = mat(reinterpret_cast<float*>(m->logits_memory_.get()), rows, c.vocab);

  const std::vector<float> main = ops::rope_frequencies(c.rope_theta, c.rope_dim, {});
  const std::vector<float> compressed = ops::rope_frequencies(c.compress_rope_theta, c.rope_dim,
                                                              {.factor = c.yarn.factor,
                                                               .beta_fast = c.yarn.beta_fast,
                                                               .beta_slow = c.yarn.beta_slow,
                                                               .original_positions = c.yarn.original_positions});
  const std::size_t bytes = main.size() * sizeof(float);
  FATHOM_ASSIGN(m->frequencies_memory_, backend.allocate(2 * bytes));
  backend.copy_in(m->frequencies_memory_.get(), main.data(), bytes);
  backend.copy_in(m->frequencies_memory_.get() + bytes, compressed.data(), bytes);
  FATHOM_TRY(m->allocate_dspark());
  return m;
}

ForwardContext Model::context() const {
  const auto* frequencies = reinterpret_cast<const float*>(frequencies_memory_.get());
  return {.config = config_,
          .weights = weights_,
          .layout = layout_,
          .numerics = options_.numerics,
          .backend = backend_,
          .frequencies = frequencies,
          .compressed_frequencies = frequencies + config_.rope_dim / 2};
}

Result<> Model::check(std::span<const Chunk> chunks) const {
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const Chunk& c = chunks[i];
    for (const std::int32_t id : c.ids) {
      if (id < 0 || id >= config_.vocab) {
        return fail(Code::kInvalid, "token id {} is outside the vocabulary of {} ids", id, config_.vocab);
      }
    }
    if (c.start < 0 || static_cast<std::int64_t>(c.start) + c.tokens() > config_.max_positions) {
      return fail(Code::kInvalid, "tokens {} to {} of a sequence, but the model has {} positions", c.start,
                  static_cast<std::int64_t>(c.start) + c.tokens(), config_.max_positions);
    }
    FATHOM_CHECK(c.slot != nullptr || c.ids.empty(), "a sequence has a slot");
    tokens += c.tokens();
    rows += c.rows();
  }
  if (tokens > options_.max_step_tokens || rows > options_.max_logit_rows) {
    return fail(Code::kInvalid, "a step of {} tokens and {} rows of logits, the limits are {} and {}", tokens, rows,
                options_.max_step_tokens, options_.max_logit_rows);
  }
  return {};
}

Result<Mat<const float>> Model::forward(std::span<const Chunk> chunks, const Then& then) {
  FATHOM_TRY(check(chunks));
  for (const Chunk& c : chunks) {
    FATHOM_CHECK(
        static_cast<std::int32_t>(c.pages.size()) >= CacheLayout::pages_for(std::int64_t{c.start} + c.tokens()),
        "a sequence has pages for its tokens");
  }
  FATHOM_ASSIGN(const ops::Batch batch, step_memory_.upload(chunks));
  const ActivationViews a = activations_.views().first(batch.tokens);
  const ForwardContext ctx = context();
  last_streams_ = a.streams;
  const auto work = [&] {
    Forward step(ctx, a, batch);
    step.trunk();
    head(step, chunks, weights_.hc_head, weights_.norm, a.streams);
  };
  return run(Step::kTrunk, chunks, batch, work, then);
}

Result<Mat<const float>> Model::logits_of(Mat<const float> streams, const Then& then) {
  FATHOM_CHECK(streams.rows <= options_.max_logit_rows, "rows of logits there is memory for");
  const Mat<float> x = mat(logits_.data + logits_.rows * logits_.cols, streams.rows, config_.hidden);
  const ActivationViews a = activations_.views().first(0);
  const ForwardContext ctx = context();
  const ops::Batch no_tokens;
  const Forward step(ctx, a, no_tokens);
  step.head_input(weights_.hc_head, weights_.norm, streams, x);
  step.logits(x, logits_.slice(0, streams.rows));
  return finish(logits_.slice(0, streams.rows), then);
}

Result<Mat<const float>> Model::finish(Mat<const float> logits, const Then& then) {
  if (then && logits.rows > 0) then(logits);
  FATHOM_TRY(backend_.finish());
  return logits;
}

Result<Mat<const float>> Model::draft(std::span<const Chunk> chunks, Mat<const float> streams, const Then& then) {
  if (weights_.mtp.empty()) return fail(Code::kInvalid, "this checkpoint has no MTP block to draft with");
  FATHOM_TRY(check(chunks));
  FATHOM_ASSIGN(const ops::Batch batch, step_memory_.upload(chunks));
  const ActivationViews a = activations_.views().first(batch.tokens);
  FATHOM_CHECK(streams.rows == batch.tokens && streams.cols == a.streams.cols, "one row of streams per token");
  const MtpWeights& w = weights_.mtp.front();
  const std::int64_t rows = streams.rows * config_.streams;
  // Outside of what may be recorded: the streams come from wherever the caller has them.
  backend_.rms_norm({.x = mat(streams.data, rows, config_.hidden),
                     .w = w.hnorm,
                     .y = mat(a.h.data, rows, config_.hidden),
                     .eps = config_.norm_eps,
                     .carrier = options_.numerics.carrier});
  const ForwardContext ctx = context();
  last_draft_streams_ = a.draft_streams;
  const auto work = [&] {
    Forward step(ctx, a, batch);
    step.mtp(w, config_.layers);
    head(step, chunks, w.hc_head, w.norm, a.draft_streams);
  };
  return run(Step::kDraft, chunks, batch, work, then);
}

Result<Mat<const float>> Model::run(Step step, std::span<const Chunk> chunks, const ops::Batch& batch,
                                    const std::function<void()>& work, const Then& then) {
  constexpr std::int32_t kMostTokens = 256;  // larger steps are kept busy by their own size
  std::int64_t rows = 0;
  for (const Chunk& c : chunks) rows += c.rows();
  // Every row asked for: then which rows those are needs no telling. The step memory's generation stays far below 2^16.
  if (rows == batch.tokens && 0 < rows && rows <= kMostTokens) {
    const auto bound = static_cast<std::uint64_t>(std::bit_width(static_cast<std::uint32_t>(batch.longest)));
    std::uint64_t key = step_memory_.generation();
    key = key << 16 | static_cast<std::uint64_t>(batch.tokens);
    key = key << 16 | static_cast<std::uint64_t>(batch.n_segments);
    key = key << 8 | bound;
    key = key << 1 | static_cast<std::uint64_t>(step);
    backend_.replay(key, work);
  } else {
    work();
  }
  return finish(logits_.slice(0, rows), then);
}

void Model::head(const Forward& forward, std::span<const Chunk> chunks, const ops::HyperConnection& hc_head,
                 const float* norm, Mat<const float> streams) {
  const Mat<float> x = mat(logits_.data + logits_.rows * logits_.cols, logits_.rows, config_.hidden);
  std::int64_t row = 0;    // of x
  std::int64_t first = 0;  // of streams: rows [first, first + n) are wanted next
  std::int64_t n = 0;
  std::int64_t next = 0;
  const auto flush = [&] {
    if (n > 0) forward.head_input(hc_head, norm, streams.slice(first, n), x.slice(row, n));
    row += n;
    n = 0;
  };
  for (const Chunk& c : chunks) {
    next += c.tokens();
    const std::int64_t begin = next - c.rows();
    if (c.rows() == 0) continue;
    if (begin != first + n) {
      flush();
      first = begin;
    }
    n += c.rows();
  }
  flush();
  forward.logits(x.slice(0, row), logits_.slice(0, row));
}

}  // namespace fathom::model
