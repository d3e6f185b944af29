// Checkpoints as transformers saves them: other names, experts merged, config.json normalised (checkpoint.md 2.3, 7.1).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/names.h"
#include "checkpoint/test_files.h"
#include "quant/bf16.h"

namespace fathom::checkpoint {
namespace {

using testing::HasSubstr;

constexpr const char* kFp4Model = "tests/data/models/micro-random";
constexpr const char* kPlainModel = "tests/data/models/micro-random-fp";

// The table once more, the other way round and in the test's own words.
std::string transformers_name(std::string name) {
  struct Pair {
    const char* official;
    const char* theirs;
  };
  static constexpr std::array kPairs = {
      Pair{"attn.indexer.compressor.wkv.", "self_attn.compressor.indexer.kv_proj."},
      Pair{"attn.indexer.compressor.wgate.", "self_attn.compressor.indexer.gate_proj."},
      Pair{"attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias"},
      Pair{"attn.indexer.compressor.norm.", "self_attn.compressor.indexer.kv_norm."},
      Pair{"attn.indexer.wq_b.", "self_attn.compressor.indexer.q_b_proj."},
      Pair{"attn.indexer.weights_proj.", "self_attn.compressor.indexer.scorer.weights_proj."},
      Pair{"attn.compressor.wkv.", "self_attn.compressor.kv_proj."},
      Pair{"attn.compressor.wgate.", "self_attn.compressor.gate_proj."},
      Pair{"attn.compressor.ape", "self_attn.compressor.position_bias"},
      Pair{"attn.compressor.norm.", "self_attn.compressor.kv_norm."},
      Pair{"attn.wq_a.", "self_attn.q_a_proj."},
      Pair{"attn.wq_b.", "self_attn.q_b_proj."},
      Pair{"attn.wkv.", "self_attn.kv_proj."},
      Pair{"attn.wo_a.", "self_attn.o_a_proj."},
      Pair{"attn.wo_b.", "self_attn.o_b_proj."},
      Pair{"attn.q_norm.", "self_attn.q_a_norm."},
      Pair{"attn.kv_norm.", "self_attn.kv_norm."},
      Pair{"attn.attn_sink", "self_attn.sinks"},
      Pair{"hc_attn_", "attn_hc."},
      Pair{"hc_ffn_", "ffn_hc."},
      Pair{"attn_norm.", "input_layernorm."},
      Pair{"ffn_norm.", "post_attention_layernorm."},
      Pair{"ffn.gate.bias", "mlp.gate.e_score_correction_bias"},
      Pair{"ffn.gate.", "mlp.gate."},
      Pair{"ffn.shared_experts.w1.", "mlp.shared_experts.gate_proj."},
      Pair{"ffn.shared_experts.w3.", "mlp.shared_experts.up_proj."},
      Pair{"ffn.shared_experts.w2.", "mlp.shared_experts.down_proj."},
      Pair{"hc_head_", "hc_head.hc_"},
      Pair{"embed.", "embed_tokens."},
  };
  if (name == "head.weight") return "lm_head.weight";
  if (name.ends_with(".scale")) name.replace(name.size() - 5, 5, "weight_scale_inv");
  for (const Pair& p : kPairs) {
    const std::size_t at = name.find(p.official);
    if (at == std::string::npos || (at != 0 && name[at - 1] != '.')) continue;
    name.replace(at, std::string_view(p.official).size(), p.theirs);
    break;
  }
  return "model." + name;
}

// Per layer: [E, 2I, ...] of w1 over w3, [E, d, ...] of w2, for weights and for scales.
void merge_experts(const LooseCheckpoint& from, int layers, int experts, bool scales, LooseCheckpoint& to) {
  const auto part = [&](int l, int e, const char* m, const char* suffix) -> const LooseTensor& {
    const std::string name = fmt::format("layers.{}.ffn.experts.{}.{}.{}", l, e, m, suffix);
    return *std::find_if(from.tensors.begin(), from.tensors.end(),
                         [&](const LooseTensor& t) { return t.name == name; });
  };
  for (int l = 0; l < layers; ++l) {
    for (const bool scale : {false, true}) {
      if (scale && !scales) continue;
      const char* suffix = scale ? "scale" : "weight";
      const char* ending = scale ? "_scale_inv" : "";
      LooseTensor gate_up = {fmt::format("model.layers.{}.mlp.experts.gate_up_proj{}", l, ending), {}, {}, {}};
      LooseTensor down = {fmt::format("model.layers.{}.mlp.experts.down_proj{}", l, ending), {}, {}, {}};
      for (int e = 0; e < experts; ++e) {
        gate_up.bytes += part(l, e, "w1", suffix).bytes + part(l, e, "w3", suffix).bytes;
        down.bytes += part(l, e, "w2", suffix).bytes;
      }
      const LooseTensor& w1 = part(l, 0, "w1", suffix);
      const LooseTensor& w2 = part(l, 0, "w2", suffix);
      gate_up.dtype = down.dtype = w1.dtype;
      gate_up.shape = {experts, 2 * w1.shape[0], w1.shape[1]};
      down.shape = {experts, w2.shape[0], w2.shape[1]};
      to.tensors.push_back(gate_up);
      to.tensors.push_back(down);
    }
  }
}

// The config as transformers 5.17 writes it: nothing of the published form's own keys is left.
std::string normalised(const std::string& published) {
  auto j = nlohmann::json::parse(published);
  nlohmann::json types = nlohmann::json::array();
  nlohmann::json mlp = nlohmann::json::array();
  for (int l = 0; l < j["num_hidden_layers"]; ++l) {
    const int r = j["compress_ratios"][static_cast<std::size_t>(l)];
    types.push_back(r == 0   ? "sliding_attention"
                    : r == 4 ? "compressed_sparse_attention"
                             : "heavily_compressed_attention");
    mlp.push_back(l < j["num_hash_layers"] ? "hash_moe" : "moe");
  }
  j["layer_types"] = types;
  j["mlp_layer_types"] = mlp;
  j["compress_rates"] = {{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
  nlohmann::json yarn = j["rope_scaling"];
  yarn["rope_type"] = "yarn";
  yarn.erase("type");
  yarn["rope_theta"] = j["compress_rope_theta"];
  yarn["attention_factor"] = 1.0;
  j["rope_parameters"] = {{"main", {{"rope_type", "default"}, {"rope_theta", j["rope_theta"]}}}, {"compress", yarn}};
  j["partial_rotary_factor"] = j["qk_rope_head_dim"].get<double>() / j["head_dim"].get<double>();
  for (const char* key : {"compress_ratios", "num_hash_layers", "rope_scaling", "rope_theta", "compress_rope_theta",
                          "qk_rope_head_dim", "num_nextn_predict_layers"}) {
    j.erase(key);
  }
  return j.dump();
}

LooseCheckpoint as_saved(const LooseCheckpoint& c, int layers, int experts, bool scales) {
  LooseCheckpoint out;
  out.config = normalised(c.config);
  for (const LooseTensor& t : c.tensors) {
    if (t.name.starts_with("mtp.") || t.name.find("ffn.experts.") != std::string::npos) continue;
    out.tensors.push_back({transformers_name(t.name), t.dtype, t.shape, t.bytes});
  }
  merge_experts(c, layers, experts, scales, out);
  return out;
}

void expect_same_trunk(const Checkpoint& saved, const LooseCheckpoint& original) {
  std::size_t trunk = 0;
  for (const LooseTensor& t : original.tensors) {
    if (t.name.starts_with("mtp.")) continue;
    ++trunk;
    const Tensor* found = saved.find(t.name);
    ASSERT_NE(found, nullptr) << t.name;
    EXPECT_EQ(found->dtype, t.dtype) << t.name;
    EXPECT_EQ(found->shape, t.shape) << t.name;
    EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(found->bytes.data()), found->bytes.size()), t.bytes)
        << t.name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(found->bytes.data()) % size_of(found->dtype), 0U) << t.name;
  }
  EXPECT_EQ(saved.tensors().size(), trunk);
}

struct Model {
  const char* folder;
  int layers;
  int experts;
  bool scales;
};
void PrintTo(const Model& m, std::ostream* out) { *out << m.folder; }

class Transformers : public testing::TestWithParam<Model> {};

TEST_P(Transformers, SavedCheckpointIsTheSameModel) {
  const auto [source, layers, experts, scales] = GetParam();
  const LooseCheckpoint original = LooseCheckpoint::load(source);
  const Folder folder("transformers");
  as_saved(original, layers, experts, scales).write(folder);
  const auto saved = Checkpoint::open(folder.path());
  ASSERT_TRUE(saved) << saved.error().what;
  expect_same_trunk(*saved, original);
  ModelConfig published = parse_config(original.config, "config.json").value();
  EXPECT_EQ(saved->config(), published);  // no draft: transformers drops it, and the config says nothing of its kind
}

INSTANTIATE_TEST_SUITE_P(All, Transformers,
                         testing::Values(Model{kFp4Model, 2, 4, true}, Model{kPlainModel, 5, 6, false}));

TEST(TransformersNames, BothSpellingsOfTheIndexerWeights) {
  EXPECT_EQ(official_name("model.layers.2.self_attn.compressor.indexer.weights_proj.weight").name,
            "layers.2.attn.indexer.weights_proj.weight");
  EXPECT_EQ(official_name("model.layers.2.self_attn.compressor.indexer.scorer.weights_proj.weight").name,
            "layers.2.attn.indexer.weights_proj.weight");
}

TEST(TransformersNames, UnmergedExperts) {
  EXPECT_EQ(official_name("model.layers.10.mlp.experts.7.gate_proj.weight").name, "layers.10.ffn.experts.7.w1.weight");
  EXPECT_EQ(official_name("model.layers.10.mlp.experts.7.up_proj.weight_scale_inv").name,
            "layers.10.ffn.experts.7.w3.scale");
  EXPECT_EQ(official_name("model.layers.10.mlp.experts.7.down_proj.weight").name, "layers.10.ffn.experts.7.w2.weight");
}

TEST(TransformersNames, UnknownOnesStayAsTheyAre) {
  for (const char* name : {"model.layers.", "model.layers.x.input_layernorm.weight", "model.layers.1", "model.",
                           "model.layers.1.mlp.experts.", "model.layers.1.mlp.experts.gate_up_proj_blocks",
                           "layers.1.attn_norm.weight", "model.layers.3.attn_hc.fnx"}) {
    EXPECT_EQ(official_name(name).name, name);
    EXPECT_EQ(official_name(name).merged, Merged::kNo);
  }
}

TEST(Transformers, F32ParametersSavedAsBf16AreWidened) {
  LooseCheckpoint c = LooseCheckpoint::load(kPlainModel);
  LooseTensor& sink = c.at("layers.1.attn.attn_sink");
  std::vector<float> expected;
  std::string narrow;
  for (std::size_t i = 0; i < sink.bytes.size() / 4; ++i) {
    float v = 0;
    std::memcpy(&v, sink.bytes.data() + 4 * i, 4);
    const quant::Bf16 b = quant::to_bf16(v);
    narrow.append(reinterpret_cast<const char*>(&b), 2);
    expected.push_back(quant::to_f32(b));
  }
  sink.dtype = DType::kBf16;
  sink.bytes = narrow;
  const Folder folder("widened");
  c.write(folder);
  const auto r = Checkpoint::open(folder.path());
  ASSERT_TRUE(r) << r.error().what;
  const Tensor& t = *r->find("layers.1.attn.attn_sink");
  EXPECT_EQ(t.dtype, DType::kF32);
  ASSERT_EQ(t.bytes.size(), 4 * expected.size());
  EXPECT_EQ(std::memcmp(t.bytes.data(), expected.data(), t.bytes.size()), 0);
}

TEST(Transformers, MergedExpertsMustAgreeWithTheConfig) {
  LooseCheckpoint c = as_saved(LooseCheckpoint::load(kPlainModel), 5, 6, false);
  LooseTensor& t = c.at("model.layers.3.mlp.experts.gate_up_proj");
  t.shape = {3, 2 * t.shape[1], t.shape[2]};  // as many bytes, fewer experts
  const Folder folder("merged");
  c.write(folder);
  const auto r = Checkpoint::open(folder.path());
  ASSERT_FALSE(r);
  EXPECT_THAT(r.error().what,
              HasSubstr("model.layers.3.mlp.experts.gate_up_proj: found [3, 128, 64], expected [6, 2I, ...]"));
}

TEST(TransformersConfig, FormsThatDisagreeAreRefused) {
  const std::string published = LooseCheckpoint::load(kPlainModel).config;
  auto j = nlohmann::json::parse(normalised(published));
  j["compress_ratios"] = {0, 0, 4, 4, 4, 0};
  const auto r = parse_config(j.dump(), "config.json");
  ASSERT_FALSE(r);
  EXPECT_THAT(r.error().what, HasSubstr("compress_ratios and layer_types disagree"));
  j = nlohmann::json::parse(normalised(published));
  j["num_hash_layers"] = 3;
  EXPECT_THAT(parse_config(j.dump(), "c").error().what,
              HasSubstr("num_hash_layers: found 3, but mlp_layer_types begins with 2 hash_moe"));
  j = nlohmann::json::parse(normalised(published));
  j["layer_types"][1] = "full_attention";
  EXPECT_THAT(parse_config(j.dump(), "c").error().what, HasSubstr("layer_types[1]: found \"full_attention\""));
  j = nlohmann::json::parse(normalised(published));
  j["mlp_layer_types"][4] = "hash_moe";
  EXPECT_THAT(parse_config(j.dump(), "c").error().what, HasSubstr("mlp_layer_types[4]: found \"hash_moe\""));
  j = nlohmann::json::parse(normalised(published));
  j["partial_rotary_factor"] = 0.33;
  EXPECT_THAT(parse_config(j.dump(), "c").error().what, HasSubstr("partial_rotary_factor: found 0.33"));
}

}  // namespace
}  // namespace fathom::checkpoint
