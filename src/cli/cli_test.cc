// The program as a user meets it: run, fed, and its output, errors and exit codes read.
#include "cli/cli_fixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

namespace fathom::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST_F(Cli, VersionAndHelp) {
  EXPECT_THAT(fathom({"--version"}).out, StartsWith("fathom 0."));
  const Outcome help = fathom({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("tokenize"));
  for (const char* command : {"tokenize", "detokenize", "parse", "render"}) {
    const Outcome o = fathom({command, "--help"});
    EXPECT_EQ(o.code, 0);
    EXPECT_THAT(o.out, HasSubstr("Examples:"));
  }
}

TEST_F(Cli, WrongUsageIsCodeTwoAndOneLine) {
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{}, {"nonsense"}, {"tokenize", "--nonsense"}, {"tokenize", "a", "--tokenizer", "b"}}) {
    const Outcome o = fathom(args);
    EXPECT_EQ(o.code, 2) << o.err;
    EXPECT_THAT(o.err, StartsWith("fathom: "));
    EXPECT_EQ(o.out, "");
  }
}

TEST_F(Cli, TokenizeAndBack) {
  EXPECT_EQ(fathom({"tokenize", "-t", "Hello"}).out, "[42, 406, 81]\n");
  EXPECT_EQ(fathom({"tokenize"}, "Hello").out, "[42, 406, 81]\n");
  EXPECT_EQ(fathom({"tokenize", "-i", write("text", "Hello")}).out, "[42, 406, 81]\n");
  EXPECT_EQ(fathom({"tokenize", "-t", ""}).out, "[]\n");
  const std::string text = "Tabs\t and \u20AC, two\n\nlines \U0001F600 ";
  EXPECT_EQ(fathom({"detokenize"}, fathom({"tokenize"}, text).out).out, text);
  EXPECT_EQ(fathom({"detokenize"}, "42, 406\n81").out, "Hello");
  EXPECT_EQ(fathom({"detokenize", "--json"}, "[42, 406, 81]").out, "\"Hello\"\n");
  EXPECT_EQ(fathom({"detokenize"}, " \n").out, "");
}

TEST_F(Cli, ControlTokensOnlyOnRequest) {
  EXPECT_EQ(fathom({"tokenize", "--special", "-t", "<think>"}).out, "[3689]\n");
  EXPECT_THAT(fathom({"tokenize", "-t", "<think>"}).out, testing::Not(HasSubstr("3689")));
  EXPECT_EQ(fathom({"tokenize", "--special", "--json", "-t", "<think>a"}).out,
            "{\"count\": 2, \"ids\": [3689, 67], \"tokens\": [\"<think>\", \"a\"]}\n");
}

TEST_F(Cli, LinesKeepTheirPlacesWhenOneIsWrong) {
  const Outcome o = fathom({"tokenize", "--lines"}, "\"Hello\"\nnonsense\n\"\\ud800\"\n\n\"a\"");
  EXPECT_EQ(o.code, 1);
  std::vector<std::string> lines;
  std::istringstream stream(o.out);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 5U) << o.out;
  EXPECT_EQ(lines[0], "[42, 406, 81]");
  for (const int i : {1, 2, 3}) EXPECT_THAT(lines[static_cast<std::size_t>(i)], StartsWith("{\"error\": \""));
  EXPECT_EQ(lines[4], "[67]");
  EXPECT_THAT(o.err, HasSubstr("3 of 5 lines"));

  const Outcome ids = fathom({"detokenize", "--lines"}, "[42, 406, 81]\n[1e3]\n[999999]\n[-1]\n[99999999999]\n[]\n");
  EXPECT_EQ(ids.code, 1);
  EXPECT_THAT(ids.out, StartsWith("\"Hello\"\n{\"error\""));
  EXPECT_THAT(ids.out, HasSubstr("token id 999999 is outside the vocabulary (0 to 3711)"));
  EXPECT_TRUE(ids.out.ends_with("\n\"\"\n")) << ids.out;
}

TEST_F(Cli, ErrorsNameWhatIsWrong) {
  const auto fails = [&](const std::vector<std::string>& args, const std::string& input, const std::string& says) {
    const Outcome o = fathom(args, input);
    EXPECT_EQ(o.code, 1) << says;
    EXPECT_THAT(o.err, StartsWith("fathom: "));
    EXPECT_THAT(o.err, HasSubstr(says));
    EXPECT_EQ(o.out, "");
  };
  fails({"tokenize", "/no/such/model"}, "", "/no/such/model");
  fails({"tokenize", "--tokenizer", dir_.string()}, "", "tokenizer.json");
  fails({"tokenize", "-i", "/no/such/file"}, "", "/no/such/file");
  fails({"tokenize"}, "ab\xFF", "byte 2");
  fails({"detokenize"}, "[4096]", "4096");
  fails({"detokenize"}, "12 x", "\"x\"");
  write("tokenizer.json", "{}");
  fails({"tokenize", "--tokenizer", dir_.string()}, "", "pre_tokenizer");
}

TEST_F(Cli, ModelFromTheEnvironment) {
  ::setenv("FATHOM_MODEL", "/no/such/model", 1);
  EXPECT_THAT(fathom({"tokenize", "-t", "a"}).err, HasSubstr("FATHOM_MODEL"));
  const std::string tiny = std::string(FATHOM_SOURCE_DIR) + "/models/fathom-tiny";
  EXPECT_EQ(fathom({"tokenize", tiny, "-t", "a"}).out, "[67]\n");
  ::setenv("FATHOM_MODEL", tiny.c_str(), 1);
  EXPECT_EQ(fathom({"tokenize", "-t", "a"}).out, "[67]\n");
  ::unsetenv("FATHOM_MODEL");
}

TEST_F(Cli, RenderBothDialects) {
  const std::string raw = R"({"messages": [{"role": "user", "content": "Hi"}], "thinking_mode": "chat"})";
  const std::string prompt =
      "<\uFF5Cbegin\u2581of\u2581sentence\uFF5C><\uFF5CUser\uFF5C>Hi<\uFF5CAssistant\uFF5C></think>";
  EXPECT_EQ(fathom({"render", "--prompt"}, raw).out, prompt);
  EXPECT_EQ(
      fathom({"render"}, raw).out,
      "{\"prompt\": \"" + prompt + "\", \"ids\": [0, 3687, 42, 75, 3688, 3690], \"initial_state\": \"CONTENT\"}\n");
  const std::string api = R"({"api": "chat", "body": {"messages": [{"role": "user", "content": "Hi"}]}})";
  EXPECT_THAT(fathom({"render", "--dialect", "api", "--revision", "0731", "--prompt"}, api).out,
              HasSubstr("Reasoning Effort: Absolute maximum"));
  EXPECT_THAT(fathom({"render", "--dialect", "api", "--prompt"}, api).out,  // what fathom-tiny says: preview
              testing::Not(HasSubstr("Reasoning Effort")));
  const Outcome lines = fathom({"render", "--dialect", "api", "--lines"},
                               api + "\n{\"api\": \"chat\", \"body\": {}}\n{\"api\": \"x\", \"body\": {}}\nnonsense\n");
  EXPECT_EQ(lines.code, 0) << lines.err;
  EXPECT_THAT(lines.out, HasSubstr("\n{\"reject\": {\"status\": 400, \"param\": \"messages\""));
  EXPECT_THAT(lines.out, HasSubstr("\n{\"error\": \"api: expected"));
  EXPECT_THAT(lines.out, HasSubstr("\n{\"error\": \"request: byte 0"));
  EXPECT_EQ(fathom({"render"}, R"({"messages": [], "thinking_mode": "fast"})").code, 1);
  EXPECT_EQ(fathom({"render", "--revision", "1.0"}, raw).code, 2);
}

TEST_F(Cli, ParseTextAndVectors) {
  EXPECT_EQ(
      fathom({"parse"}, "Hm.</think>Paris.").out,
      "{\"reasoning\": \"Hm.\", \"content\": \"Paris.\", \"tool_calls\": [], \"finish_reason\": \"stop\", \"events\": "
      "[{\"type\": \"reasoning\", \"text\": \"Hm.\"}, {\"type\": \"content\", \"text\": \"Paris.\"}]}\n");
  EXPECT_THAT(
      fathom({"parse", "--no-thinking", "--stop", "ri"}, "Paris.").out,
      HasSubstr("\"content\": \"Pa\", \"tool_calls\": [], \"finish_reason\": \"stop\", \"matched_stop\": \"ri\""));
  EXPECT_THAT(fathom({"parse", "--cut"}, "Hm").out, HasSubstr("\"finish_reason\": \"length\""));
  const std::string call =
      "</think><\uFF5CDSML\uFF5Cinvoke name=\"f\"><\uFF5CDSML\uFF5Cparameter name=\"n\">1</\uFF5CDSML\uFF5Cparameter>"
      "</\uFF5CDSML\uFF5Cinvoke>";
  EXPECT_THAT(fathom({"parse"}, call).out,
              HasSubstr("\"tool_calls\": [{\"name\": \"f\", \"arguments\": \"{\\\"n\\\": \\\"1\\\"}\"}]"));
  const std::string tools = write(
      "tools.json",
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}}}])");
  EXPECT_THAT(fathom({"parse", "--tools", tools}, call).out, HasSubstr("\"arguments\": \"{\\\"n\\\": 1}\""));
  EXPECT_THAT(fathom({"parse", "--no-tools"}, call).out, HasSubstr("\"tool_calls\": []"));
  EXPECT_EQ(fathom({"parse"}, "\xFF").code, 1);
  const Outcome lines = fathom(
      {"parse", "--lines"},
      R"({"thinking": false, "tools": null, "finish": "eos", "segments": [{"text": "a<think>"}, {"special": "<|EOT|>"}, {"raw": "b"}]})"
      "\n{\"thinking\": 3}\nnonsense\n");
  EXPECT_EQ(lines.code, 1);
  EXPECT_THAT(lines.out, StartsWith("{\"reasoning\": \"\", \"content\": \"a<think>\""));
  EXPECT_THAT(lines.err, HasSubstr("2 of 3 lines"));
}

TEST_F(Cli, AFullDiskIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  out_path_ = "/dev/full";
  const Outcome o = fathom({"tokenize", "-t", "Hello"});
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.err, HasSubstr("standard output"));
}

}  // namespace
}  // namespace fathom::cli
