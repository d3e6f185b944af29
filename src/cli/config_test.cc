// fathom serve --config and --print-config.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "cli/cli_fixture.h"

namespace fathom::cli {
namespace {

using testing::HasSubstr;

class Config : public Cli {
 protected:
  // The options in effect with this file.
  Outcome with(const std::string& text, std::vector<std::string> more = {}) {
    path_ = write("serve.toml", text);
    std::vector<std::string> args = {"serve", "--config", path_, "--print-config"};
    args.insert(args.end(), more.begin(), more.end());
    return fathom(args);
  }
  std::string path_;
};

TEST_F(Config, GivesFlagsTheirValues) {
  const Outcome o = with(
      "# a comment\n[serve]\nport = 9000\nhost = \"0.0.0.0\"  # all\nmodel = '/models/v4'\ncache=2.5\nno-thinking = "
      "true\n"
      "quiet = false\r\n\nnumerics = \"float\"\n");
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* line : {"\nport = 9000\n", "\nhost = \"0.0.0.0\"\n", "\nmodel = \"/models/v4\"\n", "\ncache = 2.5\n",
                           "\nno-thinking = true\n", "\nquiet = false\n", "\nnumerics = \"float\"\n", "\nslots = 16\n"})
    EXPECT_THAT(o.out, HasSubstr(line));
}

TEST_F(Config, ACacheLargerThanTheMachineIsRefused) {
  const Outcome o =
      fathom({"serve", std::string(FATHOM_SOURCE_DIR) + "/models/fathom-tiny", "--port", "0", "--cache", "4096"});
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.err, HasSubstr("--cache is 4096 GiB, the machine has "));
}

TEST_F(Config, TheCommandLineWins) {
  const Outcome o = with("port = 9000\nslots = 3\n", {"--port", "1234", "some/model"});
  EXPECT_THAT(o.out, HasSubstr("\nport = 1234\n"));
  EXPECT_THAT(o.out, HasSubstr("\nslots = 3\n"));
  EXPECT_THAT(o.out, HasSubstr("\nmodel = \"some/model\"\n"));
}

TEST_F(Config, WhatIsPrintedIsAConfigFile) {
  const Outcome first = with("port = 9000\nserved-model-name = \"a \\\"name\\\"\"\nstrict-model-names = true\n");
  ASSERT_EQ(first.code, 0) << first.err;
  const Outcome second = with(first.out);
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.out, first.out);
}

TEST_F(Config, ErrorsNameFileLineAndKey) {
  const auto error = [&](const std::string& text) {
    const Outcome o = with(text);
    EXPECT_EQ(o.code, 1) << text;
    EXPECT_EQ(o.out, "");
    EXPECT_THAT(o.err, HasSubstr(path_ + ":2: ")) << text;
    return o.err;
  };
  EXPECT_THAT(error("\nprot = 1\n"), HasSubstr("unknown key prot"));
  EXPECT_THAT(error("\nqueue_seconds = 1\n"), HasSubstr("did you mean queue-seconds?"));
  EXPECT_THAT(error("\nconfig = \"other\"\n"), HasSubstr("unknown key config"));
  EXPECT_THAT(error("\nhelp = true\n"), HasSubstr("unknown key help"));
  EXPECT_THAT(error("\nport = many\n"), HasSubstr("port: "));
  EXPECT_THAT(error("\nport = 70000\n"), HasSubstr("port: "));
  EXPECT_THAT(error("\nslots = 0\n"), HasSubstr("slots: "));
  EXPECT_THAT(error("\nnumerics = \"f64\"\n"), HasSubstr("numerics: "));
  EXPECT_THAT(error("\nquiet = maybe\n"), HasSubstr("quiet: expected true or false"));
  EXPECT_THAT(error("port = 1\nport = 2\n"), HasSubstr("port was given in line 1 already"));
  EXPECT_THAT(error("\nport = [1, 2]\n"), HasSubstr("port: "));
  EXPECT_THAT(error("\nport\n"), HasSubstr("expected KEY = VALUE"));
  EXPECT_THAT(error("port = 1\n[serve]\n"), HasSubstr("table [serve]"));
  EXPECT_THAT(error("\n[run]\n"), HasSubstr("table [run]"));
}

TEST_F(Config, TheManualKnowsEveryOption) {
  const std::string manual = read(std::string(FATHOM_SOURCE_DIR) + "/docs/serving.md");
  std::istringstream lines(with("").out);
  int keys = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto end = line.find(" =");
    if (end == std::string::npos) continue;
    const std::string key = line.substr(line.rfind("# ", 0) == 0 ? 2 : 0, end - (line.rfind("# ", 0) == 0 ? 2 : 0));
    EXPECT_THAT(manual, HasSubstr(key == "model" ? "`MODEL`" : "`--" + key + "`"));
    ++keys;
  }
  EXPECT_GT(keys, 15);
}

TEST_F(Config, TheExampleIsGood) {
  const Outcome o =
      fathom({"serve", "--config", std::string(FATHOM_SOURCE_DIR) + "/packaging/serve.toml", "--print-config"});
  EXPECT_EQ(o.code, 0) << o.err;
}

TEST_F(Config, AFileThatIsNotThereOrNoneIsAnError) {
  for (const std::string& path : {std::string("/nowhere/serve.toml"), dir_.string()}) {
    const Outcome o = fathom({"serve", "--config", path, "--print-config"});
    EXPECT_EQ(o.code, 1) << path;
    EXPECT_THAT(o.err, HasSubstr(path));
  }
}

}  // namespace
}  // namespace fathom::cli
