// TapBackend: passes everything on to another backend and, when asked to, keeps a copy of every operation of a step, so
// that one kind of operation can be run alone, again and again.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ops/backend.h"

namespace fathom::cli {

struct Tapped {
  std::string name;
  double bytes = 0;  // that have to move at least: weights and cache entries read, rows read and written
  double flops = 0;  // of products with weights, cache entries and index keys; two for a multiply-add
  std::function<void(ops::Backend&)> run;
};

class TapBackend : public ops::Backend {
 public:
  explicit TapBackend(std::unique_ptr<ops::Backend> to) : owned_(std::move(to)), to_(*owned_) {}

  // What `steps` asks for, in order, while it runs. It runs unrecorded, operation by operation.
  std::vector<Tapped> tap(const std::function<void()>& steps) {
    tapping_ = true;
    steps();
    tapping_ = false;
    return std::exchange(taken_, {});
  }
  ops::Backend& inner() { return to_; }
  // Of all operations so far, recorded ones at their recording alone.
  double flops() const { return flops_; }

  std::string_view name() const override { return to_.name(); }
  bool on_host() const override { return to_.on_host(); }
  std::uint64_t launches() const override { return to_.launches(); }
  Result<ops::Buffer> allocate(std::size_t bytes) override { return to_.allocate(bytes); }
  std::size_t free_bytes() override { return to_.free_bytes(); }
  void copy_in(std::byte* to, const void* from, std::size_t bytes) override { to_.copy_in(to, from, bytes); }
  void copy_out(void* to, const std::byte* from, std::size_t bytes) override { to_.copy_out(to, from, bytes); }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override { to_.copy(to, from, bytes); }
  Result<const std::byte*> adopt(std::span<const std::byte> weights) override { return to_.adopt(weights); }
  void prepare(const ops::Weight& w) override { to_.prepare(w); }
  Result<> finish() override { return to_.finish(); }
  void replay(std::uint64_t key, const std::function<void()>& step) override {
    if (tapping_) step();
    else to_.replay(key, step);
  }

  void beside(const std::function<void()>& work) override {
    if (tapping_) work();
    else to_.beside(work);
  }
  void meet() override { to_.meet(); }

  void embed(const ops::Embed& op) override { keep("embed", bytes_of(op.x) * 2, op, &Backend::embed); }
  void linear(const ops::Linear& op) override {
    keep(linear_name(op), bytes_of(op.w) + bytes_of(op.x) + bytes_of(op.y), op, &Backend::linear, flops_of(op));
  }
  void linears(std::span<const ops::Linear> all) override {
    double bytes = 0;
    double flops = 0;
    std::int64_t rows = 0;
    for (const ops::Linear& op : all) {
      flops += flops_of(op);
      bytes += bytes_of(op.w) + bytes_of(op.y) + (&op == all.data() ? bytes_of(op.x) : 0.0);
      rows += op.w.rows;
    }
    if (tapping_) {
      taken_.push_back({fmt::format("{} linears [{}, {}]", all.size(), rows, all.front().w.cols), bytes, flops,
                        [ops = std::vector(all.begin(), all.end())](Backend& b) { b.linears(ops); }});
    }
    flops_ += flops;
    to_.linears(all);
  }
  void rms_norm(const ops::RmsNorm& op) override { keep("rms_norm", bytes_of(op.x) * 2, op, &Backend::rms_norm); }
  void rope_table(const ops::RopeTable& op) override {
    keep("rope_table", bytes_of(op.cos) * 2, op, &Backend::rope_table);
  }
  void hc_pre(const ops::HcPre& op) override {
    keep("hc_pre", bytes_of(op.streams) + bytes_of(op.x) + 24.0 * 4 * static_cast<double>(op.streams.cols), op,
         &Backend::hc_pre, flops_of(op));
  }
  void hc_post(const ops::HcPost& op) override {
    keep("hc_post", bytes_of(op.streams) * 2 + bytes_of(op.y), op, &Backend::hc_post);
  }
  void hc_post_pre(const ops::HcPostPre& op) override {
    keep("hc_post_pre",
         bytes_of(op.post.streams) * 2 + bytes_of(op.post.y) + bytes_of(op.pre.x) +
             24.0 * 4 * static_cast<double>(op.pre.streams.cols),
         op, &Backend::hc_post_pre, flops_of(op.pre));
  }
  void hc_head(const ops::HcHead& op) override { keep("hc_head", bytes_of(op.streams), op, &Backend::hc_head); }
  void stream_mean(const ops::StreamMean& op) override {
    keep("stream_mean", bytes_of(op.streams), op, &Backend::stream_mean);
  }
  void query_heads(const ops::QueryHeads& op) override {
    keep("query_heads", bytes_of(op.q) * 2, op, &Backend::query_heads);
  }
  void window_entries(const ops::WindowEntries& op) override {
    keep("window_entries", bytes_of(op.kv) * 2, op, &Backend::window_entries);
  }
  void attention_inputs(const ops::AttentionInputs& op) override {
    double bytes = bytes_of(op.latent.x) * 2 + bytes_of(op.window.kv) * (op.store ? 3 : 2);
    for (const auto* c : {&op.entries, &op.keys}) {
      if (*c) bytes += bytes_of((*c)->kv) * 4;
    }
    const char* name = !op.entries ? "inputs (window)" : op.keys ? "inputs (4)" : "inputs (128)";
    keep(name, bytes, op, &Backend::attention_inputs);
  }
  void queries(const ops::Queries& op) override {
    const double index = op.index ? bytes_of(op.index->q) * 2 : 0;
    keep(op.index ? "queries (4)" : "queries", bytes_of(op.heads.q) * 2 + index, op, &Backend::queries);
  }
  void sparse_attention(const ops::SparseAttention& op) override {
    double rows = op.window;
    if (op.entries.ratio != 0) {
      const double exist = static_cast<double>(op.batch.longest) / op.entries.ratio;
      rows += op.selected.data != nullptr ? std::min(exist, static_cast<double>(op.selected.cols)) : exist;
    }
    const char* name = op.entries.ratio == 0   ? "attention (window)"
                       : op.entries.ratio == 4 ? "attention (4)"
                                               : "attention (128)";
    keep(name,
         bytes_of(op.q) + bytes_of(op.out) + rows * op.batch.n_segments * static_cast<double>(op.ring.codec.bytes()),
         op, &Backend::sparse_attention, flops_of(op));
  }
  // Taken apart where operations are looked at one by one.
  void attend(const ops::Attend& op) override {
    if (tapping_) return Backend::attend(op);
    if (op.select) flops_ += flops_of(*op.select);
    flops_ += flops_of(op.attention) + flops_of(op.project);
    to_.attend(op);
  }
  void store_window(const ops::StoreWindow& op) override {
    keep("store_window", bytes_of(op.kv), op, &Backend::store_window);
  }
  void compress(const ops::Compress& op) override { keep("compress", bytes_of(op.kv) * 3, op, &Backend::compress); }
  void index_query(const ops::IndexQuery& op) override {
    keep("index_query", bytes_of(op.q) * 2, op, &Backend::index_query);
  }
  void index_select(const ops::IndexSelect& op) override {
    const double keys = static_cast<double>(op.batch.longest) / op.keys.ratio * op.batch.n_segments;
    keep("index_select", keys * static_cast<double>(op.keys.codec.bytes()) + bytes_of(op.q), op, &Backend::index_select,
         flops_of(op));
  }
  void route(const ops::Route& op) override { keep("route", bytes_of(op.logits), op, &Backend::route); }
  void experts(const ops::Experts& op) override {
    // Distinct experts of random routing, and the shared one.
    const double e = op.n_routed;
    double unused = e;
    for (std::int64_t t = 0; t < op.x.rows; ++t) unused *= 1 - static_cast<double>(op.experts.cols) / e;
    const auto weights = [](const ops::ExpertWeights& w) { return bytes_of(w.w1) + bytes_of(w.w3) + bytes_of(w.w2); };
    const auto cells = [](const ops::ExpertWeights& w) { return 3.0 * static_cast<double>(w.w1.rows * w.w1.cols); };
    const double flops = 2.0 * static_cast<double>(op.x.rows) *
                         (static_cast<double>(op.experts.cols) * cells(op.routed_like) + cells(op.shared));
    keep("experts", (e - unused) * weights(op.routed_like) + weights(op.shared) + bytes_of(op.x) + bytes_of(op.y), op,
         &Backend::experts, flops);
  }
  void mtp_input(const ops::MtpInput& op) override { keep("mtp_input", bytes_of(op.x) * 2, op, &Backend::mtp_input); }
  void choose(const ops::Choose& op) override { keep("choose", bytes_of(op.logits), op, &Backend::choose); }

 private:
  template <class T>
  static double bytes_of(const Mat<T>& m) {
    return static_cast<double>(m.rows * m.cols) * sizeof(T);
  }
  static double bytes_of(const ops::Weight& w) {
    double scales = 0;
    if (w.dtype == DType::kFp4x2) scales = static_cast<double>(w.rows * w.cols / 32);
    if (w.dtype == DType::kF8E4M3) scales = static_cast<double>((w.rows / 128) * (w.cols / 128));
    return static_cast<double>(w.rows * w.row_bytes()) + scales * static_cast<double>(size_of(w.scale_dtype));
  }
  static std::string linear_name(const ops::Linear& op) {
    return fmt::format("linear {} [{}, {}]{}", fathom::name_of(op.w.dtype), op.w.rows, op.w.cols,
                       op.groups > 1 ? fmt::format(" x {} groups", op.groups) : "");
  }
  static double flops_of(const ops::Linear& op) { return 2.0 * static_cast<double>(op.x.rows * op.w.rows * op.w.cols); }
  static double flops_of(const ops::HcPre& op) {
    return 2.0 * static_cast<double>(op.streams.rows * op.streams.cols * (op.comb.cols + 2 * op.post.cols));
  }
  // each(tokens of the sequence so far), added up over the tokens; on a device, whose positions are out of reach, as if
  // all were at the longest.
  template <class Each>
  double over_tokens(const ops::Batch& batch, const Each& each) const {
    if (!on_host()) return batch.tokens * each(batch.longest);
    double sum = 0;
    for (std::int32_t t = 0; t < batch.tokens; ++t) sum += each(batch.positions[t] + 1);
    return sum;
  }
  double flops_of(const ops::SparseAttention& op) const {
    const double rows = over_tokens(op.batch, [&](std::int32_t length) {
      double n = std::min(length, op.window);
      if (op.entries.ratio == 0) return n;
      const double exist = length / op.entries.ratio;
      return n + (op.selected.data != nullptr ? std::min(exist, static_cast<double>(op.selected.cols)) : exist);
    });
    return 4.0 * rows * static_cast<double>(op.q.cols);
  }
  double flops_of(const ops::IndexSelect& op) const {
    const double keys = over_tokens(op.batch, [&](std::int32_t length) {
      const std::int32_t exist = length / op.keys.ratio;
      return exist > op.selected.cols ? static_cast<double>(exist) : 0.0;
    });
    return 2.0 * keys * static_cast<double>(op.q.cols);
  }
  template <class Op>
  void keep(std::string name, double bytes, const Op& op, void (Backend::*method)(const Op&), double flops = 0) {
    if (tapping_) taken_.push_back({std::move(name), bytes, flops, [op, method](Backend& b) { (b.*method)(op); }});
    flops_ += flops;
    (to_.*method)(op);
  }

  std::unique_ptr<ops::Backend> owned_;
  ops::Backend& to_;
  bool tapping_ = false;
  double flops_ = 0;
  std::vector<Tapped> taken_;
};

}  // namespace fathom::cli
