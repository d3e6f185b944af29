// `fathom logits` and `fathom eval` against the golden vectors and the model card, as files a user would compare.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "cli/cli_fixture.h"

namespace fathom::cli {
namespace {

using checkpoint::SafetensorsFile;
using testing::HasSubstr;

const std::string kRoot = FATHOM_SOURCE_DIR;

SafetensorsFile open(const std::string& path) {
  auto file = SafetensorsFile::open(path);
  if (!file) ADD_FAILURE() << file.error().what;
  return std::move(*file);
}

template <class T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
  const auto* info = file.find(name);
  if (info == nullptr) {
    ADD_FAILURE() << "no tensor " << name;
    return {};
  }
  const auto bytes = file.bytes(*info);
  std::vector<T> v(bytes.size() / sizeof(T));
  std::memcpy(v.data(), bytes.data(), bytes.size());
  return v;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want, float tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << "element " << i;
}

std::string as_json(const std::vector<std::int32_t>& ids) { return Json(ids).dump(); }

class ComputeCli : public Cli, public testing::WithParamInterface<std::string> {
 protected:
  const std::string model_ = kRoot + "/tests/data/models/micro-random-fp";
  const SafetensorsFile golden_ = open(kRoot + "/tests/data/vectors/model/e2e-micro-random-fp-f32.safetensors");
  const std::string prompt_ = "p6_n129.";
  const std::string ids_ = write("ids.json", as_json(values<std::int32_t>(golden_, prompt_ + "ids")));
  const std::string out_file_ = (dir_ / "out.safetensors").string();

  std::vector<std::string> logits(std::vector<std::string> more) {
    std::vector<std::string> args = {"logits", model_,      "--ids",    ids_,    "--numerics",
                                     "float",  "--backend", GetParam(), "--out", out_file_};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
};

TEST_P(ComputeCli, LogitsOfAGoldenPromptForcedAndGreedyWithMtp) {
  const auto fed = values<std::int32_t>(golden_, prompt_ + "decode_ids");
  for (const bool greedy : {false, true}) {
    const Outcome o = fathom(greedy ? logits({"--decode", std::to_string(fed.size()), "--chunk", "50", "--mtp"})
                                    : logits({"--force", write("force.json", as_json(fed)), "--chunk", "7", "--mtp"}));
    ASSERT_EQ(o.code, 0) << o.err;
    const SafetensorsFile got = open(out_file_);
    expect_near(values<float>(got, "prefill_logits"), values<float>(golden_, prompt_ + "prefill_logits_all"), 2e-4F);
    expect_near(values<float>(got, "decode_logits"), values<float>(golden_, prompt_ + "decode_logits"), 2e-4F);
    EXPECT_EQ(values<std::int32_t>(got, "decode_ids"), fed);
    expect_near(values<float>(got, "mtp_prefill_logits_last"),
                values<float>(golden_, prompt_ + "mtp_prefill_logits_last"), 2e-4F);
    auto drafted = values<float>(got, "mtp_decode_logits");
    const auto want = values<float>(golden_, prompt_ + "mtp_decode_logits");
    drafted.resize(want.size());
    expect_near(drafted, want, 2e-4F);
    EXPECT_EQ(got.find("decode_logits")->shape, (checkpoint::Shape{static_cast<std::int64_t>(fed.size()), 320}));
  }
}

TEST_P(ComputeCli, LastOnlyWritesOneRowAndChunksDoNotMatter) {
  ASSERT_EQ(fathom(logits({"--last-only", "--chunk", "5"})).code, 0);
  const std::string five = read(out_file_);
  ASSERT_EQ(fathom(logits({"--last-only"})).code, 0);
  EXPECT_EQ(read(out_file_), five);
  const SafetensorsFile got = open(out_file_);
  EXPECT_EQ(got.find("prefill_logits")->shape, (checkpoint::Shape{1, 320}));
  EXPECT_EQ(got.find("decode_logits"), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Backends, ComputeCli, testing::Values("ref", "cpu"));

TEST_F(Cli, LogitsErrorsNameWhatIsWrong) {
  const std::string model = kRoot + "/tests/data/models/micro-random";
  const auto fails = [&](const std::string& ids, const std::string& says,
                         const std::string& out = "/tmp/fathom-never") {
    const Outcome o = fathom({"logits", model, "--ids", write("ids.json", ids), "--out", out});
    EXPECT_EQ(o.code, 1) << says;
    EXPECT_THAT(o.err, HasSubstr(says));
  };
  fails("[0, 128]", "token id 128 is outside the vocabulary of 128 ids");
  fails("[0, 129280]", "token id 129280");
  fails("[-1]", "element 0 is -1");
  fails("[1.5]", "element 0 is 1.5");
  fails("[99999999999]", "99999999999");
  fails("{}", "JSON array");
  fails("[", "not valid JSON");
  fails("[]", "no token ids");
  fails("[1]", "/no/such/folder", "/no/such/folder/out.safetensors");
  EXPECT_THAT(fathom({"logits", "/no/such/model", "--ids", write("ids.json", "[1]"), "--out", "x"}).err,
              HasSubstr("/no/such/model"));
  EXPECT_EQ(fathom({"logits", model, "--ids", "x", "--out", "x", "--numerics", "double"}).code, 2);
}

// A held-out document as the official code scores it; the loss stands beside the text.
TEST_F(Cli, EvalScoresAHeldOutDocumentAsTheOfficialCodeDoes) {
  std::ifstream file(kRoot + "/models/fathom-tiny/heldout.jsonl");
  std::string line;
  for (int i = 0; i <= 12; ++i) std::getline(file, line);
  const Json document = Json::parse(line);
  const std::string one = write("one.jsonl", line + "\n\n");
  const auto score = [&](const std::string& numerics) {
    const Outcome o = fathom({"eval", "--text", one, "--numerics", numerics, "--json"});
    EXPECT_EQ(o.code, 0) << o.err;
    return Json::parse(o.out);
  };
  const Json exact = score("float");
  EXPECT_NEAR(exact["loss_nats"].get<double>(), document["nll_f32"].get<double>(), 0.02);
  EXPECT_EQ(exact["tokens"], document["tokens"]);
  EXPECT_EQ(exact["bytes"], document["text"].get<std::string>().size());
  // Quantised: a value on a rounding border may fall to the other side and live on in the caches.
  EXPECT_NEAR(score("official")["loss_nats"].get<double>() / document["nll_q32"].get<double>(), 1.0, 0.005);
}

TEST_F(Cli, EvalOfPlainTextInWindowsAndItsErrors) {
  const std::string text =
      write("text.txt", "Once upon a time there was a king who had three daughters, and the youngest was the fairest.");
  const Outcome o = fathom({"eval", "--text", text, "--window", "16"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("bits per byte"));
  EXPECT_THAT(o.out, HasSubstr("bytes           92"));
  const auto fails = [&](const std::string& path, const std::string& says) {
    const Outcome bad = fathom({"eval", "--text", path});
    EXPECT_EQ(bad.code, 1) << says;
    EXPECT_THAT(bad.err, HasSubstr(says));
  };
  fails("/no/such/text", "/no/such/text");
  fails(write("empty.txt", ""), "no text to score");
  fails(write("bad.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n"), "line 2");
  fails(write("worse.jsonl", "{"), "line 1");
}

TEST_F(Cli, BenchMeasuresAndPlots) {
  const std::string plot = (dir_ / "plot.svg").string();
  const Outcome o = fathom({"bench", kRoot + "/tests/data/models/micro-random", "--prefill", "8", "--context", "1,300",
                            "--batch", "1,2", "--steps", "2", "--operations", "--json", "--svg", plot});
  ASSERT_EQ(o.code, 0) << o.err;
  const Json j = Json::parse(o.out);
  ASSERT_EQ(j["rows"].size(), 5U);
  for (const Json& row : j["rows"]) EXPECT_GT(row["tokens_per_second"].get<double>(), 0);
  EXPECT_GT(j["rows"][1]["bytes_per_step"].get<double>(), 100'000);
  EXPECT_GT(j["bandwidth"].get<double>(), 0);
  EXPECT_GT(j["fma_peak"].get<double>(), 1e8);
  const Json& prompt = j["rows"][0];
  EXPECT_GT(prompt["of_fma_peak"].get<double>(), 0);
  double flops = 0;  // the whole prompt is one step: its operations' products are the prompt's
  for (const Json& op : prompt["operations"]) {
    flops += op.value("of_fma_peak", 0.0) * op["seconds"].get<double>() * j["fma_peak"].get<double>();
  }
  EXPECT_NEAR(flops / (prompt["flops_per_second"].get<double>() * prompt["seconds"].get<double>()), 1, 1e-9);
  EXPECT_THAT(read(plot), AllOf(HasSubstr("batch 2"), HasSubstr("f32 FMA peak")));
  EXPECT_EQ(fathom({"bench", "--batch", "0"}).code, 2);
  EXPECT_EQ(fathom({"bench", "--serve", "--rates", "0"}).code, 2);
  EXPECT_EQ(fathom({"bench", "x", "--synthetic", "v4-flash"}).code, 2);
  EXPECT_THAT(fathom({"bench", "--synthetic", "v5"}).err, HasSubstr("v4-flash"));
}

TEST_F(Cli, BenchServesMadeUpClients) {
  const std::string plot = (dir_ / "load.svg").string();
  const Outcome o = fathom({"bench",   kRoot + "/tests/data/models/micro-random",
                            "--serve", "--rates",
                            "100,200", "--requests",
                            "6",       "--seconds",
                            "0",       "--concurrent",
                            "1,3",     "--history",
                            "200",     "--slots",
                            "3",       "--cache",
                            "0.05",    "--json",
                            "--svg",   plot});
  ASSERT_EQ(o.code, 0) << o.err;
  const auto j = nlohmann::json::parse(o.out);
  ASSERT_EQ(j["load"].size(), 2U);
  ASSERT_EQ(j["concurrent"].size(), 2U);
  for (const auto* rows : {&j["load"], &j["concurrent"]}) {
    for (const auto& row : *rows) {
      EXPECT_EQ(row["finished"], 6);
      EXPECT_GT(row["answer_tokens_per_second"], 0);
      EXPECT_LE(row["first_token_ms"]["p50"], row["first_token_ms"]["p99"]);
      EXPECT_LE(row["first_token_ms"]["p99"], row["answer_ms"]["p99"]);
    }
  }
  const auto& turn = j["second_turn"][0];
  EXPECT_EQ(turn["prompt_tokens"], 200 + 32);
  EXPECT_EQ(turn["reused_tokens"], 199) << "all but the last token chosen, which had not been run";
  EXPECT_EQ(turn["restart_reused_tokens"], 200 + 32 + 16 - 1);
  EXPECT_NE(read(plot).find("<svg"), std::string::npos);
  // It has an end, however many could be asked.
  const Outcome short_one = fathom({"bench", kRoot + "/tests/data/models/micro-random", "--serve", "--rates", "20",
                                    "--requests", "1000000", "--seconds", "0.3", "--json"});
  ASSERT_EQ(short_one.code, 0) << short_one.err;
  const int finished = nlohmann::json::parse(short_one.out)["load"][0]["finished"];
  EXPECT_GT(finished, 0);
  EXPECT_LT(finished, 100);
  EXPECT_NE(fathom({"bench", kRoot + "/tests/data/models/micro-random", "--concurrent", "2", "--requests", "2"})
                .out.find("between tokens"),
            std::string::npos);
}

}  // namespace
}  // namespace fathom::cli
