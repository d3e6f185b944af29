#include "grammar/trial_process.h"

#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "grammar/test_support.h"

namespace fathom::grammar {
namespace {

using testing::HasSubstr;

// Takes minutes to compile and says nothing of it beforehand: hundreds of places that may each be left out.
Rules endless() {
  std::string regex;
  for (int i = 0; i < 1000; ++i) regex += "([a-z]?[a-y]?)?";
  return {.content = *regex_content(regex)};
}

std::unique_ptr<TrialProcess> start(TrialLimits limits = {}) {
  auto trial = TrialProcess::start(tiny_format(), limits);
  EXPECT_TRUE(trial) << (trial ? "" : trial.error().what);
  return std::move(*trial);
}

TEST(RulesName, HoldsAllOfThem) {
  Rules rules{.content = json_content(R"({"type": "object", "properties": {"a\u0000:": {"type": "string"}}})")};
  rules.tools = {{"f", false, {}}, strict_tool("g", R"({"type": "object", "properties": {"x": {"type": "integer"}}})")};
  rules.calls = Rules::Calls::kOrContent;
  rules.one_call = true;
  const auto again = rules_of(key_of(rules));
  ASSERT_TRUE(again) << again.error().what;
  EXPECT_EQ(again->content, rules.content);
  EXPECT_EQ(key_of(*again), key_of(rules));
  EXPECT_EQ(again->tools.at(1).name, "g");
  for (const char* none : {"", "00", "0005:abc", "000x", "0003:abc9"}) EXPECT_FALSE(rules_of(none)) << none;
}

TEST(Trial, SaysWhatTheCompilerSays) {
  const auto trial = start();
  EXPECT_TRUE(trial->run({.content = *regex_content("[a-z]+")}));
  const Rules bad{.content = *regex_content("(?=a)b")};
  const auto no = trial->run(bad);
  ASSERT_FALSE(no);
  EXPECT_EQ(no.error().code, Code::kInvalid);
  EXPECT_EQ(no.error().what, tiny_compiler().compile(bad).error().what);
  EXPECT_TRUE(trial->run({.content = json_content(R"({"type": "object"})")})) << "and goes on";
}

TEST(Trial, EndsWhatTakesTooLong) {
  Compiler compiler(tiny_format(), tiny_vocab(), {.trial = start({.cpu_seconds = 1})});
  const auto program = compiler.compile(endless());
  ASSERT_FALSE(program);
  EXPECT_EQ(program.error().code, Code::kInvalid);
  EXPECT_THAT(program.error().what, HasSubstr("takes more than 1 s"));
  EXPECT_TRUE(compiler.compile({.content = *regex_content("a")})) << "the next one has its turn";
  EXPECT_EQ(compiler.stats().refused, 1U);
}

TEST(Trial, AStopDoesNotWaitForIt) {
  const auto trial = start({.cpu_seconds = 1000});
  std::thread stopper([&trial] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    trial->interrupt();
  });
  const auto no = trial->run(endless());  // which takes about a minute
  stopper.join();
  ASSERT_FALSE(no);
  EXPECT_EQ(no.error().code, Code::kUnavailable);
  EXPECT_FALSE(trial->run({.content = *regex_content("a")}));
}

}  // namespace
}  // namespace fathom::grammar
