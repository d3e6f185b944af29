#include "checkpoint/schema.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "quant/block.h"

namespace fathom::checkpoint {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Builds the table, one row at a time, into a Slot that is reused.
class Table {
 public:
  Table(const ModelConfig& c, const std::function<void(const Slot&)>& visit) : c_(c), visit_(visit) {}

  void all() {
    start("", -1, -1);
    row("embed.weight", {c_.vocab, d()}, Form::kPlain, Group::kEmbedding);
    for (std::int32_t l = 0; l < c_.layers; ++l) {
      start(fmt::format("layers.{}.", l), l, -1);
      block(l < c_.hash_layers, c_.compress_ratios[static_cast<std::size_t>(l)]);
    }
    start("", -1, -1);
    row("head.weight", {c_.vocab, d()}, Form::kPlain, Group::kHead);
    row("norm.weight", {d()}, Form::kPlain, Group::kNorms);
    hc_head(Group::kHyperConnections);
    for (std::int32_t i = 0; i < c_.draft.stages; ++i) {
      start(fmt::format("mtp.{}.", i), -1, i);
      block(/*hash=*/false, /*ratio=*/0);
      if (c_.draft.kind == DraftKind::kMtp) mtp_extras();
      if (c_.draft.kind == DraftKind::kDspark) dspark_extras(i);
    }
  }

 private:
  std::int64_t d() const { return c_.hidden; }

  void start(std::string prefix, std::int32_t layer, std::int32_t stage) {
    prefix_ = std::move(prefix);
    slot_.layer = layer;
    slot_.stage = stage;
    slot_.expert = -1;
  }
  void row(std::string_view name, std::initializer_list<std::int64_t> shape, Form form, Group group) {
    slot_.name.assign(prefix_).append(name);
    slot_.shape.assign(shape);
    slot_.form = form;
    slot_.group = group;
    visit_(slot_);
  }

  // checkpoint.md 4.2 and 4.3
  void block(bool hash, std::int32_t ratio) {
    row("attn_norm.weight", {d()}, Form::kPlain, Group::kNorms);
    row("ffn_norm.weight", {d()}, Form::kPlain, Group::kNorms);
    attention();
    if (ratio != 0) compressor("attn.compressor.", ratio, c_.head_dim, Group::kCompressor);
    if (ratio == 4) {
      row("attn.indexer.wq_b.weight", {std::int64_t{c_.index_heads} * c_.index_dim, c_.q_rank}, Form::kLinear,
          Group::kIndexer);
      row("attn.indexer.weights_proj.weight", {c_.index_heads, d()}, Form::kPlain, Group::kIndexer);
      compressor("attn.indexer.compressor.", ratio, c_.index_dim, Group::kIndexer);
    }
    hyper_connection("attn");
    hyper_connection("ffn");
    row("ffn.gate.weight", {c_.routed_experts, d()}, Form::kPlain, Group::kGate);
    if (hash) row("ffn.gate.tid2eid", {c_.vocab, c_.active_experts}, Form::kIds, Group::kGate);
    else row("ffn.gate.bias", {c_.routed_experts}, Form::kFull, Group::kGate);
    expert("ffn.shared_experts.", Form::kLinear, Group::kSharedExpert);
    for (std::int32_t e = 0; e < c_.routed_experts; ++e) {
      slot_.expert = e;
      expert(fmt::format("ffn.experts.{}.", e), Form::kExpert, Group::kRoutedExperts);
    }
    slot_.expert = -1;
  }
  void attention() {
    const std::int64_t inner = std::int64_t{c_.heads} * c_.head_dim;
    const std::int64_t o = std::int64_t{c_.o_groups} * c_.o_rank;
    row("attn.wq_a.weight", {c_.q_rank, d()}, Form::kLinear, Group::kAttention);
    row("attn.q_norm.weight", {c_.q_rank}, Form::kPlain, Group::kAttention);
    row("attn.wq_b.weight", {inner, c_.q_rank}, Form::kLinear, Group::kAttention);
    row("attn.wkv.weight", {c_.head_dim, d()}, Form::kLinear, Group::kAttention);
    row("attn.kv_norm.weight", {c_.head_dim}, Form::kPlain, Group::kAttention);
    row("attn.attn_sink", {c_.heads}, Form::kFull, Group::kAttention);
    row("attn.wo_a.weight", {o, inner / c_.o_groups}, Form::kLinear, Group::kAttention);
    row("attn.wo_b.weight", {d(), o}, Form::kLinear, Group::kAttention);
  }
  // Ratio 4 keeps two streams: columns for the next entry and for the own one (model.md 5.1).
  void compressor(const std::string& p, std::int32_t ratio, std::int64_t dim, Group group) {
    const std::int64_t width = ratio == 4 ? 2 * dim : dim;
    row(p + "wkv.weight", {width, d()}, Form::kPlain, group);
    row(p + "wgate.weight", {width, d()}, Form::kPlain, group);
    row(p + "ape", {ratio, width}, Form::kFull, group);
    row(p + "norm.weight", {dim}, Form::kPlain, group);
  }
  void hyper_connection(std::string_view which) {
    const std::int64_t n = c_.streams;
    const std::int64_t rows = 2 * n + n * n;  // pre, post, comb
    row(fmt::format("hc_{}_fn", which), {rows, n * d()}, Form::kFull, Group::kHyperConnections);
    row(fmt::format("hc_{}_base", which), {rows}, Form::kFull, Group::kHyperConnections);
    row(fmt::format("hc_{}_scale", which), {3}, Form::kFull, Group::kHyperConnections);
  }
  void hc_head(Group group) {
    const std::int64_t n = c_.streams;
    row("hc_head_fn", {n, n * d()}, Form::kFull, group);
    row("hc_head_base", {n}, Form::kFull, group);
    row("hc_head_scale", {1}, Form::kFull, group);
  }
  void expert(const std::string& p, Form form, Group group) {
    row(p + "w1.weight", {c_.expert_inner, d()}, form, group);
    row(p + "w2.weight", {d(), c_.expert_inner}, form, group);
    row(p + "w3.weight", {c_.expert_inner, d()}, form, group);
  }
  // checkpoint.md 4.4
  void mtp_extras() {
    row("e_proj.weight", {d(), d()}, Form::kLinear, Group::kDraftHead);
    row("h_proj.weight", {d(), d()}, Form::kLinear, Group::kDraftHead);
    row("enorm.weight", {d()}, Form::kPlain, Group::kDraftHead);
    row("hnorm.weight", {d()}, Form::kPlain, Group::kDraftHead);
    row("norm.weight", {d()}, Form::kPlain, Group::kDraftHead);
    hc_head(Group::kDraftHead);
  }
  // checkpoint.md 4.5: the way in at the first stage, the way out at the last.
  void dspark_extras(std::int32_t stage) {
    if (stage == 0) {
      const auto taps = static_cast<std::int64_t>(c_.draft.target_layers.size());
      row("main_proj.weight", {d(), taps * d()}, Form::kLinear, Group::kDraftHead);
      row("main_norm.weight", {d()}, Form::kPlain, Group::kDraftHead);
    }
    if (stage != c_.draft.stages - 1) return;
    const std::int64_t rank = c_.draft.markov_rank;
    row("norm.weight", {d()}, Form::kPlain, Group::kDraftHead);
    hc_head(Group::kDraftHead);
    row("markov_head.markov_w1.weight", {c_.vocab, rank}, Form::kPlain, Group::kDraftHead);
    row("markov_head.markov_w2.weight", {c_.vocab, rank}, Form::kPlain, Group::kDraftHead);
    row("confidence_head.proj.weight", {1, d() + rank}, Form::kPlain, Group::kDraftHead);
  }

  const ModelConfig& c_;
  const std::function<void(const Slot&)>& visit_;
  std::string prefix_;
  Slot slot_;
};

std::string dtypes_of(Form form) {
  switch (form) {
    case Form::kPlain: return "BF16 or F32";
    case Form::kFull: return "F32";
    case Form::kLinear: return "F8_E4M3, BF16 or F32";
    case Form::kExpert: return "I8 (FP4 pairs), F8_E4M3, BF16 or F32";
    case Form::kIds: return "I64";
  }
  return "";
}

// Walks the table beside the sorted list of what was found.
class Checker {
 public:
  Checker(std::span<const Found> sorted, Problems& problems)
      : sorted_(sorted), used_(sorted.size(), false), problems_(problems) {}

  void check(const Slot& slot) {
    const Found* weight = take(slot.name);
    if (weight == nullptr) {
      problems_.add({"", slot.name, "nothing", fmt::format("{} {}", dtypes_of(slot.form), to_string(slot.shape))});
      take(scale_name(slot.name));  // its scale without it is no second problem
      return;
    }
    if (!allowed(slot.form, weight->dtype)) {
      problem(*weight, std::string(name_of(weight->dtype)), dtypes_of(slot.form));
      take(scale_name(slot.name));
      return;
    }
    check_shape(*weight, stored_shape(slot, weight->dtype));
    check_scale(slot, *weight);
    if (slot.form == Form::kExpert) check_format(slot, *weight);
  }

  // `draft_known`: else all tensors of mtp.* are one problem.
  void check_leftovers(bool draft_known) {
    const Found* first_draft = nullptr;
    std::size_t n_draft = 0;
    for (std::size_t i = 0; i < sorted_.size(); ++i) {
      if (!draft_known && sorted_[i].name.starts_with("mtp.")) {
        if (n_draft++ == 0) first_draft = &sorted_[i];
        continue;
      }
      if (!used_[i] && !dropped(sorted_[i].name)) {
        problem(sorted_[i], fmt::format("{} {}", name_of(sorted_[i].dtype), to_string(sorted_[i].shape)),
                "no tensor of this name for this config.json");
      }
    }
    if (n_draft == 0) return;
    problems_.add(
        {std::string(first_draft->file), "mtp.*",
         fmt::format("{} tensors, but neither mtp.0.e_proj.weight (MTP) nor mtp.0.main_proj.weight (DSpark)", n_draft),
         "one of the two, or no draft at all"});
  }

 private:
  static std::string scale_name(const std::string& weight) {
    constexpr std::string_view kSuffix = "weight";
    if (!weight.ends_with(kSuffix)) return {};
    return weight.substr(0, weight.size() - kSuffix.size()) + "scale";
  }
  // Official loaders drop a draft's own embedding or output head.
  static bool dropped(std::string_view name) {
    return name.starts_with("mtp.") && (name.find("emb") != std::string_view::npos || name.ends_with("head.weight"));
  }
  const Found* take(const std::string& name) {
    const auto it = std::lower_bound(sorted_.begin(), sorted_.end(), std::string_view(name),
                                     [](const Found& f, std::string_view n) { return f.name < n; });
    if (it == sorted_.end() || it->name != name) return nullptr;
    used_[static_cast<std::size_t>(it - sorted_.begin())] = true;
    return &*it;
  }
  void problem(const Found& f, std::string found, std::string expected) {
    problems_.add({std::string(f.file), std::string(f.stored), std::move(found), std::move(expected)});
  }
  void check_shape(const Found& f, const Shape& expected) {
    if (!std::equal(f.shape.begin(), f.shape.end(), expected.begin(), expected.end())) {
      problem(f, fmt::format("{} {}", name_of(f.dtype), to_string(f.shape)),
              fmt::format("{} {}", name_of(f.dtype), to_string(expected)));
    }
  }
  void check_scale(const Slot& slot, const Found& weight) {
    const std::optional<ScaleSlot> expected = scale_for(slot, weight.dtype);
    if (!expected) {
      if (const Found* extra = take(scale_name(slot.name))) {
        problem(*extra, "a scale", fmt::format("none beside a weight stored as {}", name_of(weight.dtype)));
      }
      return;
    }
    const std::int64_t block = weight.dtype == DType::kFp4x2 ? quant::kFp4Block : quant::kWeightBlock;
    if (slot.shape.back() % block != 0) {
      problem(weight, fmt::format("{} with {} inputs", name_of(weight.dtype), slot.shape.back()),
              fmt::format("a multiple of {} inputs in this format", block));
    }
    const Found* scale = take(expected->name);
    const char* types = weight.dtype == DType::kFp4x2 ? "F8_E8M0" : "F8_E8M0 or F32";
    if (scale == nullptr) {
      problems_.add({std::string(weight.file), expected->name, "nothing",
                     fmt::format("{} {}", types, to_string(expected->shape))});
      return;
    }
    const bool type_ok =
        scale->dtype == DType::kF8E8M0 || (scale->dtype == DType::kF32 && weight.dtype == DType::kF8E4M3);
    if (!type_ok) problem(*scale, std::string(name_of(scale->dtype)), types);
    else check_shape(*scale, expected->shape);
  }
  // Kernels take one format for all experts of a block.
  void check_format(const Slot& slot, const Found& weight) {
    if (slot.layer != format_layer_ || slot.stage != format_stage_) {
      format_layer_ = slot.layer;
      format_stage_ = slot.stage;
      format_ = weight.dtype;
    } else if (weight.dtype != format_) {
      problem(weight, std::string(name_of(weight.dtype)),
              fmt::format("{} as the block's other experts", name_of(format_)));
    }
  }

  std::span<const Found> sorted_;
  std::vector<bool> used_;
  Problems& problems_;
  std::int32_t format_layer_ = -2;
  std::int32_t format_stage_ = -2;
  DType format_ = DType::kF32;
};

}  // namespace

std::string_view name_of(Group g) {
  constexpr std::array<std::string_view, kGroups> kNames = {
      "embedding", "head",  "norms",          "hyper-connections", "attention", "compressors",
      "indexers",  "gates", "shared experts", "routed experts",    "draft head"};
  return kNames[static_cast<std::size_t>(g)];
}

void for_each_slot(const ModelConfig& config, const std::function<void(const Slot&)>& visit) {
  Table(config, visit).all();
}

std::int64_t count_slots(const ModelConfig& config) {
  std::int64_t n = 0;
  for_each_slot(config, [&](const Slot&) { ++n; });
  return n;
}

Shape stored_shape(const Slot& slot, DType dtype) {
  Shape s = slot.shape;
  if (dtype == DType::kFp4x2) s.back() /= 2;
  return s;
}

bool allowed(Form form, DType dtype) {
  const bool wide = dtype == DType::kF32 || dtype == DType::kBf16;
  switch (form) {
    case Form::kPlain:
    case Form::kFull: return wide;
    case Form::kLinear: return wide || dtype == DType::kF8E4M3;
    case Form::kExpert: return wide || dtype == DType::kF8E4M3 || dtype == DType::kFp4x2;
    case Form::kIds: return dtype == DType::kI64;
  }
  return false;
}

std::optional<ScaleSlot> scale_for(const Slot& slot, DType dtype) {
  const bool quantised = dtype == DType::kF8E4M3 || dtype == DType::kFp4x2;
  if (!quantised || (slot.form != Form::kLinear && slot.form != Form::kExpert)) return std::nullopt;
  constexpr std::size_t kSuffix = 6;  // "weight"
  ScaleSlot s{slot.name.substr(0, slot.name.size() - kSuffix) + "scale", {}};
  const std::int64_t out = slot.shape[0];
  const std::int64_t in = slot.shape[1];
  if (dtype == DType::kFp4x2) s.shape = {out, ceil_div(in, quant::kFp4Block)};
  else s.shape = {ceil_div(out, quant::kWeightBlock), ceil_div(in, quant::kWeightBlock)};
  return s;
}

std::string to_string(const Problem& p) {
  std::string where = p.file;
  if (!p.tensor.empty()) where += (where.empty() ? "" : ": ") + printable(p.tensor);
  return fmt::format("{}: found {}, expected {}", where, p.found, p.expected);
}

std::string Problems::summary(std::size_t shown) const {
  std::string out;
  const std::size_t n = std::min(shown, list.size());
  for (std::size_t i = 0; i < n; ++i) out += (i == 0 ? "" : "\n  ") + to_string(list[i]);
  if (total > n) out += fmt::format("\n  and {} more", total - n);
  return out;
}

void decide_draft(ModelConfig& config, std::span<const Found> sorted) {
  const auto from = std::lower_bound(sorted.begin(), sorted.end(), std::string_view("mtp."),
                                     [](const Found& f, std::string_view n) { return f.name < n; });
  std::vector<std::int32_t> stages;
  bool main_proj = false;
  bool e_proj = false;
  for (auto it = from; it != sorted.end() && it->name.starts_with("mtp."); ++it) {
    std::int32_t i = -1;
    const std::string_view rest = it->name.substr(4);
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), i);
    if (error != std::errc() || end == rest.data() + rest.size() || *end != '.' || i < 0) continue;
    if (stages.empty() || stages.back() != i) stages.push_back(i);
    main_proj |= it->name == "mtp.0.main_proj.weight";
    e_proj |= it->name == "mtp.0.e_proj.weight";
  }
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  config.draft.kind = main_proj ? DraftKind::kDspark : e_proj ? DraftKind::kMtp : DraftKind::kNone;
  // A stage number that leaves a hole shows as unexpected tensors; 16 bounds what hostile names can ask for.
  config.draft.stages = config.draft.kind == DraftKind::kNone ? 0
                        : config.draft.kind == DraftKind::kMtp
                            ? 1
                            : static_cast<std::int32_t>(std::min<std::size_t>(stages.size(), 16));
}

void check_tensors(const ModelConfig& config, std::span<const Found> sorted, Problems& problems) {
  Checker checker(sorted, problems);
  for_each_slot(config, [&](const Slot& slot) { checker.check(slot); });
  checker.check_leftovers(config.draft.kind != DraftKind::kNone);
}

}  // namespace fathom::checkpoint
