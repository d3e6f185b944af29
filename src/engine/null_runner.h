// NullRunner: a model that does nothing and says the same of every token, for measurements of the engine alone. Takes
// no memory once it is made.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "engine/runner.h"

namespace fathom::engine {

class NullRunner : public Runner {
 public:
  // drafts: there is a draft block; its guesses are always right.
  NullRunner(std::int32_t vocab, bool drafts) : NullRunner(small(vocab, drafts), ops::kFloat, 4096) {}
  // With the memory of a real one.
  NullRunner(const checkpoint::ModelConfig& c, ops::Numerics numerics, std::int32_t step_tokens)
      : row_(static_cast<std::size_t>(c.vocab)),
        stream_(static_cast<std::size_t>(c.streams) * static_cast<std::size_t>(c.hidden)),
        layout_(model::plan_cache(c, numerics, /*rollback=*/4)) {
    for (std::size_t i = 0; i < row_.size(); ++i) row_[i] = static_cast<float>(i * 2654435761U % 1000) * 0.01F;
    likeliest_ = static_cast<std::int32_t>(std::max_element(row_.begin(), row_.end()) - row_.begin());
    chosen_.reserve(static_cast<std::size_t>(step_tokens));
    facts_ = {.vocab = c.vocab,
              .max_positions = 1 << 20,
              .step_tokens = step_tokens,
              .logit_rows = step_tokens,
              .drafts = c.draft.stages == 1,
              .draft_layers = c.draft.stages,
              .stream_width = static_cast<std::int64_t>(stream_.size()),
              .identity = "null"};
  }

  const RunnerFacts& facts() const override { return facts_; }
  const model::CacheLayout& layout() const override { return layout_; }
  cache::Memory& memory() override { return memory_; }
  Result<LogitRows> forward(std::span<const model::Chunk> chunks, Rules rules) override { return rows(chunks, rules); }
  Result<LogitRows> draft(std::span<const model::Chunk> chunks, Mat<const float> /*streams*/, Rules rules) override {
    return rows(chunks, rules);
  }
  Result<LogitRows> logits_of(Mat<const float> streams, Rules rules) override { return rows(streams.rows, rules); }
  Mat<const float> streams() const override { return {stream_.data(), 1, facts_.stream_width, 0}; }
  Mat<const float> draft_streams() const override { return streams(); }

 private:
  static checkpoint::ModelConfig small(std::int32_t vocab, bool drafts) {
    checkpoint::ModelConfig c;
    c.vocab = vocab;
    c.hidden = 4;
    c.streams = 4;
    c.head_dim = 4;
    c.index_dim = 5;
    c.window = 16;
    c.compress_ratios = {0};
    c.layers = 1;
    c.draft.stages = drafts ? 1 : 0;
    return c;
  }
  // One row stands for all, and the likeliest token of all is known.
  LogitRows rows(std::int64_t n, Rules rules) {
    chosen_.clear();
    for (const ops::ChoiceRule& r : rules) chosen_.push_back(r.temperature == 0 ? likeliest_ : ops::kNoChoice);
    return {.logits = {row_.data(), n, facts_.vocab, 0}, .chosen = chosen_};
  }
  LogitRows rows(std::span<const model::Chunk> chunks, Rules rules) {
    std::int64_t n = 0;
    for (const model::Chunk& c : chunks) n += c.rows();
    return rows(n, rules);
  }

  std::vector<float> row_;
  std::int32_t likeliest_ = 0;
  std::vector<std::int32_t> chosen_;
  std::vector<float> stream_;
  model::CacheLayout layout_;
  RunnerFacts facts_;
  cache::HostMemory memory_;
};

// Hears and forgets.
class NullSink final : public Sink {
 public:
  Verdict token(std::int32_t /*choice*/, const Sampled& /*token*/) override { return Verdict::kGoOn; }
  void done(Result<Outcome> /*outcome*/) override {}
};

}  // namespace fathom::engine
