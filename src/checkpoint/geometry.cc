#include "checkpoint/geometry.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "checkpoint/config.h"

namespace fathom::checkpoint {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"v4-flash", "v4-pro", "v4-flash-0731", "v4-flash-base",
                                                    "v4-pro-base"};

// The first two layers, then 4 and 128 in turn.
std::vector<std::int32_t> schedule(std::int32_t layers, std::int32_t first_two) {
  std::vector<std::int32_t> ratios(static_cast<std::size_t>(layers), first_two);
  for (std::size_t l = 2; l < ratios.size(); ++l) ratios[l] = l % 2 == 0 ? 4 : 128;
  return ratios;
}

ModelConfig flash() {
  ModelConfig c;
  c.vocab = 129280;
  c.hidden = 4096;
  c.layers = 43;
  c.heads = 64;
  c.head_dim = 512;
  c.rope_dim = 64;
  c.q_rank = 1024;
  c.o_groups = 8;
  c.o_rank = 1024;
  c.window = 128;
  c.compress_ratios = schedule(c.layers, 0);
  c.index_heads = 64;
  c.index_dim = 128;
  c.index_topk = 512;
  c.routed_experts = 256;
  c.active_experts = 6;
  c.expert_inner = 2048;
  c.hash_layers = 3;
  c.route_scale = 1.5F;
  c.swiglu_limit = 10.0F;
  c.streams = 4;
  c.sinkhorn_iters = 20;
  c.norm_eps = 1e-6F;
  c.hc_eps = 1e-6F;
  c.rope_theta = 10000;
  c.compress_rope_theta = 160000;
  c.yarn = {.factor = 16, .beta_fast = 32, .beta_slow = 1, .original_positions = 65536};
  c.max_positions = 1048576;
  c.quantised = true;
  c.draft.kind = DraftKind::kMtp;
  c.draft.stages = 1;
  return c;
}

ModelConfig pro() {
  ModelConfig c = flash();
  c.hidden = 7168;
  c.layers = 61;
  c.heads = 128;
  c.q_rank = 1536;
  c.o_groups = 16;
  c.compress_ratios = schedule(c.layers, 128);
  c.index_topk = 1024;
  c.routed_experts = 384;
  c.expert_inner = 3072;
  c.route_scale = 2.5F;
  return c;
}

ModelConfig flash_0731() {
  ModelConfig c = flash();
  c.draft = {.kind = DraftKind::kDspark,
             .stages = 3,
             .block_size = 5,
             .markov_rank = 256,
             .noise_token = 128799,
             .target_layers = {40, 41, 42}};
  return c;
}

constexpr Storage kFp4Experts = {};
constexpr Storage kBase = {.linear = DType::kF8E4M3, .expert = DType::kF8E4M3, .scale = DType::kF32};

DType stored_dtype(Form form, const Storage& storage) {
  switch (form) {
    case Form::kPlain: return DType::kBf16;
    case Form::kFull: return DType::kF32;
    case Form::kLinear: return storage.linear;
    case Form::kExpert: return storage.expert;
    case Form::kIds: return DType::kI64;
  }
  return DType::kF32;
}

}  // namespace

std::span<const std::string_view> published_names() { return kNames; }

std::optional<Geometry> published(std::string_view name) {
  if (name == "v4-flash") return Geometry{kNames[0], "DeepSeek-V4-Flash", flash(), kFp4Experts};
  if (name == "v4-pro") return Geometry{kNames[1], "DeepSeek-V4-Pro", pro(), kFp4Experts};
  if (name == "v4-flash-0731") return Geometry{kNames[2], "DeepSeek-V4-Flash-0731", flash_0731(), kFp4Experts};
  if (name == "v4-flash-base") return Geometry{kNames[3], "DeepSeek-V4-Flash-Base", flash(), kBase};
  if (name == "v4-pro-base") return Geometry{kNames[4], "DeepSeek-V4-Pro-Base", pro(), kBase};
  return std::nullopt;
}

std::optional<Geometry> recognise(const ModelConfig& config, const Storage& storage) {
  for (const std::string_view name : kNames) {
    std::optional<Geometry> g = published(name);
    ModelConfig same = config;
    same.routed_experts = g->config.routed_experts;
    // What changes no shape is no part of the geometry; the draft's constants matter where there are three stages.
    same.max_positions = g->config.max_positions;
    same.quantised = g->config.quantised;
    if (same.draft.kind != DraftKind::kDspark) {
      DraftConfig plain;
      plain.kind = same.draft.kind;
      plain.stages = same.draft.stages;
      same.draft = plain;
    }
    const bool base = storage.expert == DType::kF8E4M3 && storage.scale == DType::kF32;
    if (same == g->config && base == (g->storage == kBase)) return g;
  }
  return std::nullopt;
}

Result<ModelConfig> shrunk(const ModelConfig& config, std::int32_t layers, std::int32_t experts) {
  ModelConfig c = config;
  if (layers < 0 || layers > c.layers) {
    return fail(Code::kInvalid, "{} layers asked for, expected 1 to {}", layers, c.layers);
  }
  if (experts < 0 || experts > c.routed_experts) {
    return fail(Code::kInvalid, "{} experts asked for, expected {} to {}", experts, c.active_experts, c.routed_experts);
  }
  if (layers != 0 && layers != c.layers) {
    c.layers = layers;
    c.compress_ratios.resize(static_cast<std::size_t>(layers));
    c.hash_layers = std::min(c.hash_layers, layers);
    const auto taps = std::min(static_cast<std::int32_t>(c.draft.target_layers.size()), layers);
    c.draft.target_layers.clear();
    for (std::int32_t l = layers - taps; l < layers; ++l) c.draft.target_layers.push_back(l);
  }
  if (experts != 0) c.routed_experts = experts;
  FATHOM_TRY(validate(c));
  return c;
}

std::uint64_t StoredTensor::bytes() const {
  std::int64_t n = 0;
  FATHOM_CHECK(element_count(shape, n), "the table's shapes have a product");
  return static_cast<std::uint64_t>(n) * size_of(dtype);
}

void for_each_stored(const ModelConfig& config, const Storage& storage,
                     const std::function<void(const Slot&, const StoredTensor&)>& visit) {
  for_each_slot(config, [&](const Slot& slot) {
    const DType dtype = stored_dtype(slot.form, storage);
    visit(slot, {slot.name, dtype, stored_shape(slot, dtype), false, dtype});
    if (const std::optional<ScaleSlot> scale = scale_for(slot, dtype)) {
      visit(slot, {scale->name, dtype == DType::kFp4x2 ? DType::kF8E8M0 : storage.scale, scale->shape, true, dtype});
    }
  });
}

}  // namespace fathom::checkpoint
