#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "server/json_out.h"

namespace fathom::server {
namespace {

// The order of histograms_.
enum { kFirstToken, kPerToken, kGap, kTotal, kQueue, kInference, kPrefill, kDecode, kPrompt, kGenerated, kChoices };

constexpr double kSeconds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                               30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
constexpr double kFirst[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                             1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
constexpr double kChoiceCounts[] = {1, 2, 5, 10, 20};
constexpr double kTokens[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6};

void line(std::string& out, std::string_view name, std::string_view labels, double value) {
  fmt::format_to(std::back_inserter(out), "{}{{{}}} {}\n", name, labels, value);
}

void head(std::string& out, std::string_view name, std::string_view type) {
  fmt::format_to(std::back_inserter(out), "# TYPE {} {}\n", name, type);
}

}  // namespace

Metrics::Metrics() {
  const auto add = [this](const char* name, std::span<const double> bounds) {
    histograms_.push_back({name, {bounds.begin(), bounds.end()}, std::vector<std::uint64_t>(bounds.size() + 1), 0});
  };
  add("vllm:time_to_first_token_seconds", kFirst);
  add("vllm:request_time_per_output_token_seconds", TokenGaps::kBounds);
  add("vllm:inter_token_latency_seconds", TokenGaps::kBounds);
  add("vllm:e2e_request_latency_seconds", kSeconds);
  add("vllm:request_queue_time_seconds", kSeconds);
  add("vllm:request_inference_time_seconds", kSeconds);
  add("vllm:request_prefill_time_seconds", kSeconds);
  add("vllm:request_decode_time_seconds", kSeconds);
  add("vllm:request_prompt_tokens", kTokens);
  add("vllm:request_generation_tokens", kTokens);
  add("vllm:request_params_n", kChoiceCounts);
}

void Metrics::Histogram::add(double value) {
  ++counts[static_cast<std::size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin())];
  sum += value;
}

void Metrics::answered(int status) {
  const std::lock_guard lock(mutex_);
  ++answers_[status];
}

void Metrics::ended(const AnswerReport& r) {
  const std::lock_guard lock(mutex_);
  ++ended_[std::string(r.reason)];
  histograms_[kChoices].add(r.n);
  Histogram& gaps = histograms_[kGap];
  for (std::size_t i = 0; i < gaps.counts.size(); ++i) gaps.counts[i] += r.gaps.counts[i];
  gaps.sum += r.gaps.sum;
  if (r.reason != "stop" && r.reason != "length") return;
  const engine::Outcome& o = r.outcome;
  histograms_[kFirstToken].add(o.first_token_ms / 1e3);
  if (o.completion_tokens > 1)
    histograms_[kPerToken].add((o.total_ms - o.first_token_ms) / 1e3 / (o.completion_tokens - 1));
  histograms_[kTotal].add(o.total_ms / 1e3);
  histograms_[kQueue].add(o.queued_ms / 1e3);
  histograms_[kInference].add((o.total_ms - o.queued_ms) / 1e3);
  histograms_[kPrefill].add((o.first_token_ms - o.queued_ms) / 1e3);
  histograms_[kDecode].add((o.total_ms - o.first_token_ms) / 1e3);
  histograms_[kPrompt].add(static_cast<double>(r.usage.prompt));
  histograms_[kGenerated].add(static_cast<double>(r.usage.completion));
}

std::string Metrics::text(std::string_view model, const engine::CoreStats& e,
                          const grammar::CompilerStats& grammars) const {
  const std::string labels = fmt::format("model_name={},engine=\"0\"", quote(model));
  std::string out;
  const auto one = [&](std::string_view name, std::string_view type, double value) {
    head(out, name, type);
    line(out, name, labels, value);
  };
  one("vllm:num_requests_running", "gauge", e.running);
  one("vllm:num_requests_waiting", "gauge", e.waiting);
  const auto& c = e.cache;
  one("vllm:kv_cache_usage_perc", "gauge", c.pages > 0 ? static_cast<double>(c.pages_of_lanes) / c.pages : 0);
  one("vllm:prefix_cache_queries_total", "counter", static_cast<double>(e.queried_tokens));
  one("vllm:prefix_cache_hits_total", "counter", static_cast<double>(e.reused_tokens));
  one("vllm:num_preemptions_total", "counter", static_cast<double>(e.preemptions));
  one("vllm:prompt_tokens_total", "counter", static_cast<double>(e.queried_tokens));
  one("vllm:generation_tokens_total", "counter", static_cast<double>(e.answer_tokens));
  one("fathom_steps_total", "counter", static_cast<double>(e.steps));
  one("fathom_requests_ended_per_second", "gauge", e.ends_per_second);
  one("fathom_expired_requests_total", "counter", static_cast<double>(e.expired));
  one("fathom_computed_prompt_tokens_total", "counter", static_cast<double>(e.prompt_tokens));
  one("fathom_cache_pages", "gauge", c.pages);
  one("fathom_cache_pages_free", "gauge", c.pages_free);
  one("fathom_cache_snapshots_in_memory", "gauge", static_cast<double>(c.snapshots_in_memory));
  one("fathom_cache_snapshots_on_disk", "gauge", static_cast<double>(c.snapshots_on_disk));
  one("fathom_cache_disk_bytes", "gauge", static_cast<double>(c.disk_bytes));
  one("fathom_cache_disk_loads_total", "counter", static_cast<double>(c.loads));
  one("fathom_cache_evicted_from_memory_total", "counter", static_cast<double>(c.evicted_from_memory));
  one("vllm:spec_decode_num_drafts_total", "counter", static_cast<double>(e.speculation.bursts));
  one("vllm:spec_decode_num_draft_tokens_total", "counter", static_cast<double>(e.speculation.verified));
  one("fathom_guesses_withheld_total", "counter", static_cast<double>(e.speculation.withheld));
  one("vllm:spec_decode_num_accepted_tokens_total", "counter", static_cast<double>(e.speculation.accepted));
  one("fathom_grammar_compilations_total", "counter", static_cast<double>(grammars.compiled));
  one("fathom_grammar_refusals_total", "counter", static_cast<double>(grammars.refused));
  one("fathom_grammar_cache_hits_total", "counter", static_cast<double>(grammars.hits));
  one("fathom_grammar_cache_bytes", "gauge", static_cast<double>(grammars.bytes));
  one("fathom_grammars_waiting", "gauge", static_cast<double>(grammars.waiting));
  head(out, "fathom_build_info", "gauge");
  line(out, "fathom_build_info", labels + ",version=\"" FATHOM_VERSION "\"", 1);
  const std::lock_guard lock(mutex_);
  head(out, "vllm:request_success_total", "counter");
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    const auto found = ended_.find(reason);
    line(out, "vllm:request_success_total", fmt::format("{},finished_reason=\"{}\"", labels, reason),
         found == ended_.end() ? 0 : static_cast<double>(found->second));
  }
  head(out, "fathom_http_answers_total", "counter");
  for (const auto& [status, n] : answers_) {
    line(out, "fathom_http_answers_total", fmt::format("{},status=\"{}\"", labels, status), static_cast<double>(n));
  }
  for (const Histogram& h : histograms_) {
    head(out, h.name, "histogram");
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < h.counts.size(); ++i) {
      below += h.counts[i];
      const std::string bound = i < h.bounds.size() ? fmt::format("{}", h.bounds[i]) : "+Inf";
      line(out, h.name + "_bucket", fmt::format("{},le=\"{}\"", labels, bound), static_cast<double>(below));
    }
    line(out, h.name + "_sum", labels, h.sum);
    line(out, h.name + "_count", labels, static_cast<double>(below));
  }
  return out;
}

}  // namespace fathom::server
