#include "checkpoint/names.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace fathom::checkpoint {
namespace {

struct Rename {
  std::string_view from;
  std::string_view to;
};

// Whole names outside the layers, behind "model.".
constexpr std::array kTop = {
    Rename{"embed_tokens.weight", "embed.weight"}, Rename{"norm.weight", "norm.weight"},
    Rename{"hc_head.hc_fn", "hc_head_fn"},         Rename{"hc_head.hc_base", "hc_head_base"},
    Rename{"hc_head.hc_scale", "hc_head_scale"},
};

// Module paths inside a layer, behind "model.layers.<n>."; longer ones before their own beginnings. An entry that ends
// in a dot is a prefix of the rest's name, one that does not stands for the whole.
constexpr std::array kModules = {
    Rename{"input_layernorm.", "attn_norm."},
    Rename{"post_attention_layernorm.", "ffn_norm."},
    Rename{"attn_hc.fn", "hc_attn_fn"},
    Rename{"attn_hc.base", "hc_attn_base"},
    Rename{"attn_hc.scale", "hc_attn_scale"},
    Rename{"ffn_hc.fn", "hc_ffn_fn"},
    Rename{"ffn_hc.base", "hc_ffn_base"},
    Rename{"ffn_hc.scale", "hc_ffn_scale"},
    Rename{"self_attn.q_a_proj.", "attn.wq_a."},
    Rename{"self_attn.q_b_proj.", "attn.wq_b."},
    Rename{"self_attn.kv_proj.", "attn.wkv."},
    Rename{"self_attn.o_a_proj.", "attn.wo_a."},
    Rename{"self_attn.o_b_proj.", "attn.wo_b."},
    Rename{"self_attn.q_a_norm.", "attn.q_norm."},
    Rename{"self_attn.kv_norm.", "attn.kv_norm."},
    Rename{"self_attn.sinks", "attn.attn_sink"},
    Rename{"self_attn.compressor.indexer.kv_proj.", "attn.indexer.compressor.wkv."},
    Rename{"self_attn.compressor.indexer.gate_proj.", "attn.indexer.compressor.wgate."},
    Rename{"self_attn.compressor.indexer.position_bias", "attn.indexer.compressor.ape"},
    Rename{"self_attn.compressor.indexer.kv_norm.", "attn.indexer.compressor.norm."},
    Rename{"self_attn.compressor.indexer.q_b_proj.", "attn.indexer.wq_b."},
    Rename{"self_attn.compressor.indexer.scorer.weights_proj.", "attn.indexer.weights_proj."},
    Rename{"self_attn.compressor.indexer.weights_proj.", "attn.indexer.weights_proj."},
    Rename{"self_attn.compressor.kv_proj.", "attn.compressor.wkv."},
    Rename{"self_attn.compressor.gate_proj.", "attn.compressor.wgate."},
    Rename{"self_attn.compressor.position_bias", "attn.compressor.ape"},
    Rename{"self_attn.compressor.kv_norm.", "attn.compressor.norm."},
    Rename{"mlp.gate.e_score_correction_bias", "ffn.gate.bias"},
    Rename{"mlp.gate.", "ffn.gate."},
    Rename{"mlp.shared_experts.gate_proj.", "ffn.shared_experts.w1."},
    Rename{"mlp.shared_experts.up_proj.", "ffn.shared_experts.w3."},
    Rename{"mlp.shared_experts.down_proj.", "ffn.shared_experts.w2."},
};

// The parts of one expert where they are stored one by one.
constexpr std::array kExpertParts = {
    Rename{"gate_proj.", "w1."},
    Rename{"up_proj.", "w3."},
    Rename{"down_proj.", "w2."},
};

bool take_prefix(std::string_view& s, std::string_view prefix) {
  if (!s.starts_with(prefix)) return false;
  s.remove_prefix(prefix.size());
  return true;
}

std::string_view take_digits(std::string_view& s) {
  const std::size_t n = std::min(s.find_first_not_of("0123456789"), s.size());
  const std::string_view digits = s.substr(0, n);
  s.remove_prefix(n);
  return digits;
}

std::string_view scale_suffix(std::string_view suffix) { return suffix == "weight_scale_inv" ? "scale" : suffix; }

// What follows "mlp.experts."; false where it is none of the table's.
bool expert_name(std::string_view rest, const std::string& layer, OfficialName& out) {
  const std::string prefix = layer + "ffn.experts.";
  constexpr std::array kStems = {std::pair{std::string_view("gate_up_proj"), Merged::kGateUp},
                                 std::pair{std::string_view("down_proj"), Merged::kDown}};
  for (const auto& [stem, merged] : kStems) {
    if (rest == stem) out = {prefix, "weight", merged};
    else if (rest.starts_with(stem) && rest.substr(stem.size()) == "_scale_inv") out = {prefix, "scale", merged};
    else continue;
    return true;
  }
  const std::string_view expert = take_digits(rest);
  if (expert.empty() || !take_prefix(rest, ".")) return false;
  for (const Rename& r : kExpertParts) {
    if (!take_prefix(rest, r.from)) continue;
    out = {fmt::format("{}{}.{}{}", prefix, expert, r.to, scale_suffix(rest)), "", Merged::kNo};
    return true;
  }
  return false;
}

bool layer_name(std::string_view rest, OfficialName& out) {
  const std::string_view number = take_digits(rest);
  if (number.empty() || !take_prefix(rest, ".")) return false;
  const std::string layer = fmt::format("layers.{}.", number);
  if (std::string_view expert = rest; take_prefix(expert, "mlp.experts.")) return expert_name(expert, layer, out);
  for (const Rename& r : kModules) {
    std::string_view suffix = rest;
    if (!take_prefix(suffix, r.from)) continue;
    const bool whole = r.from.back() != '.';
    if (whole && !suffix.empty()) continue;
    out = {fmt::format("{}{}{}", layer, r.to, whole ? suffix : scale_suffix(suffix)), "", Merged::kNo};
    return true;
  }
  return false;
}

}  // namespace

bool is_transformers_name(std::string_view name) { return name.starts_with("model.") || name.starts_with("lm_head."); }

OfficialName official_name(std::string_view stored) {
  OfficialName out{std::string(stored), "", Merged::kNo};
  if (stored == "lm_head.weight") out.name = "head.weight";
  std::string_view rest = stored;
  if (!take_prefix(rest, "model.")) return out;
  for (const Rename& r : kTop) {
    if (rest == r.from) out.name = r.to;
  }
  if (take_prefix(rest, "layers.")) layer_name(rest, out);
  return out;
}

std::string merged_part(const OfficialName& merged, std::int64_t expert, std::string_view matrix) {
  return fmt::format("{}{}.{}.{}", merged.name, expert, matrix, merged.suffix);
}

}  // namespace fathom::checkpoint
