// Checkpoints with one thing wrong each: refused with file, tensor, found and expected, never with a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <ostream>

#include "base/mapping_guard.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/content.h"
#include "checkpoint/test_files.h"

namespace fathom::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kFp4Model = "tests/data/models/micro-random";
constexpr const char* kPlainModel = "tests/data/models/micro-random-fp";

// micro-random: 2 layers (ratios 4 and 128; layer 0 hash-routed), MTP, 4 experts, vocabulary 128, hidden 128.
struct Case {
  const char* name;
  std::function<void(LooseCheckpoint&)> spoil;
  const char* error;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Keeps a shape and its bytes in step.
void reshape(LooseTensor& t, DType dtype, Shape shape) {
  std::int64_t n = 0;
  element_count(shape, n);
  t.dtype = dtype;
  t.shape = std::move(shape);
  t.bytes.resize(static_cast<std::size_t>(n) * size_of(dtype));
}

void put_id(LooseCheckpoint& c, std::size_t at, std::int64_t id) {
  std::memcpy(c.at("layers.0.ffn.gate.tid2eid").bytes.data() + 8 * at, &id, 8);
}

std::vector<Case> tensor_cases() {
  using C = LooseCheckpoint;
  return {
      {"TensorMissing", [](C& c) { c.erase("norm.weight"); }, "norm.weight: found nothing, expected BF16 or F32 [128]"},
      {"EmbeddingMissing", [](C& c) { c.erase("embed.weight"); },
       "embed.weight: found nothing, expected BF16 or F32 [128, 128]"},
      {"TensorUnknown",
       [](C& c) {
         c.tensors.push_back({"layers.0.attn.wq_c.weight", DType::kBf16, {2}, "1234"});
       },
       "model.safetensors: layers.0.attn.wq_c.weight: found BF16 [2], expected no tensor of this name"},
      {"LayerTooMany",
       [](C& c) {
         c.tensors.push_back({"layers.2.attn_norm.weight", DType::kBf16, {2}, "1234"});
       },
       "layers.2.attn_norm.weight: found BF16 [2], expected no tensor"},
      {"ExpertMissing", [](C& c) { c.erase("layers.1.ffn.experts.3.w2.weight"); },
       "layers.1.ffn.experts.3.w2.weight: found nothing, expected I8 (FP4 pairs), F8_E4M3, BF16 or F32 [128, 128]"},
      {"ExpertsFewerThanTensors", [](C& c) { c.edit_config("\"n_routed_experts\": 4", "\"n_routed_experts\": 3"); },
       "layers.0.ffn.experts.3.w1.weight: found I8 [128, 64], expected no tensor of this name"},
      {"ExpertsMoreThanTensors", [](C& c) { c.edit_config("\"n_routed_experts\": 4", "\"n_routed_experts\": 5"); },
       "layers.0.ffn.experts.4.w1.weight: found nothing"},
      {"VocabularyOther", [](C& c) { c.edit_config("\"vocab_size\": 128", "\"vocab_size\": 129"); },
       "embed.weight: found BF16 [128, 128], expected BF16 [129, 128]"},
      {"DTypeOfNorm", [](C& c) { reshape(c.at("norm.weight"), DType::kF8E4M3, {128}); },
       "norm.weight: found F8_E4M3, expected BF16 or F32"},
      {"DTypeOfCompressor",
       [](C& c) {
         reshape(c.at("layers.0.attn.compressor.wkv.weight"), DType::kF8E4M3, {256, 128});
       },
       "layers.0.attn.compressor.wkv.weight: found F8_E4M3, expected BF16 or F32"},
      {"Fp4OutsideExperts",
       [](C& c) {
         reshape(c.at("layers.0.attn.wkv.weight"), DType::kFp4x2, {128, 64});
       },
       "layers.0.attn.wkv.weight: found I8, expected F8_E4M3, BF16 or F32"},
      {"DTypeOfIds",
       [](C& c) {
         reshape(c.at("layers.0.ffn.gate.tid2eid"), DType::kI32, {128, 2});
       },
       "layers.0.ffn.gate.tid2eid: found I32, expected I64"},
      {"ShapeTransposed",
       [](C& c) {
         reshape(c.at("layers.0.attn.wq_b.weight"), DType::kF8E4M3, {128, 256});
       },
       "layers.0.attn.wq_b.weight: found F8_E4M3 [128, 256], expected F8_E4M3 [256, 128]"},
      {"ShapeFlat", [](C& c) { c.at("layers.0.attn.wkv.weight").shape = {128 * 128}; },
       "found F8_E4M3 [16384], expected F8_E4M3 [128, 128]"},
      {"ShapeWithExtraOne",
       [](C& c) {
         c.at("norm.weight").shape = {1, 128};
       },
       "norm.weight: found BF16 [1, 128], expected BF16 [128]"},
      {"ShapeScalar", [](C& c) { c.at("hc_head_scale").shape = {}; }, "hc_head_scale: found F32 [], expected F32 [1]"},
      {"ShapeEmpty", [](C& c) { reshape(c.at("norm.weight"), DType::kBf16, {0}); },
       "norm.weight: found BF16 [0], expected BF16 [128]"},
      {"Fp4NotPacked",
       [](C& c) {
         reshape(c.at("layers.0.ffn.experts.0.w1.weight"), DType::kFp4x2, {128, 128});
       },
       "layers.0.ffn.experts.0.w1.weight: found I8 [128, 128], expected I8 [128, 64]"},
      {"ScaleMissing", [](C& c) { c.erase("layers.0.attn.wkv.scale"); },
       "layers.0.attn.wkv.scale: found nothing, expected F8_E8M0 or F32 [1, 1]"},
      {"ScaleRowTooMany",
       [](C& c) {
         reshape(c.at("layers.0.attn.wkv.scale"), DType::kF8E8M0, {2, 1});
       },
       "layers.0.attn.wkv.scale: found F8_E8M0 [2, 1], expected F8_E8M0 [1, 1]"},
      {"ScaleColumnTooFew",
       [](C& c) {
         reshape(c.at("layers.0.ffn.experts.0.w1.scale"), DType::kF8E8M0, {128, 3});
       },
       "layers.0.ffn.experts.0.w1.scale: found F8_E8M0 [128, 3], expected F8_E8M0 [128, 4]"},
      {"ScaleAsNumbers",
       [](C& c) {
         reshape(c.at("layers.0.ffn.experts.0.w1.scale"), DType::kF32, {128, 4});
       },
       "layers.0.ffn.experts.0.w1.scale: found F32, expected F8_E8M0"},
      {"ScaleAsBf16",
       [](C& c) {
         reshape(c.at("layers.0.attn.wkv.scale"), DType::kBf16, {1, 1});
       },
       "layers.0.attn.wkv.scale: found BF16, expected F8_E8M0 or F32"},
      {"ScaleAsI8", [](C& c) { c.at("layers.0.attn.wkv.scale").dtype = DType::kFp4x2; },
       "layers.0.attn.wkv.scale: found I8, expected F8_E8M0 or F32"},
      {"ScaleBesidePlainWeight",
       [](C& c) {
         reshape(c.at("layers.0.attn.wkv.weight"), DType::kBf16, {128, 128});
       },
       "layers.0.attn.wkv.scale: found a scale, expected none beside a weight stored as BF16"},
      {"ScaleWithoutWeight", [](C& c) { c.erase("layers.0.attn.wkv.weight"); }, "1 problem:"},
      {"ScaleOfNothing",
       [](C& c) {
         c.tensors.push_back({"norm.scale", DType::kF8E8M0, {1}, "1"});
       },
       "norm.scale: found a scale, expected none beside a weight stored as BF16"},
      {"ExpertFormatsMixed",
       [](C& c) {
         reshape(c.at("layers.1.ffn.experts.2.w3.weight"), DType::kF8E4M3, {128, 128});
         reshape(c.at("layers.1.ffn.experts.2.w3.scale"), DType::kF8E8M0, {1, 1});
       },
       "layers.1.ffn.experts.2.w3.weight: found F8_E4M3, expected I8 as the block's other experts"},
      {"IdIsExperts", [](C& c) { put_id(c, 5, 4); },
       "model.safetensors: layers.0.ffn.gate.tid2eid: found expert id 4 at [2, 1] (1 ids out of range), expected ids 0 "
       "to 3"},
      {"IdIsNegative", [](C& c) { put_id(c, 0, -1); }, "found expert id -1 at [0, 0]"},
      {"IdIsHuge", [](C& c) { put_id(c, 255, INT64_MAX); }, "found expert id 9223372036854775807 at [127, 1]"},
      {"HashLayerWithBias",
       [](C& c) {
         c.tensors.push_back({"layers.0.ffn.gate.bias", DType::kF32, {4}, std::string(16, '\0')});
       },
       "layers.0.ffn.gate.bias: found F32 [4], expected no tensor"},
      {"HashLayersFewer", [](C& c) { c.edit_config("\"num_hash_layers\": 1", "\"num_hash_layers\": 0"); },
       "layers.0.ffn.gate.bias: found nothing, expected F32 [4]"},
      {"CompressorMissing", [](C& c) { c.erase("layers.1.attn.compressor.ape"); },
       "layers.1.attn.compressor.ape: found nothing, expected F32 [128, 128]"},
      {"RatioAgainstTensors", [](C& c) { c.edit_config("4,\n    128,\n    0", "4,\n    4,\n    0"); },
       "layers.1.attn.indexer.wq_b.weight: found nothing"},
      {"RatioZeroWithCompressor", [](C& c) { c.edit_config("4,\n    128,\n    0", "4,\n    0,\n    0"); },
       "layers.1.attn.compressor.wkv.weight: found BF16 [128, 128], expected no tensor"},
      {"DraftWithoutItsKind", [](C& c) { c.erase("mtp.0.e_proj.weight"); },
       "mtp.*: found 62 tensors, but neither mtp.0.e_proj.weight (MTP) nor mtp.0.main_proj.weight (DSpark), expected "
       "one"},
      {"DraftStageTooMany",
       [](C& c) {
         c.tensors.push_back({"mtp.1.norm.weight", DType::kBf16, {1}, "12"});
       },
       "mtp.1.norm.weight: found BF16 [1], expected no tensor"},
      {"DSparkWithoutConstants",
       [](C& c) {
         c.tensors.push_back({"mtp.0.main_proj.weight", DType::kBf16, {1}, "12"});
       },
       "dspark_markov_rank: found 0, expected 1 to 65536"},
  };
}

class MalformedTensors : public testing::TestWithParam<Case> {};

TEST_P(MalformedTensors, AreRefused) {
  LooseCheckpoint c = LooseCheckpoint::load(kFp4Model);
  GetParam().spoil(c);
  const Folder folder("malformed");
  c.write(folder);
  const auto r = Checkpoint::open(folder.path());
  ASSERT_FALSE(r);
  EXPECT_THAT(r.error().what, AllOf(HasSubstr(folder.path().string()), HasSubstr(GetParam().error)));
}

INSTANTIATE_TEST_SUITE_P(All, MalformedTensors, testing::ValuesIn(tensor_cases()),
                         [](const testing::TestParamInfo<Case>& c) { return c.param.name; });

std::vector<Case> config_cases() {
  using C = LooseCheckpoint;
  const auto edit = [](const char* from, const char* to) { return [from, to](C& c) { c.edit_config(from, to); }; };
  const auto whole = [](std::string text) { return [text](C& c) { c.config = text; }; };
  return {
      {"Empty", whole(""), "not valid JSON"},
      {"CutShort", whole(R"({"model_type": "deepseek_v4")"), "not valid JSON"},
      {"NotUtf8", whole("{\"model_type\": \"\xff\"}"), "not valid JSON"},
      {"Array", whole("[]"), "found [], expected a JSON object"},
      {"Deep", whole(std::string(500'000, '[')), "not valid JSON"},
      {"DeepButWhole", whole(R"({"a":)" + std::string(200'000, '[') + std::string(200'000, ']') + "}"),
       "model_type: found nothing"},
      {"Large", whole(std::string((1 << 20) + 1, ' ')), "more than the 1048576"},
      {"OtherArchitecture", edit("\"deepseek_v4\"", "\"deepseek_v41\""),
       "model_type: found \"deepseek_v41\", expected \"deepseek_v4\""},
      {"TiedEmbeddings", edit("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"),
       "tie_word_embeddings: found true, expected false"},
      {"OtherScoring", edit("sqrtsoftplus", "sigmoid"), "scoring_func: found \"sigmoid\", expected \"sqrtsoftplus\""},
      {"ManyKvHeads", edit("\"num_key_value_heads\": 1", "\"num_key_value_heads\": 8"),
       "num_key_value_heads: found 8, expected 1"},
      {"OtherBlockSize", edit("[\n      128,\n      128\n    ]", "[32, 32]"),
       "weight_block_size: found [32,32], expected [128,128]"},
      {"OtherMethod", edit("\"quant_method\": \"fp8\"", "\"quant_method\": \"awq\""), "quant_method: found \"awq\""},
      {"FieldMissing", edit("\"hidden_size\": 128,", ""), "hidden_size: missing"},
      {"FieldIsString", edit("\"hidden_size\": 128", "\"hidden_size\": \"128\""),
       "hidden_size: found \"128\", expected a 32-bit integer"},
      {"FieldIsFraction", edit("\"hidden_size\": 128", "\"hidden_size\": 128.5"),
       "hidden_size: found 128.5, expected a 32-bit integer"},
      {"FieldIsHuge", edit("\"hidden_size\": 128", "\"hidden_size\": 1e300"), "expected a 32-bit integer"},
      {"FieldIsNegative", edit("\"hidden_size\": 128", "\"hidden_size\": -128"),
       "hidden_size: found -128, expected 1 to"},
      {"FieldIsZero", edit("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 0"),
       "num_hidden_layers: found 0, expected 1 to 1024"},
      {"LayersBeyondSchedule", edit("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1000000"),
       "compress_ratios: found 3 entries, expected one for each of 1000000"},
      {"ExpertsBeyondReason", edit("\"n_routed_experts\": 4", "\"n_routed_experts\": 2000000000"),
       "n_routed_experts: found 2000000000, expected 1 to 16384"},
      {"RatioUnknown", edit("4,\n    128,\n    0", "4,\n    16,\n    0"),
       "compress_ratios[1]: found 16, expected 0, 4 or 128"},
      {"RatioPastTrunk", edit("4,\n    128,\n    0", "4,\n    128,\n    4"),
       "compress_ratios[2]: found 4, expected 0 past the 2 trunk layers"},
      {"RatioIsString", edit("4,\n    128,\n    0", "\"4\",\n    128,\n    0"), "compress_ratios[0]: found \"4\""},
      {"GroupsDoNotDivide", edit("\"o_groups\": 2", "\"o_groups\": 3"),
       "o_groups: found 3, which does not divide 2 heads"},
      {"IndexDimNoPowerOfTwo", edit("\"index_head_dim\": 64", "\"index_head_dim\": 96"),
       "index_head_dim: found 96, expected a power of two"},
      {"RopeBeyondHead", edit("\"qk_rope_head_dim\": 64", "\"qk_rope_head_dim\": 256"),
       "qk_rope_head_dim: found 256, expected an even number, at most head_dim 128"},
      {"RopeOdd", edit("\"qk_rope_head_dim\": 64", "\"qk_rope_head_dim\": 63"), "qk_rope_head_dim: found 63"},
      {"RopeKind", edit("\"type\": \"yarn\"", "\"type\": \"linear\""),
       "rope_scaling.type: found \"linear\", expected \"yarn\""},
      {"ActiveBeyondExperts", edit("\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 5"),
       "num_experts_per_tok: found 5, more than the 4 routed experts"},
      {"HashBeyondLayers", edit("\"num_hash_layers\": 1", "\"num_hash_layers\": 3"),
       "num_hash_layers: found 3, more than the 2 layers"},
      {"TokenOutside", edit("\"eos_token_id\": 1", "\"eos_token_id\": 128"),
       "eos_token_id: found 128, expected 0 to 127"},
  };
}

class MalformedConfig : public testing::TestWithParam<Case> {};

TEST_P(MalformedConfig, IsRefused) {
  LooseCheckpoint c = LooseCheckpoint::load(kFp4Model);
  GetParam().spoil(c);
  const Folder folder("config");
  c.write(folder);
  const auto r = Checkpoint::open(folder.path());
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::kInvalid);
  EXPECT_THAT(r.error().what, AllOf(HasSubstr("config.json: "), HasSubstr(GetParam().error)));
}

INSTANTIATE_TEST_SUITE_P(All, MalformedConfig, testing::ValuesIn(config_cases()),
                         [](const testing::TestParamInfo<Case>& c) { return c.param.name; });

// What is wrong with the files of the folder.
struct FilesCase {
  const char* name;
  std::function<void(const Folder&)> spoil;
  const char* error;
};
void PrintTo(const FilesCase& c, std::ostream* out) { *out << c.name; }

void remove_weights(const Folder& f) { std::filesystem::remove(f.path() / "model.safetensors"); }

// Splits the model in two shards with an index; `edit` may change the index's text.
void shard(const Folder& f, const std::function<void(std::string&)>& edit) {
  const LooseCheckpoint whole = LooseCheckpoint::load(kFp4Model);
  LooseCheckpoint a;
  LooseCheckpoint b;
  std::size_t total = 0;
  std::string map;
  for (const LooseTensor& t : whole.tensors) {
    const bool second = t.name.starts_with("mtp.");
    (second ? b : a).tensors.push_back(t);
    map += fmt::format("{}\"{}\":\"{}\"", map.empty() ? "" : ",", t.name, second ? "b.safetensors" : "a.safetensors");
    total += t.bytes.size();
  }
  remove_weights(f);
  f.write("a.safetensors", a.file());
  f.write("b.safetensors", b.file());
  std::string index = fmt::format(R"({{"metadata":{{"total_size":{}}},"weight_map":{{{}}}}})", total, map);
  if (edit) edit(index);
  f.write("model.safetensors.index.json", index);
}

void replace(std::string& text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, from.size(), to);
}

std::vector<FilesCase> files_cases() {
  using F = Folder;
  return {
      {"ConfigMissing", [](const F& f) { std::filesystem::remove(f.path() / "config.json"); },
       "config.json: cannot open: No such file"},
      {"WeightsMissing", remove_weights, "found neither model.safetensors.index.json nor model.safetensors"},
      {"WeightsEmpty", [](const F& f) { f.write("model.safetensors", ""); }, "model.safetensors: 0 bytes, too short"},
      {"WeightsCut", [](const F& f) { std::filesystem::resize_file(f.path() / "model.safetensors", 1'000'000); },
       "truncated: tensor"},
      {"WeightsLonger",
       [](const F& f) {
         const auto p = f.path() / "model.safetensors";
         std::filesystem::resize_file(p, std::filesystem::file_size(p) + 1);
       },
       "1 bytes follow the last tensor"},
      {"WeightsAreFolder",
       [](const F& f) {
         remove_weights(f);
         std::filesystem::create_directory(f.path() / "model.safetensors");
       },
       "model.safetensors: not a regular file"},
      {"WeightsArePipe",
       [](const F& f) {
         remove_weights(f);
         ASSERT_EQ(::mkfifo((f.path() / "model.safetensors").c_str(), 0600), 0);
       },
       "model.safetensors: not a regular file"},
      {"LinkToNothing",
       [](const F& f) {
         remove_weights(f);
         std::filesystem::create_symlink("nowhere", f.path() / "model.safetensors");
       },
       "model.safetensors: cannot open: No such file"},
      {"LinkToItself",
       [](const F& f) {
         remove_weights(f);
         std::filesystem::create_symlink("model.safetensors", f.path() / "model.safetensors");
       },
       "model.safetensors: cannot open: Too many levels of symbolic links"},
      {"LfsPointer",
       [](const F& f) {
         f.write("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
       },
       "model.safetensors: header length"},
      {"ShardMissing",
       [](const F& f) {
         shard(f, {});
         std::filesystem::remove(f.path() / "b.safetensors");
       },
       "b.safetensors: cannot open: No such file"},
      {"TwoShardsBroken",
       [](const F& f) {
         shard(f, {});
         f.write("a.safetensors", "short");
         f.write("b.safetensors", "");
       },
       "2 problems:"},
      {"IndexNamesOutside",
       [](const F& f) { shard(f, [](std::string& i) { replace(i, "\"a.safetensors\"", "\"../a.safetensors\""); }); },
       "found \"../a.safetensors\", expected the plain name"},
      {"IndexPromisesMore",
       [](const F& f) {
         shard(f,
               [](std::string& i) { replace(i, "\"weight_map\":{", "\"weight_map\":{\"ghost\":\"a.safetensors\","); });
       },
       "a.safetensors: ghost: found nothing, expected the tensor that model.safetensors.index.json promises"},
      {"IndexPromisesLess",
       [](const F& f) { shard(f, [](std::string& i) { replace(i, ",\"norm.weight\":\"a.safetensors\"", ""); }); },
       "a.safetensors: norm.weight: found a tensor, expected none"},
      {"IndexNamesOtherShard",
       [](const F& f) { shard(f, [](std::string& i) { replace(i, "\"norm.weight\":\"a.", "\"norm.weight\":\"b."); }); },
       "b.safetensors: norm.weight: found nothing"},
      {"IndexTotalWrong",
       [](const F& f) { shard(f, [](std::string& i) { replace(i, "\"total_size\":", "\"total_size\":1"); }); },
       "model.safetensors.index.json: metadata.total_size: found 1"},
      {"TensorInTwoShards",
       [](const F& f) {
         shard(f, {});
         LooseCheckpoint b;
         for (LooseTensor& t : LooseCheckpoint::load(kFp4Model).tensors) {
           if (t.name.starts_with("mtp.") || t.name == "norm.weight") b.tensors.push_back(std::move(t));
         }
         f.write("b.safetensors", b.file());
       },
       "norm.weight: found a second tensor of this name"},
  };
}

class MalformedFiles : public testing::TestWithParam<FilesCase> {};

TEST_P(MalformedFiles, AreRefused) {
  const Folder folder("files");
  LooseCheckpoint::load(kFp4Model).write(folder);
  GetParam().spoil(folder);
  const auto r = Checkpoint::open(folder.path());
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().code, Code::kInternal);
  EXPECT_THAT(r.error().what, HasSubstr(GetParam().error));
  // Looking at headers alone never fails for a tensor's or a file's sake, and has the same to say.
  if (auto look = Checkpoint::open(folder.path(), {.access = Access::kHeaders})) {
    EXPECT_THAT(look->problems().summary(), HasSubstr(GetParam().error[0] == '2' ? "too short" : GetParam().error));
  }
}

INSTANTIATE_TEST_SUITE_P(All, MalformedFiles, testing::ValuesIn(files_cases()),
                         [](const testing::TestParamInfo<FilesCase>& c) { return c.param.name; });

TEST(Malformed, ShardsAsSuchAreFine) {
  const Folder folder("shards");
  LooseCheckpoint::load(kFp4Model).write(folder);
  shard(folder, {});
  const auto r = Checkpoint::open(folder.path());
  ASSERT_TRUE(r) << r.error().what;
  EXPECT_EQ(r->files().size(), 2U);
  EXPECT_EQ(r->file_of(*r->find("mtp.0.norm.weight")), "b.safetensors");
  // Without the draft its file is not even opened.
  std::filesystem::remove(folder.path() / "b.safetensors");
  const auto trunk = Checkpoint::open(folder.path(), {.access = Access::kData, .draft = false});
  ASSERT_TRUE(trunk) << trunk.error().what;
  EXPECT_EQ(trunk->files().size(), 1U);
}

// As a download cache lays a model out: links to files elsewhere.
TEST(Malformed, LinksAreFollowed) {
  const Folder blobs("blobs");
  LooseCheckpoint::load(kFp4Model).write(blobs);
  const Folder folder("links");
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::create_symlink(blobs.path() / file, folder.path() / file);
  }
  const auto r = Checkpoint::open(folder.path());
  ASSERT_TRUE(r) << r.error().what;
}

TEST(Malformed, UnreadableFile) {
  const Folder folder("unreadable");
  LooseCheckpoint::load(kFp4Model).write(folder);
  ::chmod((folder.path() / "model.safetensors").c_str(), 0);
  const auto open_as_nobody = [&] {
    // Root reads everything, so it must not be root that tries.
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
    const auto r = Checkpoint::open(folder.path());
    fmt::print(stderr, "{}\n", r ? "opened" : r.error().what);
    ::_exit(r ? 1 : 0);
  };
  EXPECT_EXIT(open_as_nobody(), testing::ExitedWithCode(0), "model.safetensors: cannot open: Permission denied");
}

TEST(Malformed, EveryProblemIsReported) {
  LooseCheckpoint c = LooseCheckpoint::load(kFp4Model);
  c.erase("norm.weight");
  c.at("hc_head_scale").shape = {};
  reshape(c.at("layers.0.attn.wkv.scale"), DType::kBf16, {1, 1});
  const Folder folder("several");
  c.write(folder);
  const auto r = Checkpoint::open(folder.path());
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::kCorrupt);
  EXPECT_THAT(r.error().what, AllOf(HasSubstr("3 problems:"), HasSubstr("norm.weight"), HasSubstr("hc_head_scale"),
                                    HasSubstr("layers.0.attn.wkv.scale")));
}

// An input width that no whole number of scale blocks covers.
TEST(Malformed, ShortInputBlocksAreRefused) {
  LooseCheckpoint c = LooseCheckpoint::load(kPlainModel);  // 64 wide
  reshape(c.at("layers.0.attn.wkv.weight"), DType::kF8E4M3, {64, 64});
  c.tensors.push_back({"layers.0.attn.wkv.scale", DType::kF8E8M0, {1, 1}, "\x7f"});
  const Folder folder("short");
  c.write(folder);
  const auto r = Checkpoint::open(folder.path());
  ASSERT_FALSE(r);
  EXPECT_THAT(r.error().what,
              HasSubstr("layers.0.attn.wkv.weight: found F8_E4M3 with 64 inputs, expected a multiple of 128"));
}

// Values, which only the deep check reads.
struct ValueCase {
  const char* tensor;
  std::string bytes;  // put at the tensor's end
  const char* error;
};

void PrintTo(const ValueCase& c, std::ostream* out) { *out << c.tensor; }

class MalformedValues : public testing::TestWithParam<ValueCase> {};

TEST_P(MalformedValues, AreFound) {
  LooseCheckpoint c = LooseCheckpoint::load(kFp4Model);
  LooseTensor& f32 = c.at("layers.0.attn.wkv.scale");  // as in Base checkpoints
  reshape(f32, DType::kF32, {1, 1});
  const float one = 1;
  std::memcpy(f32.bytes.data(), &one, 4);
  std::string& bytes = c.at(GetParam().tensor).bytes;
  bytes.replace(bytes.size() - GetParam().bytes.size(), GetParam().bytes.size(), GetParam().bytes);
  const Folder folder("values");
  c.write(folder);
  const auto r = Checkpoint::open(folder.path());
  ASSERT_TRUE(r) << r.error().what;
  ThreadPool pool(2);
  Problems problems;
  std::uint64_t last = 0;
  check_values(*r, pool, problems, [&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, all);
    last = done;
  });
  EXPECT_EQ(last, r->tensor_bytes());
  EXPECT_EQ(problems.total, 1U);
  EXPECT_THAT(problems.summary(), AllOf(HasSubstr(GetParam().tensor), HasSubstr(GetParam().error)));
}

INSTANTIATE_TEST_SUITE_P(
    All, MalformedValues,
    testing::Values(
        ValueCase{"layers.0.ffn.experts.1.w2.scale", "\xff",
                  "1 such elements, the first at 511, expected no E8M0 code 255"},
        ValueCase{"layers.0.attn.wq_b.scale", "\xff", "1 such elements, the first at 1, expected no E8M0 code 255"},
        ValueCase{"layers.1.attn.wq_a.weight", "\x7f\xff",
                  "2 such elements, the first at 16382, expected no E4M3 code 0x7F or 0xFF"},
        ValueCase{"norm.weight", std::string("\xc0\x7f", 2), "expected finite values"},
        ValueCase{"head.weight", std::string("\x80\xff", 2), "expected finite values"},
        ValueCase{"hc_head_fn", std::string("\0\0\x80\x7f", 4), "expected finite values"},
        ValueCase{"layers.0.attn.wkv.scale", std::string("\0\0\0\0", 4), "expected finite values above 0"},
        ValueCase{"layers.0.attn.wkv.scale", std::string("\0\0\x80\xbf", 4), "expected finite values above 0"},
        ValueCase{"layers.0.attn.wkv.scale", std::string("\0\0\xc0\x7f", 4), "expected finite values above 0"}));

class FileChanges : public testing::Test {
 protected:
  FileChanges() : folder_("changes") { LooseCheckpoint::load(kFp4Model).write(folder_); }
  std::filesystem::path weights() const { return folder_.path() / "model.safetensors"; }
  Folder folder_;
};

// What was opened stays what it was; the change is found when asked for.
TEST_F(FileChanges, Replaced) {
  const auto r = Checkpoint::open(folder_.path());
  ASSERT_TRUE(r) << r.error().what;
  ASSERT_TRUE(r->check_unchanged());
  const auto bytes = r->find("embed.weight")->bytes;
  const std::vector<std::byte> before(bytes.begin(), bytes.end());
  folder_.write("other", "something else");
  std::filesystem::rename(folder_.path() / "other", weights());
  EXPECT_TRUE(std::equal(before.begin(), before.end(), bytes.begin(), bytes.end()));
  const auto changed = r->check_unchanged();
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().code, Code::kCorrupt);
  EXPECT_THAT(changed.error().what, HasSubstr("model.safetensors: changed or replaced since it was opened"));
}

TEST_F(FileChanges, Removed) {
  const auto r = Checkpoint::open(folder_.path());
  ASSERT_TRUE(r) << r.error().what;
  std::filesystem::remove(weights());
  EXPECT_FALSE(r->check_unchanged());
}

TEST_F(FileChanges, CutShort) {
  const auto r = Checkpoint::open(folder_.path());
  ASSERT_TRUE(r) << r.error().what;
  std::filesystem::resize_file(weights(), 4096);
  EXPECT_FALSE(r->check_unchanged());
  const auto read_the_end = [&] {
    install_mapping_guard();
    const volatile std::byte last = r->tensors().back().bytes.back();
    ::_exit(static_cast<int>(last));
  };
  EXPECT_EXIT(read_the_end(), testing::ExitedWithCode(kMappingLostExit),
              "model.safetensors: was cut short while it was in use");
}

}  // namespace
}  // namespace fathom::checkpoint
