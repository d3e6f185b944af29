// inspect and synthesize as a user meets them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/units.h"

namespace fathom::cli {
namespace {

using testing::HasSubstr;

struct Outcome {
  int code = -1;
  std::string out;  // and what went to standard error
};

class Inspect : public testing::Test {
 protected:
  Inspect() {
    std::string name = (std::filesystem::temp_directory_path() / "fathom-inspect-XXXXXX").string();
    dir_ = ::mkdtemp(name.data());
  }
  ~Inspect() override { std::filesystem::remove_all(dir_); }

  // Arguments hold nothing that a shell would touch.
  static Outcome fathom(const std::string& args) {
    Outcome o;
    std::FILE* pipe =
        ::popen((std::string("unset FATHOM_MODEL; " FATHOM_PROGRAM " ") + args + " 2>&1 </dev/null").c_str(), "r");
    if (pipe == nullptr) return o;
    std::array<char, 4096> buffer{};
    for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
      o.out.append(buffer.data(), n);
    const int status = ::pclose(pipe);
    o.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return o;
  }

  std::filesystem::path dir_;
};

TEST_F(Inspect, TheModelThatComesWithTheSource) {
  const Outcome o = fathom("inspect");
  EXPECT_EQ(o.code, 0) << o.out;
  EXPECT_THAT(o.out, HasSubstr("1 file, 932 tensors, 15.8 MiB"));
  EXPECT_THAT(o.out, HasSubstr("draft        MTP, 1 stage"));
  EXPECT_THAT(o.out, HasSubstr("name the bandwidth with --bandwidth"));
}

TEST_F(Inspect, FullSizeFromHeaders) {
  const std::string folder = (dir_ / "flash").string();
  ASSERT_EQ(fathom("synthesize v4-flash " + folder + " --sparse").code, 0);
  const Outcome o = fathom("inspect " + folder + " --json --device h200x2 --concurrency 4 --context 131072");
  ASSERT_EQ(o.code, 0) << o.out;
  const auto j = nlohmann::json::parse(o.out);
  EXPECT_EQ(j["geometry"], "v4-flash");
  EXPECT_EQ(j["files"], 46);
  EXPECT_EQ(j["tensors"], 69187);
  EXPECT_EQ(j["bytes"], 159'609'485'896);
  EXPECT_EQ(j["n_problems"], 0);
  EXPECT_EQ(j["config"]["draft"], "MTP");
  EXPECT_EQ(j["plan"]["devices"], 2);
  EXPECT_EQ(j["plan"]["fits"], true);
  EXPECT_EQ(j["plan"]["sequence_bytes"], 4 * j["plan"]["one_sequence_bytes"].get<std::int64_t>());
  // The same without any file, but for where it came from.
  auto without = nlohmann::json::parse(
      fathom("inspect --synthetic v4-flash --json --device h200x2 --concurrency 4 --context 131072").out);
  for (const char* key : {"tensors", "bytes", "parameters", "groups", "draft_groups", "plan", "config", "formats"}) {
    EXPECT_EQ(j[key], without[key]) << key;
  }
}

TEST_F(Inspect, SynthesizedWeightsAreSound) {
  const std::string folder = (dir_ / "tiny").string();
  // The smallest there is of a published geometry: its vocabulary alone makes half a gigabyte, so only holes are
  // written.
  const Outcome made = fathom("synthesize v4-flash " + folder + " --layers 1 --experts 6 --sparse");
  ASSERT_EQ(made.code, 0) << made.out;
  EXPECT_THAT(made.out, HasSubstr("1 layers, 6 experts"));
  const Outcome again = fathom("synthesize v4-flash " + folder + " --layers 1");
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.out, HasSubstr("expected an empty folder"));
}

TEST_F(Inspect, ListsEveryProblemAndFails) {
  const std::filesystem::path folder = dir_ / "broken";
  std::filesystem::copy(std::filesystem::path(FATHOM_SOURCE_DIR) / "tests/data/models/micro-random", folder);
  std::filesystem::resize_file(folder / "model.safetensors", 100'000);
  const Outcome text = fathom("inspect " + folder.string());
  EXPECT_EQ(text.code, 1);
  EXPECT_THAT(text.out, HasSubstr("model.safetensors: truncated: tensor"));
  const Outcome nothing = fathom("inspect " + (dir_ / "nothing").string());
  EXPECT_EQ(nothing.code, 1);
  EXPECT_THAT(nothing.out, HasSubstr("no such model folder"));
}

TEST_F(Inspect, ReadsValuesWhenAsked) {
  const std::filesystem::path folder = dir_ / "nan";
  std::filesystem::copy(std::filesystem::path(FATHOM_SOURCE_DIR) / "tests/data/models/micro-random", folder);
  EXPECT_EQ(fathom("inspect --values " + folder.string()).code, 0);
  std::FILE* f = std::fopen((folder / "model.safetensors").c_str(), "r+b");
  ASSERT_NE(f, nullptr);
  std::fseek(f, -2, SEEK_END);  // the end of norm.weight
  std::fwrite("\xc0\x7f", 1, 2, f);
  std::fclose(f);
  EXPECT_EQ(fathom("inspect " + folder.string()).code, 0);
  const Outcome o = fathom("inspect --values " + folder.string());
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.out, HasSubstr("norm.weight: found 1 such elements, the first at 127, expected finite values"));
}

TEST_F(Inspect, SaysWhatItCannotPlanFor) {
  const Outcome device = fathom("inspect --device tpu");
  EXPECT_EQ(device.code, 1);
  EXPECT_THAT(device.out, HasSubstr("device tpu: expected one of cpu"));
  EXPECT_THAT(fathom("inspect --numerics exact").out, HasSubstr("expected float, official or official-bf16"));
  EXPECT_THAT(fathom("inspect --synthetic v5").out, HasSubstr("expected one of v4-flash, v4-pro"));
  EXPECT_EQ(fathom("inspect --layers 3").code, 2);
  EXPECT_EQ(fathom("inspect --context 0").code, 2);
  EXPECT_THAT(fathom("inspect --synthetic v4-flash --layers 50").out,
              HasSubstr("50 layers asked for, expected 1 to 43"));
}

TEST(Units, Read) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(69187), "69,187");
  EXPECT_EQ(with_commas(1000000), "1,000,000");
  EXPECT_EQ(binary_bytes(1023), "1023 B");
  EXPECT_EQ(binary_bytes(1536), "1.5 KiB");
  EXPECT_EQ(binary_bytes(159'609'485'896), "148.65 GiB");
  EXPECT_EQ(decimal_count(284'332'230'231), "284.3 B");
  EXPECT_EQ(decimal_count(12), "12");
}

TEST_F(Inspect, KernelsAndWhatTurnsThemOff) {
  const Outcome all = fathom("inspect --kernels");
  EXPECT_EQ(all.code, 0) << all.out;
  EXPECT_THAT(all.out, HasSubstr("operation"));
  EXPECT_THAT(all.out, HasSubstr("linear.fp8.list8"));
  EXPECT_THAT(all.out, HasSubstr("with --disable-kernel NAME (or all): early-launch"));
  const auto json = nlohmann::json::parse(fathom("inspect --kernels --json --disable-kernel early-launch").out);
  const auto& first = json.at("kernels").at(0);
  EXPECT_EQ(first.at("operation"), "every");
  EXPECT_EQ(first.at("most_rows"), nullptr);
  EXPECT_EQ(first.at("chosen").at("9.0"), "ordered-launch");
  EXPECT_EQ(json.at("leaves").at(0).at("off"), true);
  const auto on = nlohmann::json::parse(fathom("inspect --kernels --json").out);
  EXPECT_EQ(on.at("kernels").at(0).at("chosen").at("9.0"), "early-launch");
  EXPECT_EQ(on.at("kernels").at(0).at("chosen").at("8.0"), "ordered-launch");

  const Outcome wrong = fathom("inspect --kernels --disable-kernel linear.fp8.tile64");
  EXPECT_NE(wrong.code, 0);
  EXPECT_THAT(wrong.out, HasSubstr("is a portable kernel"));
  // Whatever computes, and from the environment too.
  for (const char* flag : {"run --backend cpu -p x -n 1 --disable-kernel nonsense",
                           "run --backend ref -p x -n 1 --disable-kernel nonsense"}) {
    const Outcome o = fathom(flag);
    EXPECT_NE(o.code, 0) << flag;
    EXPECT_THAT(o.out, HasSubstr("nonsense is no kernel")) << flag;
  }
  ::setenv("FATHOM_DISABLE_KERNELS", "early-launch,other", 1);
  const Outcome o = fathom("run --backend cpu -p x -n 1");
  ::unsetenv("FATHOM_DISABLE_KERNELS");
  EXPECT_NE(o.code, 0);
  EXPECT_THAT(o.out, HasSubstr("other is no kernel"));
}

}  // namespace
}  // namespace fathom::cli
