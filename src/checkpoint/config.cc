#include "checkpoint/config.h"

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "checkpoint/safetensors.h"

namespace fathom::checkpoint {
namespace {

// Sorted members: nlohmann's ordered form looks every key up in a list, which a hostile file makes quadratic.
using Object = nlohmann::json;

// Reads fields and gathers what is wrong with them.
class Reader {
 public:
  explicit Reader(const Object& root) : root_(root) {}

  std::vector<std::string> problems;

  const Object* find(const char* key) const { return find_in(root_, key); }

  void integer(const char* key, std::int32_t& out) {
    if (const Object* v = required(root_, key, "")) read_integer(key, *v, out);
  }
  void integer_or(const char* key, std::int32_t& out) {
    if (const Object* v = find(key)) read_integer(key, *v, out);
  }
  void number(const char* key, float& out) {
    double wide = 0;
    if (const Object* v = required(root_, key, ""); v != nullptr && read_number(key, *v, wide)) {
      out = static_cast<float>(wide);
    }
  }
  // A number inside `object`, which errors call `path`.
  void number_in(const Object& object, const std::string& path, const char* key, double& out) {
    if (const Object* v = required(object, key, path)) read_number(path + key, *v, out);
  }
  void integer_in(const Object& object, const std::string& path, const char* key, std::int32_t& out) {
    if (const Object* v = required(object, key, path)) read_integer(path + key, *v, out);
  }
  // A switch that Fathom knows one position of. Absent is that position.
  template <class T>
  void fixed(const char* key, const T& expected) {
    const Object* v = find(key);
    if (v == nullptr || *v == Object(expected)) return;
    problems.push_back(fmt::format("{}: found {}, expected {}", key, shown(*v), Object(expected).dump()));
  }
  void problem(std::string text) { problems.push_back(std::move(text)); }

  bool read_integer(const std::string& path, const Object& v, std::int32_t& out) {
    // Some writers give whole numbers a decimal point.
    const double d = v.is_number() ? v.get<double>() : std::nan("");
    if (!(std::floor(d) == d) || std::fabs(d) > std::numeric_limits<std::int32_t>::max()) {
      problems.push_back(fmt::format("{}: found {}, expected a 32-bit integer", path, shown(v)));
      return false;
    }
    out = static_cast<std::int32_t>(d);
    return true;
  }
  bool read_number(const std::string& path, const Object& v, double& out) {
    if (!v.is_number() || !std::isfinite(v.get<double>())) {
      problems.push_back(fmt::format("{}: found {}, expected a number", path, shown(v)));
      return false;
    }
    out = v.get<double>();
    return true;
  }
  bool read_integers(const char* key, const Object& v, std::vector<std::int32_t>& out) {
    if (!v.is_array()) {
      problems.push_back(fmt::format("{}: found {}, expected a list of integers", key, shown(v)));
      return false;
    }
    for (std::size_t i = 0; i < v.size(); ++i) {
      std::int32_t x = 0;
      if (!read_integer(fmt::format("{}[{}]", key, i), v[i], x)) return false;
      out.push_back(x);
    }
    return true;
  }

  static const Object* find_in(const Object& object, const char* key) {
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }
  static std::string shown(const Object& v) {
    return printable(v.dump(-1, ' ', false, Object::error_handler_t::replace));
  }

 private:
  const Object* required(const Object& object, const char* key, const std::string& path) {
    const Object* v = find_in(object, key);
    if (v == nullptr) problems.push_back(fmt::format("{}{}: missing", path, key));
    return v;
  }
  const Object& root_;
};

void read_architecture(Reader& r) {
  const Object* type = r.find("model_type");
  if (type == nullptr || *type != "deepseek_v4") {
    r.problem(fmt::format("model_type: found {}, expected \"deepseek_v4\"", type ? Reader::shown(*type) : "nothing"));
  }
  r.fixed("num_key_value_heads", 1);
  r.fixed("n_shared_experts", 1);
  r.fixed("scoring_func", "sqrtsoftplus");
  r.fixed("topk_method", "noaux_tc");
  r.fixed("norm_topk_prob", true);
  r.fixed("hidden_act", "silu");
  r.fixed("attention_bias", false);
  r.fixed("tie_word_embeddings", false);
}

void read_sizes(Reader& r, ModelConfig& c) {
  r.integer("vocab_size", c.vocab);
  r.integer("hidden_size", c.hidden);
  r.integer("num_hidden_layers", c.layers);
  r.integer("num_attention_heads", c.heads);
  r.integer("head_dim", c.head_dim);
  r.integer("q_lora_rank", c.q_rank);
  r.integer("o_groups", c.o_groups);
  r.integer("o_lora_rank", c.o_rank);
  r.integer("sliding_window", c.window);
  r.integer("index_n_heads", c.index_heads);
  r.integer("index_head_dim", c.index_dim);
  r.integer("index_topk", c.index_topk);
  r.integer(r.find("n_routed_experts") == nullptr && r.find("num_local_experts") != nullptr ? "num_local_experts"
                                                                                            : "n_routed_experts",
            c.routed_experts);
  r.integer("num_experts_per_tok", c.active_experts);
  r.integer("moe_intermediate_size", c.expert_inner);
  r.number("routed_scaling_factor", c.route_scale);
  r.number("swiglu_limit", c.swiglu_limit);
  r.integer("hc_mult", c.streams);
  r.integer("hc_sinkhorn_iters", c.sinkhorn_iters);
  r.number("hc_eps", c.hc_eps);
  r.number("rms_norm_eps", c.norm_eps);
  r.integer("max_position_embeddings", c.max_positions);
  r.integer_or("bos_token_id", c.bos_token);
  if (const Object* eos = r.find("eos_token_id"); eos != nullptr && eos->is_array() && !eos->empty()) {
    r.read_integer("eos_token_id[0]", (*eos)[0], c.eos_token);
  } else {
    r.integer_or("eos_token_id", c.eos_token);
  }
}

void read_rope_dim(Reader& r, ModelConfig& c) {
  const Object* partial = r.find("partial_rotary_factor");
  if (r.find("qk_rope_head_dim") != nullptr || partial == nullptr) {
    r.integer("qk_rope_head_dim", c.rope_dim);
    return;
  }
  double factor = 0;
  if (!r.read_number("partial_rotary_factor", *partial, factor)) return;
  const double dims = factor * c.head_dim;
  if (std::floor(dims) != dims || dims < 1 || dims > c.head_dim) {
    r.problem(fmt::format("partial_rotary_factor: found {}, expected a whole number of the {} head dimensions", factor,
                          c.head_dim));
    return;
  }
  c.rope_dim = static_cast<std::int32_t>(dims);
}

// layer_types of the transformers form; an unknown kind is a problem.
void read_layer_types(Reader& r, const Object& types, std::vector<std::int32_t>& ratios) {
  if (!types.is_array()) return r.problem("layer_types: expected a list");
  std::int32_t sparse = 4;
  std::int32_t heavy = 128;
  if (const Object* rates = r.find("compress_rates"); rates != nullptr && rates->is_object()) {
    if (const Object* v = Reader::find_in(*rates, "compressed_sparse_attention")) {
      r.read_integer("compress_rates.compressed_sparse_attention", *v, sparse);
    }
    if (const Object* v = Reader::find_in(*rates, "heavily_compressed_attention")) {
      r.read_integer("compress_rates.heavily_compressed_attention", *v, heavy);
    }
  }
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] == "sliding_attention") ratios.push_back(0);
    else if (types[i] == "compressed_sparse_attention") ratios.push_back(sparse);
    else if (types[i] == "heavily_compressed_attention") ratios.push_back(heavy);
    else
      return r.problem(
          fmt::format("layer_types[{}]: found {}, expected sliding_attention, compressed_sparse_attention "
                      "or heavily_compressed_attention",
                      i, Reader::shown(types[i])));
  }
}

// The schedule of compression: a list of ratios, or the layer kinds that transformers writes. The published list goes
// on past the trunk with one 0 per draft block.
void read_schedule(Reader& r, ModelConfig& c) {
  std::vector<std::int32_t> published;
  std::vector<std::int32_t> normalised;
  const Object* ratios = r.find("compress_ratios");
  const Object* types = r.find("layer_types");
  if (ratios == nullptr && types == nullptr) return r.problem("compress_ratios: missing (as is layer_types)");
  if (ratios != nullptr && !r.read_integers("compress_ratios", *ratios, published)) return;
  if (types != nullptr) read_layer_types(r, *types, normalised);
  const auto trunk = static_cast<std::size_t>(std::max(c.layers, 0));
  std::vector<std::int32_t>& chosen = ratios != nullptr ? published : normalised;
  const char* key = ratios != nullptr ? "compress_ratios" : "layer_types";
  if (chosen.size() < trunk) {
    return r.problem(
        fmt::format("{}: found {} entries, expected one for each of {} layers", key, chosen.size(), trunk));
  }
  if (trunk == 0) return;  // which is what is wrong
  for (std::size_t i = trunk; i < chosen.size(); ++i) {
    if (chosen[i] != 0) {
      r.problem(fmt::format("{}[{}]: found {}, expected 0 past the {} trunk layers", key, i, chosen[i], trunk));
      break;
    }
  }
  chosen.resize(trunk);
  if (ratios != nullptr && types != nullptr) {
    normalised.resize(trunk);
    if (published != normalised) r.problem("compress_ratios and layer_types disagree");
  }
  c.compress_ratios = std::move(chosen);
}

// How many of the first layers route by token id: a count, or the layer kinds that transformers writes.
void read_hash_layers(Reader& r, ModelConfig& c) {
  const Object* types = r.find("mlp_layer_types");
  if (types == nullptr) return r.integer("num_hash_layers", c.hash_layers);
  if (!types->is_array()) return r.problem("mlp_layer_types: expected a list");
  std::int32_t n = 0;
  for (std::size_t i = 0; i < types->size(); ++i) {
    const Object& t = (*types)[i];
    if (t == "hash_moe" && n == static_cast<std::int32_t>(i)) ++n;
    else if (t != "moe") {
      return r.problem(fmt::format("mlp_layer_types[{}]: found {}, expected hash_moe for the first layers, then moe", i,
                                   Reader::shown(t)));
    }
  }
  std::int32_t count = n;
  r.integer_or("num_hash_layers", count);
  if (count != n)
    r.problem(fmt::format("num_hash_layers: found {}, but mlp_layer_types begins with {} hash_moe", count, n));
  c.hash_layers = n;
}

void read_yarn(Reader& r, const Object& o, const std::string& path, ModelConfig& c) {
  const Object* type = Reader::find_in(o, "type");
  if (type == nullptr) type = Reader::find_in(o, "rope_type");
  if (type == nullptr || *type != "yarn") {
    return r.problem(fmt::format("{}type: found {}, expected \"yarn\"", path, type ? Reader::shown(*type) : "nothing"));
  }
  r.number_in(o, path, "factor", c.yarn.factor);
  r.number_in(o, path, "beta_fast", c.yarn.beta_fast);
  r.number_in(o, path, "beta_slow", c.yarn.beta_slow);
  r.integer_in(o, path, "original_max_position_embeddings", c.yarn.original_positions);
}

void read_rope(Reader& r, const Object& root, ModelConfig& c) {
  const Object* nested = r.find("rope_parameters");
  const Object* main = nested != nullptr && nested->is_object() ? Reader::find_in(*nested, "main") : nullptr;
  const Object* compress = main != nullptr ? Reader::find_in(*nested, "compress") : nullptr;
  if (main != nullptr && main->is_object() && compress != nullptr && compress->is_object()) {
    r.number_in(*main, "rope_parameters.main.", "rope_theta", c.rope_theta);
    r.number_in(*compress, "rope_parameters.compress.", "rope_theta", c.compress_rope_theta);
    read_yarn(r, *compress, "rope_parameters.compress.", c);
    return;
  }
  r.number_in(root, "", "rope_theta", c.rope_theta);
  r.number_in(root, "", "compress_rope_theta", c.compress_rope_theta);
  const Object* scaling = r.find("rope_scaling");
  if (scaling == nullptr) return;
  if (!scaling->is_object()) return r.problem("rope_scaling: expected an object");
  read_yarn(r, *scaling, "rope_scaling.", c);
}

void read_quantisation(Reader& r, ModelConfig& c) {
  const Object* q = r.find("quantization_config");
  if (q == nullptr) return;
  if (!q->is_object()) return r.problem("quantization_config: expected an object");
  c.quantised = true;
  const Object* method = Reader::find_in(*q, "quant_method");
  if (method == nullptr || *method != "fp8") {
    r.problem(fmt::format("quantization_config.quant_method: found {}, expected \"fp8\"",
                          method ? Reader::shown(*method) : "nothing"));
  }
  const Object* block = Reader::find_in(*q, "weight_block_size");
  if (block != nullptr && *block != Object::array({128, 128})) {
    r.problem(
        fmt::format("quantization_config.weight_block_size: found {}, expected [128,128]", Reader::shown(*block)));
  }
}

void read_dspark(Reader& r, ModelConfig& c) {
  r.integer_or("dspark_block_size", c.draft.block_size);
  r.integer_or("dspark_markov_rank", c.draft.markov_rank);
  r.integer_or("dspark_noise_token_id", c.draft.noise_token);
  if (const Object* layers = r.find("dspark_target_layer_ids")) {
    r.read_integers("dspark_target_layer_ids", *layers, c.draft.target_layers);
  }
}

// Gathers violated bounds.
class Bounds {
 public:
  std::vector<std::string> problems;
  template <class T>
  void in(const char* what, T value, T low, T high) {
    if (!(low <= value && value <= high)) {
      problems.push_back(fmt::format("{}: found {}, expected {} to {}", what, value, low, high));
    }
  }
  void holds(bool ok, std::string text) {
    if (!ok) problems.push_back(std::move(text));
  }
};

void check_sizes(Bounds& b, const ModelConfig& c) {
  b.in("vocab_size", c.vocab, 1, 1 << 24);
  b.in("hidden_size", c.hidden, 1, 1 << 17);
  b.in("num_hidden_layers", c.layers, 1, 1024);
  b.in("num_attention_heads", c.heads, 1, 4096);
  b.in("head_dim", c.head_dim, 2, 8192);
  b.in("q_lora_rank", c.q_rank, 1, 1 << 16);
  b.in("o_groups", c.o_groups, 1, 4096);
  b.in("o_lora_rank", c.o_rank, 1, 1 << 16);
  b.in("sliding_window", c.window, 1, 1 << 16);
  b.in("index_n_heads", c.index_heads, 1, 4096);
  b.in("index_head_dim", c.index_dim, 2, 8192);
  b.in("index_topk", c.index_topk, 1, 1 << 20);
  b.in("n_routed_experts", c.routed_experts, 1, 1 << 14);
  b.in("num_experts_per_tok", c.active_experts, 1, 64);
  b.in("moe_intermediate_size", c.expert_inner, 1, 1 << 17);
  b.in("num_hash_layers", c.hash_layers, 0, 1024);
  b.in("hc_mult", c.streams, 1, 16);
  b.in("hc_sinkhorn_iters", c.sinkhorn_iters, 1, 1000);
  b.in("max_position_embeddings", c.max_positions, 1, 1 << 30);
  b.in("qk_rope_head_dim", c.rope_dim, 2, 8192);
  b.in("routed_scaling_factor", c.route_scale, 1e-6F, 1e6F);
  b.in("swiglu_limit", c.swiglu_limit, 0.0F, 1e9F);
  b.in("rms_norm_eps", c.norm_eps, 1e-30F, 1.0F);
  b.in("hc_eps", c.hc_eps, 1e-30F, 1.0F);
  b.in("rope_theta", c.rope_theta, 1.0, 1e12);
  b.in("compress_rope_theta", c.compress_rope_theta, 1.0, 1e12);
  b.in("bos_token_id", c.bos_token, 0, std::max(c.vocab - 1, 0));
  b.in("eos_token_id", c.eos_token, 0, std::max(c.vocab - 1, 0));
}

void check_relations(Bounds& b, const ModelConfig& c) {
  b.holds(c.active_experts <= c.routed_experts,
          fmt::format("num_experts_per_tok: found {}, more than the {} routed experts", c.active_experts,
                      c.routed_experts));
  b.holds(std::int64_t{c.layers} * c.routed_experts <= 1 << 18,
          fmt::format("n_routed_experts: found {} in {} layers, more than the {} experts one model may have",
                      c.routed_experts, c.layers, 1 << 18));
  b.holds(c.hash_layers <= c.layers,
          fmt::format("num_hash_layers: found {}, more than the {} layers", c.hash_layers, c.layers));
  b.holds(c.o_groups < 1 || c.heads % c.o_groups == 0,
          fmt::format("o_groups: found {}, which does not divide {} heads", c.o_groups, c.heads));
  b.holds(c.rope_dim % 2 == 0 && c.rope_dim <= c.head_dim && c.rope_dim <= c.index_dim,
          fmt::format("qk_rope_head_dim: found {}, expected an even number, at most head_dim {} and index_head_dim {}",
                      c.rope_dim, c.head_dim, c.index_dim));
  b.holds(c.index_dim >= 0 && std::has_single_bit(static_cast<std::uint32_t>(c.index_dim)),
          fmt::format("index_head_dim: found {}, expected a power of two (model.md 6)", c.index_dim));
  b.holds(c.compress_ratios.size() == static_cast<std::size_t>(std::max(c.layers, 0)),
          fmt::format("compress_ratios: found {} entries for {} layers", c.compress_ratios.size(), c.layers));
  for (std::size_t i = 0; i < c.compress_ratios.size(); ++i) {
    const std::int32_t r = c.compress_ratios[i];
    b.holds(r == 0 || r == 4 || r == 128, fmt::format("compress_ratios[{}]: found {}, expected 0, 4 or 128", i, r));
  }
  if (c.yarn.original_positions != 0) {
    b.in("rope_scaling.original_max_position_embeddings", c.yarn.original_positions, 1, 1 << 30);
    b.in("rope_scaling.factor", c.yarn.factor, 1.0, 1e6);
    b.in("rope_scaling.beta_slow", c.yarn.beta_slow, 1e-6, 1e6);
    b.in("rope_scaling.beta_fast", c.yarn.beta_fast, c.yarn.beta_slow, 1e6);
  }
}

void check_draft(Bounds& b, const ModelConfig& c) {
  const DraftConfig& d = c.draft;
  b.in("draft stages", d.stages, 0, 64);
  if (d.block_size == 0 && d.markov_rank == 0 && d.target_layers.empty() && d.kind != DraftKind::kDspark) return;
  b.in("dspark_block_size", d.block_size, 1, 64);
  b.in("dspark_markov_rank", d.markov_rank, 1, 1 << 16);
  b.in("dspark_noise_token_id", d.noise_token, 0, std::max(c.vocab - 1, 0));
  b.in("dspark_target_layer_ids: number of layers", static_cast<int>(d.target_layers.size()), 1, 64);
  for (std::size_t i = 0; i < d.target_layers.size(); ++i) {
    const std::int32_t low = i == 0 ? 0 : d.target_layers[i - 1] + 1;
    b.holds(low <= d.target_layers[i] && d.target_layers[i] < c.layers,
            fmt::format("dspark_target_layer_ids[{}]: found {}, expected ascending layers below {}", i,
                        d.target_layers[i], c.layers));
  }
}

std::vector<std::string> bound_problems(const ModelConfig& c) {
  Bounds b;
  check_sizes(b, c);
  check_relations(b, c);
  check_draft(b, c);
  return std::move(b.problems);
}

}  // namespace

Result<ModelConfig> parse_config(std::string_view text, std::string_view what) {
  if (text.size() > kMaxConfigBytes) {
    return fail(Code::kInvalid, "{}: {} bytes, more than the {} a config.json may have", what, text.size(),
                kMaxConfigBytes);
  }
  const Object root = Object::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return fail(Code::kInvalid, "{}: not valid JSON", what);
  if (!root.is_object()) return fail(Code::kInvalid, "{}: found {}, expected a JSON object", what, Reader::shown(root));

  ModelConfig c;
  Reader r(root);
  read_architecture(r);
  if (!r.problems.empty()) return fail(Code::kInvalid, "{}: {}", what, fmt::join(r.problems, "\n  "));
  read_sizes(r, c);
  read_rope_dim(r, c);
  read_schedule(r, c);
  read_hash_layers(r, c);
  read_rope(r, root, c);
  read_quantisation(r, c);
  read_dspark(r, c);
  // Bounds of fields that could not be read would only repeat the trouble.
  if (r.problems.empty()) r.problems = bound_problems(c);
  if (!r.problems.empty()) {
    constexpr std::size_t kShown = 20;
    const std::size_t more = r.problems.size() > kShown ? r.problems.size() - kShown : 0;
    r.problems.resize(r.problems.size() - more);
    return fail(Code::kInvalid, "{}: {}{}", what, fmt::join(r.problems, "\n  "),
                more != 0 ? fmt::format("\n  and {} more", more) : "");
  }
  return c;
}

Result<> validate(const ModelConfig& config) {
  const std::vector<std::string> problems = bound_problems(config);
  if (problems.empty()) return {};
  return fail(Code::kInvalid, "model configuration: {}", fmt::join(problems, "\n  "));
}

std::string to_json(const ModelConfig& c) {
  nlohmann::ordered_json j = {
      {"architectures", {"DeepseekV4ForCausalLM"}},
      {"model_type", "deepseek_v4"},
      {"vocab_size", c.vocab},
      {"hidden_size", c.hidden},
      {"num_hidden_layers", c.layers},
      {"num_attention_heads", c.heads},
      {"num_key_value_heads", 1},
      {"head_dim", c.head_dim},
      {"qk_rope_head_dim", c.rope_dim},
      {"q_lora_rank", c.q_rank},
      {"o_groups", c.o_groups},
      {"o_lora_rank", c.o_rank},
      {"sliding_window", c.window},
      {"index_n_heads", c.index_heads},
      {"index_head_dim", c.index_dim},
      {"index_topk", c.index_topk},
      {"n_routed_experts", c.routed_experts},
      {"n_shared_experts", 1},
      {"num_experts_per_tok", c.active_experts},
      {"moe_intermediate_size", c.expert_inner},
      {"num_hash_layers", c.hash_layers},
      {"hc_mult", c.streams},
      {"hc_sinkhorn_iters", c.sinkhorn_iters},
      {"max_position_embeddings", c.max_positions},
      {"bos_token_id", c.bos_token},
      {"eos_token_id", c.eos_token},
      {"rope_theta", c.rope_theta},
      {"compress_rope_theta", c.compress_rope_theta},
      {"scoring_func", "sqrtsoftplus"},
      {"topk_method", "noaux_tc"},
      {"norm_topk_prob", true},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"tie_word_embeddings", false},
      {"torch_dtype", "bfloat16"},
      {"num_nextn_predict_layers", c.draft.kind == DraftKind::kNone ? 0 : 1},
  };
  // f32 constants through their shortest decimal form (1e-06, not 9.99999997e-07).
  const auto put = [&](const char* key, float v) { j[key] = Object::parse(fmt::format("{}", v)); };
  put("routed_scaling_factor", c.route_scale);
  put("swiglu_limit", c.swiglu_limit);
  put("hc_eps", c.hc_eps);
  put("rms_norm_eps", c.norm_eps);
  std::vector<std::int32_t> ratios = c.compress_ratios;
  ratios.resize(ratios.size() + static_cast<std::size_t>(c.draft.stages), 0);
  j["compress_ratios"] = ratios;
  if (c.yarn.original_positions != 0) {
    j["rope_scaling"] = {{"type", "yarn"},
                         {"factor", c.yarn.factor},
                         {"beta_fast", c.yarn.beta_fast},
                         {"beta_slow", c.yarn.beta_slow},
                         {"original_max_position_embeddings", c.yarn.original_positions}};
  }
  if (c.quantised) {
    j["quantization_config"] = {{"quant_method", "fp8"},
                                {"fmt", "e4m3"},
                                {"activation_scheme", "dynamic"},
                                {"scale_fmt", "ue8m0"},
                                {"weight_block_size", {128, 128}}};
  }
  if (c.draft.kind == DraftKind::kDspark) {
    j["dspark_block_size"] = c.draft.block_size;
    j["dspark_markov_rank"] = c.draft.markov_rank;
    j["dspark_noise_token_id"] = c.draft.noise_token;
    j["dspark_target_layer_ids"] = c.draft.target_layers;
  }
  return j.dump(2) + "\n";
}

}  // namespace fathom::checkpoint
