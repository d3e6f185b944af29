#include "support/fake_runner.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace fathom::testing {
namespace {

using Hash = FakeModel::Hash;

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 32U)) * 0xd6e8feb86659fd93ULL;
  return x ^ (x >> 32U);
}

void put(std::vector<float>& rows, Hash h) {
  const std::size_t at = rows.size();
  rows.resize(at + 2);
  std::memcpy(rows.data() + at, &h, sizeof h);
}
Hash get(Mat<const float> rows, std::int64_t i) {
  Hash h{};
  std::memcpy(&h, rows.row(i), sizeof h);
  return h;
}

}  // namespace

FakeRunner::FakeRunner(const FakeRunnerOptions& options) : options_(options), model_(options.shape) {
  facts_ = {.vocab = options.vocab,
            .max_positions = options.max_positions,
            .step_tokens = options.step_tokens,
            .logit_rows = options.logit_rows,
            .drafts = options.shape.draft,
            .draft_layers = model_.draft_layers(),
            .stream_width = 2,
            .identity = "fake"};
}

void FakeRunner::logits(Hash hash, std::span<float> out) const {
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(mix(hash + i * 0x9e3779b97f4a7c15ULL) % 1000) * 0.006F;
  }
  if (spoil) spoil(hash, out);
}

void FakeRunner::add_row(Hash hash) {
  const std::size_t at = logits_.size();
  logits_.resize(at + static_cast<std::size_t>(facts_.vocab));
  logits(hash, std::span(logits_).subspan(at));
}

engine::LogitRows FakeRunner::rows(engine::Rules rules) {
  const auto n = static_cast<std::int64_t>(logits_.size()) / facts_.vocab;
  engine::LogitRows out{.logits = {logits_.data(), n, facts_.vocab, facts_.vocab}};
  if (!options_.chooses || rules.empty()) return out;
  FATHOM_CHECK(static_cast<std::int64_t>(rules.size()) == n, "a rule for every row");
  chosen_.assign(rules.size(), 0);
  ops::ref::run(ops::Choose{.logits = out.logits, .rules = rules.data(), .chosen = chosen_.data()});
  for (std::size_t i = 0; i < chosen_.size(); ++i) {
    if (chosen_[i] == ops::kNoChoice) continue;
    ++chosen;
    std::fill_n(logits_.begin() + static_cast<std::ptrdiff_t>(i) * facts_.vocab, facts_.vocab,
                std::numeric_limits<float>::quiet_NaN());
  }
  out.chosen = chosen_;
  return out;
}

// As strict as a model.
Result<> FakeRunner::check(std::span<const model::Chunk> chunks) const {
  std::int32_t n = 0;
  std::int32_t rows = 0;
  for (const model::Chunk& c : chunks) {
    n += c.tokens();
    rows += c.rows();
    for (const std::int32_t id : c.ids) {
      if (id < 0 || id >= facts_.vocab) return fail(Code::kInvalid, "token {}", id);
    }
    if (c.start + c.tokens() > facts_.max_positions) return fail(Code::kInvalid, "position {}", c.start + c.tokens());
    if (static_cast<std::int32_t>(c.pages.size()) < model::CacheLayout::pages_for(c.start + c.tokens()))
      return fail(Code::kInvalid, "too few pages");
  }
  if (n > facts_.step_tokens || rows > facts_.logit_rows) return fail(Code::kInvalid, "{} tokens, {} rows", n, rows);
  return {};
}

Result<engine::LogitRows> FakeRunner::forward(std::span<const model::Chunk> chunks, engine::Rules rules) {
  if (before_forward) before_forward(chunks);
  if (fail_next) return fail(Code::kInternal, "the device is gone");
  FATHOM_TRY(check(chunks));
  ++steps;
  streams_.clear();
  logits_.clear();
  rows_ = 0;
  for (const model::Chunk& c : chunks) {
    const auto hashes = model_.trunk(c);
    for (const Hash h : hashes) put(streams_, h);
    rows_ += c.tokens();
    if (c.logits == model::Rows::kLast && !hashes.empty()) add_row(hashes.back());
    if (c.logits == model::Rows::kAll) {
      for (const Hash h : hashes) add_row(h);
    }
  }
  tokens += static_cast<std::uint64_t>(rows_);
  most_tokens = std::max(most_tokens, static_cast<std::int32_t>(rows_));
  return rows(rules);
}

Result<engine::LogitRows> FakeRunner::draft(std::span<const model::Chunk> chunks, Mat<const float> streams,
                                            engine::Rules rules) {
  FATHOM_TRY(check(chunks));
  logits_.clear();
  draft_streams_.clear();
  draft_rows_ = 0;
  for (const model::Chunk& c : chunks) {
    std::vector<Hash> in;
    for (std::int32_t i = 0; i < c.tokens(); ++i) in.push_back(get(streams, draft_rows_ + i));
    model_.draft(c, in);
    for (std::size_t i = 0; i < in.size(); ++i) put(draft_streams_, FakeModel::next(in[i], c.ids[i]));
    draft_rows_ += c.tokens();
    if (c.rows() == 0) continue;
    // After the next token the trunk will be in this state; the guess is what it will say then, or something else.
    const Hash h = FakeModel::next(in.back(), c.ids.back());
    add_row(static_cast<std::int32_t>(mix(h ^ 0x1234567U) % 100) < options_.percent_right ? h : h + 1);
  }
  return rows(rules);
}

Result<engine::LogitRows> FakeRunner::logits_of(Mat<const float> streams, engine::Rules rules) {
  logits_.clear();
  for (std::int64_t i = 0; i < streams.rows; ++i) add_row(get(streams, i));
  return rows(rules);
}

Expected expected(const RunTokens& run, const engine::Request& request, std::int32_t choice,
                  std::int32_t position_limit, const StopsAt& stop) {
  Expected out;
  std::vector<std::int32_t> next = request.prompt;
  engine::SamplingParams params = request.sampling;
  params.seed = engine::seed_of_choice(params.seed, choice);
  engine::SamplingParams early = params;
  early.banned.insert(early.banned.end(), request.stop_ids.begin(), request.stop_ids.end());
  const auto prompt = static_cast<std::int32_t>(next.size());
  const std::int32_t most =
      std::min(position_limit - prompt, request.max_tokens == 0 ? position_limit : request.max_tokens);
  if (request.prompt_only) return out;
  engine::TokenHistory history;
  history.add_prompt(next);
  const auto constraint = request.constraint != nullptr ? request.constraint->fresh() : nullptr;
  engine::Sampler sampler;
  for (std::int32_t i = 0; i < most; ++i) {
    const std::span<const float> logits = run(next);
    const Result<std::span<const std::uint64_t>> allowed =
        constraint != nullptr ? constraint->allowed() : std::span<const std::uint64_t>{};
    const auto choose = [&](const engine::SamplingParams& with) {
      return sampler.sample({.logits = logits, .params = with, .history = &history, .index = i, .allowed = *allowed});
    };
    auto token = choose(i < request.min_tokens ? early : params);
    // A constraint that leaves nothing but the end outranks min_tokens.
    if (!token && token.error().code == Code::kInvalid && constraint != nullptr) token = choose(params);
    if (!token) {
      out.fails = true;
      return out;
    }
    const std::int32_t id = token->id;
    history.add_output(id);
    if (constraint != nullptr) constraint->accept(id);
    next.assign(1, id);
    out.tokens.push_back(*std::move(token));
    const auto& stops = request.stop_ids;
    const bool ended = constraint != nullptr && constraint->ended();
    if (ended || std::find(stops.begin(), stops.end(), id) != stops.end() || (stop && stop(id))) {
      out.finish = engine::Finish::kStop;
      return out;
    }
  }
  return out;
}

std::vector<engine::Sampled> expected_scores(const RunTokens& run, const engine::Request& request) {
  std::vector<engine::Sampled> out;
  const std::span<const std::int32_t> prompt = request.prompt;
  const std::int32_t n_top = request.sampling.logprobs ? request.sampling.top_logprobs : 0;
  for (std::size_t i = 0; i + 1 < prompt.size(); ++i) {
    auto scored = engine::score(run(prompt.subspan(i, 1)), prompt[i + 1], n_top);
    if (!scored) break;  // the request fails here
    out.push_back(*std::move(scored));
  }
  return out;
}

namespace {
RunTokens by_hashing(const FakeRunner& runner) {
  return [&runner, h = FakeModel::hash({}), row = std::vector<float>(static_cast<std::size_t>(runner.facts().vocab))](
             std::span<const std::int32_t> next) mutable -> std::span<const float> {
    for (const std::int32_t id : next) h = FakeModel::next(h, id);
    runner.logits(h, row);
    return row;
  };
}
}  // namespace

Expected expected(const FakeRunner& runner, const engine::Request& request, std::int32_t choice,
                  std::int32_t position_limit, const StopsAt& stop) {
  return expected(by_hashing(runner), request, choice, position_limit, stop);
}
std::vector<engine::Sampled> expected_scores(const FakeRunner& runner, const engine::Request& request) {
  return expected_scores(by_hashing(runner), request);
}

}  // namespace fathom::testing
