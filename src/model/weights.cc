#include "model/weights.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "base/check.h"
#include "ops/weight.h"
#include "quant/bf16.h"

namespace fathom::model {
namespace {

using checkpoint::Checkpoint;
using checkpoint::ModelConfig;
using checkpoint::Tensor;

// Binds names to views. The first error sticks; what is bound after it is never used.
class Binder {
 public:
  Binder(const Checkpoint& checkpoint, ops::Backend& backend, ops::Numerics numerics, Weights& out,
         const LoadProgress& progress)
      : checkpoint_(checkpoint),
        backend_(backend),
        fp8_products_(numerics.quantise && numerics.carrier == ops::Carrier::kBf16),
        out_(out),
        progress_(progress) {
    for (const Tensor& t : checkpoint.tensors()) all_ += t.bytes.size();
  }

  // A matrix, with its scales where it is quantised.
  ops::Weight matrix(const std::string& module) { return bind(module, /*quantised_inputs=*/false); }
  // One whose inputs are put through FP8, where the numerics do that.
  ops::Weight projection(const std::string& module) { return bind(module, fp8_products_); }

  // A vector or small f32 matrix, widened where it is stored as bf16.
  const float* floats(const std::string& name) {
    const Tensor* t = find(name);
    if (t == nullptr) return nullptr;
    if (t->dtype == DType::kF32) return reinterpret_cast<const float*>(adopt(t->bytes));
    std::vector<float>& wide = out_.floats.emplace_back(t->bytes.size() / sizeof(quant::Bf16));
    for (std::size_t i = 0; i < wide.size(); ++i) {
      quant::Bf16 b;
      std::memcpy(&b, t->bytes.data() + i * sizeof(b), sizeof(b));
      wide[i] = quant::to_f32(b);
    }
    return reinterpret_cast<const float*>(adopt(std::as_bytes(std::span(wide))));
  }

  // The routing table, narrowed to i32. Opening the checkpoint has checked its ids; a bad one would index past the
  // experts.
  const std::int32_t* expert_table(const std::string& name, std::int32_t n_experts) {
    const Tensor* t = find(name);
    if (t == nullptr) return nullptr;
    std::vector<std::int32_t>& narrow = out_.integers.emplace_back(t->bytes.size() / sizeof(std::int64_t));
    for (std::size_t i = 0; i < narrow.size(); ++i) {
      std::int64_t id = 0;
      std::memcpy(&id, t->bytes.data() + i * sizeof(id), sizeof(id));
      FATHOM_CHECK(id >= 0 && id < n_experts, "the routing table was checked when the checkpoint was opened");
      narrow[i] = static_cast<std::int32_t>(id);
    }
    return reinterpret_cast<const std::int32_t*>(adopt(std::as_bytes(std::span(narrow))));
  }

  ops::HyperConnection hyper_connection(const std::string& prefix) {
    return {.fn = floats(prefix + "_fn"), .base = floats(prefix + "_base"), .scale = floats(prefix + "_scale")};
  }

  CompressorWeights compressor(const std::string& module) {
    return {.wkv = matrix(module + ".wkv"),
            .wgate = matrix(module + ".wgate"),
            .ape = floats(module + ".ape"),
            .norm = floats(module + ".norm.weight")};
  }

  ops::ExpertWeights expert(const std::string& module, bool quantised_inputs) {
    return {.w1 = bind(module + ".w1", quantised_inputs),
            .w3 = bind(module + ".w3", quantised_inputs),
            .w2 = bind(module + ".w2", quantised_inputs)};
  }
  // Whether that holds of all experts of a layer: of quantised ones it does.
  bool packs_experts(const std::string& module) {
    const auto quantised = [&](const std::string& expert) {
      const Tensor* t = find(module + expert + ".w1.weight");
      return t != nullptr && ops::Weight{.dtype = t->dtype}.quantised();
    };
    return fp8_products_ && quantised(".experts.0") && quantised(".shared_experts");
  }

  const ops::ExpertWeights* table(const std::vector<ops::ExpertWeights>& experts) {
    return reinterpret_cast<const ops::ExpertWeights*>(adopt(std::as_bytes(std::span(experts))));
  }

  const std::optional<Error>& error() const { return error_; }

  // What a backend does to matrices waits until all are on their way: it could not while one is.
  void prepare_matrices() {
    for (const ops::Weight& w : quantised_) backend_.prepare(w);
  }

 private:
  ops::Weight bind(const std::string& module, bool quantised_inputs) {
    const Tensor* t = find(module + ".weight");
    if (t == nullptr) return {};
    const bool packed = t->dtype == DType::kFp4x2;
    ops::Weight w{
        .dtype = t->dtype, .data = adopt(t->bytes), .rows = t->shape[0], .cols = t->shape[1] * (packed ? 2 : 1)};
    if (w.quantised()) {
      if (const Tensor* s = find(module + ".scale"); s != nullptr) {
        w.scale_dtype = s->dtype;
        w.scales = adopt(s->bytes);
      }
      w.quantised_inputs = quantised_inputs;
      quantised_.push_back(w);
    }
    return w;
  }

  const Tensor* find(const std::string& name) {
    const Tensor* t = checkpoint_.find(name);
    if (t == nullptr)
      note(Error{Code::kNotFound, fmt::format("{}: tensor {} is missing", checkpoint_.path().string(), name)});
    return t;
  }

  const std::byte* adopt(std::span<const std::byte> bytes) {
    auto placed = backend_.adopt(bytes);
    done_ += bytes.size();
    if (progress_) progress_(std::min(done_, all_), all_);
    if (placed) return *placed;
    note(placed.error());
    return nullptr;
  }

  void note(Error e) {
    if (!error_) error_ = std::move(e);
  }

  const Checkpoint& checkpoint_;
  ops::Backend& backend_;
  const bool fp8_products_;
  Weights& out_;
  const LoadProgress& progress_;
  std::uint64_t done_ = 0;
  std::uint64_t all_ = 0;
  std::optional<Error> error_;
  std::vector<ops::Weight> quantised_;
};

AttentionWeights bind_attention(Binder& b, const std::string& p, std::int32_t ratio) {
  AttentionWeights a{.wq_a = b.projection(p + ".wq_a"),
                     .q_norm = b.floats(p + ".q_norm.weight"),
                     .wq_b = b.projection(p + ".wq_b"),
                     .wkv = b.projection(p + ".wkv"),
                     .kv_norm = b.floats(p + ".kv_norm.weight"),
                     .sink = b.floats(p + ".attn_sink"),
                     .wo_a = b.matrix(p + ".wo_a"),
                     .wo_b = b.projection(p + ".wo_b"),
                     .compressor = {},
                     .indexer = {}};
  if (ratio != 0) a.compressor = b.compressor(p + ".compressor");
  if (ratio == 4) {
    a.indexer = {.wq_b = b.projection(p + ".indexer.wq_b"),
                 .weights_proj = b.matrix(p + ".indexer.weights_proj"),
                 .compressor = b.compressor(p + ".indexer.compressor")};
  }
  return a;
}

MoeWeights bind_moe(Binder& b, const std::string& p, const ModelConfig& c, bool by_token_id) {
  const bool quantised_inputs = b.packs_experts(p);
  MoeWeights m{.gate = b.matrix(p + ".gate"),
               .bias = nullptr,
               .table = nullptr,
               .routed = {},
               .routed_table = nullptr,
               .shared = b.expert(p + ".shared_experts", quantised_inputs)};
  if (by_token_id) {
    m.table = b.expert_table(p + ".gate.tid2eid", c.routed_experts);
  } else {
    m.bias = b.floats(p + ".gate.bias");
  }
  m.routed.reserve(static_cast<std::size_t>(c.routed_experts));
  for (std::int32_t e = 0; e < c.routed_experts; ++e) {
    m.routed.push_back(b.expert(fmt::format("{}.experts.{}", p, e), quantised_inputs));
  }
  m.routed_table = b.table(m.routed);
  return m;
}

LayerWeights bind_layer(Binder& b, const std::string& p, const ModelConfig& c, std::int32_t ratio, bool by_token_id) {
  return {.attn_norm = b.floats(p + ".attn_norm.weight"),
          .ffn_norm = b.floats(p + ".ffn_norm.weight"),
          .attn_hc = b.hyper_connection(p + ".hc_attn"),
          .ffn_hc = b.hyper_connection(p + ".hc_ffn"),
          .attention = bind_attention(b, p + ".attn", ratio),
          .moe = bind_moe(b, p + ".ffn", c, by_token_id)};
}

MtpWeights bind_mtp(Binder& b, const std::string& p, const ModelConfig& c) {
  return {.enorm = b.floats(p + ".enorm.weight"),
          .hnorm = b.floats(p + ".hnorm.weight"),
          .e_proj = b.projection(p + ".e_proj"),
          .h_proj = b.projection(p + ".h_proj"),
          .layer = bind_layer(b, p, c, /*ratio=*/0, /*by_token_id=*/false),
          .hc_head = b.hyper_connection(p + ".hc_head"),
          .norm = b.floats(p + ".norm.weight")};
}

DsparkWeights bind_dspark(Binder& b, const ModelConfig& c) {
  const std::string last = fmt::format("mtp.{}", c.draft.stages - 1);
  DsparkWeights w{.main_proj = b.projection("mtp.0.main_proj"),
                  .main_norm = b.floats("mtp.0.main_norm.weight"),
                  .stages = {},
                  .hc_head = b.hyper_connection(last + ".hc_head"),
                  .norm = b.floats(last + ".norm.weight"),
                  .markov_w1 = b.matrix(last + ".markov_head.markov_w1"),
                  .markov_w2 = b.matrix(last + ".markov_head.markov_w2"),
                  .confidence = b.matrix(last + ".confidence_head.proj")};
  for (std::int32_t i = 0; i < c.draft.stages; ++i) {
    w.stages.push_back(bind_layer(b, fmt::format("mtp.{}", i), c, /*ratio=*/0, /*by_token_id=*/false));
  }
  return w;
}

}  // namespace

Result<Weights> load_weights(const Checkpoint& checkpoint, ops::Backend& backend, ops::Numerics numerics,
                             const LoadProgress& progress) {
  const ModelConfig& c = checkpoint.config();
  Weights w;
  Binder b(checkpoint, backend, numerics, w, progress);
  w.embed = b.matrix("embed");
  w.head = b.matrix("head");
  w.norm = b.floats("norm.weight");
  w.hc_head = b.hyper_connection("hc_head");
  for (std::int32_t l = 0; l < c.layers; ++l) {
    const std::int32_t ratio = c.compress_ratios[static_cast<std::size_t>(l)];
    w.layers.push_back(bind_layer(b, fmt::format("layers.{}", l), c, ratio, l < c.hash_layers));
  }
  if (c.draft.kind == checkpoint::DraftKind::kMtp) {
    for (std::int32_t i = 0; i < c.draft.stages; ++i) w.mtp.push_back(bind_mtp(b, fmt::format("mtp.{}", i), c));
  }
  if (c.draft.kind == checkpoint::DraftKind::kDspark) w.dspark = bind_dspark(b, c);
  if (!b.error()) b.prepare_matrices();
  // Also after an error: a device may still be reading what is about to go.
  const Result<> loaded = backend.finish();
  if (b.error()) return tl::unexpected<Error>(*b.error());
  FATHOM_TRY(loaded);
  return w;
}

}  // namespace fathom::model
