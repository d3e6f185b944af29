#include "text/turn_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "text/render.h"
#include "text/test_support.h"

namespace fathom::text {
namespace {

using Ids = std::vector<std::int32_t>;

const ChatFormat& tiny_format() {
  static const auto f = ChatFormat::load(std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fathom-tiny");
  if (!f) ADD_FAILURE() << f.error().what;
  return f.value();
}
const Tokenizer& tokenizer() { return tiny_format().tokenizer(); }

Message user(const std::string& content) {
  Message m;
  m.content = content;
  return m;
}

// Ids for `text` that no encoder would choose: one token per byte.
Ids bytewise(std::string_view text) {
  Ids ids;
  for (const char c : text) {
    const Ids one = tokenizer().encode({&c, 1}, Mode::kPlain);
    ids.insert(ids.end(), one.begin(), one.end());
  }
  return ids;
}

Ids with_marks(const std::string& raw) {
  const std::string_view marker = "\uFF5CDSML\uFF5C";
  Ids ids;
  std::string_view rest = raw;
  while (!rest.empty()) {
    const std::size_t at = std::min(rest.find(marker), rest.size());
    const Ids plain = bytewise(rest.substr(0, at));
    ids.insert(ids.end(), plain.begin(), plain.end());
    rest.remove_prefix(at);
    if (rest.empty()) break;
    ids.push_back(tiny_format().control().dsml);
    rest.remove_prefix(marker.size());
  }
  return ids;
}

Ids prompt_ids(const std::vector<Message>& messages, const TurnMemory* memory, bool drop = false) {
  const auto prompt = render_chat(tiny_format(), messages, {.thinking = true, .drop_thinking = drop, .memory = memory});
  return encode_prompt(prompt.value(), tokenizer()).ids;
}

Prompt prompt_of(const std::vector<Message>& messages) {
  return render_chat(tiny_format(), messages, {.thinking = true, .drop_thinking = false}).value();
}

bool contains(const Ids& all, const Ids& part) {
  return std::search(all.begin(), all.end(), part.begin(), part.end()) != all.end();
}

RecordedTurn plain_turn() {
  RecordedTurn turn;
  turn.content = "the answer";
  turn.reasoning = "because";
  turn.thinking = true;
  turn.ids = bytewise("because");
  turn.ids.push_back(tiny_format().control().think_close);
  for (const auto id : bytewise("the answer")) turn.ids.push_back(id);
  turn.ids.push_back(tiny_format().control().eos);
  return turn;
}

Message given_back(const RecordedTurn& turn) {
  Message m;
  m.role = Role::kAssistant;
  m.content = turn.content;
  m.reasoning = turn.reasoning;
  m.tool_calls = turn.calls;
  return m;
}

TEST(TurnMemory, AnAnswerSentBackIsTheSampledIds) {
  TurnMemory memory(1 << 20);
  const RecordedTurn turn = plain_turn();
  const std::vector<Message> asked = {user("q")};
  memory.record(tiny_format(), prompt_of(asked), turn);
  std::vector<Message> history = {user("q"), given_back(turn), user("more")};
  EXPECT_FALSE(contains(prompt_ids(history, nullptr), turn.ids));
  Ids prefix = prompt_ids(asked, nullptr);
  prefix.insert(prefix.end(), turn.ids.begin(), turn.ids.end());
  const Ids spliced = prompt_ids(history, &memory);
  EXPECT_TRUE(std::equal(prefix.begin(), prefix.end(), spliced.begin()));
  // Reasoning that the client left out comes back; reasoning that it changed is the client's.
  history[1].reasoning.clear();
  EXPECT_EQ(prompt_ids(history, &memory), spliced);
  history[1].reasoning = "other";
  EXPECT_FALSE(contains(prompt_ids(history, &memory), turn.ids));
  history[1] = given_back(turn);
  history[1].content += " ";
  EXPECT_FALSE(contains(prompt_ids(history, &memory), turn.ids));
  // Another conversation with the same answer.
  history = {user("other q"), given_back(turn), user("more")};
  EXPECT_FALSE(contains(prompt_ids(history, &memory), turn.ids));
  // Where earlier reasoning is forgotten the turn cannot stand.
  history = {user("q"), given_back(turn), user("more")};
  EXPECT_FALSE(contains(prompt_ids(history, &memory, true), turn.ids));
}

TEST(TurnMemory, ASecondTurnBuildsOnTheFirst) {
  TurnMemory memory(1 << 20);
  const RecordedTurn first = plain_turn();
  memory.record(tiny_format(), prompt_of({user("q")}), first);
  std::vector<Message> history = {user("q"), given_back(first), user("more")};
  const Prompt second_prompt =
      render_chat(tiny_format(), history, {.thinking = true, .drop_thinking = false, .memory = &memory}).value();
  RecordedTurn second = plain_turn();
  second.reasoning = "indeed";
  second.ids = bytewise("indeed");
  second.ids.push_back(tiny_format().control().think_close);
  for (const auto id : bytewise(second.content)) second.ids.push_back(id);
  second.ids.push_back(tiny_format().control().eos);
  memory.record(tiny_format(), second_prompt, second);
  history.push_back(given_back(second));
  history.push_back(user("and"));
  const Ids ids = prompt_ids(history, &memory);
  EXPECT_TRUE(contains(ids, first.ids));
  EXPECT_TRUE(contains(ids, second.ids));
}

RecordedTurn call_turn(const std::string& block) {
  RecordedTurn turn;
  turn.reasoning = "r";
  turn.calls = {{"call_a", "run", "{\"n\":1}"}};
  turn.thinking = true;
  turn.ids = bytewise("r");
  turn.ids.push_back(tiny_format().control().think_close);
  for (const auto id : with_marks(block)) turn.ids.push_back(id);
  return turn;
}

const std::string kBlock =
    "\n\n<\uFF5CDSML\uFF5Ctool_calls>\n<\uFF5CDSML\uFF5Cinvoke name=\"run\">\n<\uFF5CDSML\uFF5Cparameter name=\"n\" "
    "string=\"false\">1</\uFF5CDSML\uFF5Cparameter>\n</\uFF5CDSML\uFF5Cinvoke>\n</\uFF5CDSML\uFF5Ctool_calls>";

TEST(TurnMemory, CallsAreFoundByTheirIdsAndCompared) {
  TurnMemory memory(1 << 20);
  const RecordedTurn turn = call_turn(kBlock);
  memory.record(tiny_format(), prompt_of({user("q")}), turn);
  Message result;
  result.role = Role::kTool;
  result.tool_call_id = "call_a";
  result.content = "ok";
  std::vector<Message> history = {user("any other beginning"), given_back(turn), result};
  const Ids spliced = prompt_ids(history, &memory);
  EXPECT_TRUE(contains(spliced, turn.ids));
  Ids closed = turn.ids;  // the block's closing tag ended it: EOS is the format's
  closed.push_back(tiny_format().control().eos);
  EXPECT_TRUE(contains(spliced, closed));
  history[1].tool_calls[0].arguments = "{ \"n\" : 1 }";  // the same JSON
  history[1].reasoning.clear();
  EXPECT_EQ(prompt_ids(history, &memory), spliced);
  for (const ToolCall& changed : {ToolCall{"call_a", "run", "{\"n\":2}"}, ToolCall{"call_a", "walk", "{\"n\":1}"},
                                  ToolCall{"call_b", "run", "{\"n\":1}"}}) {
    history[1].tool_calls[0] = changed;
    EXPECT_FALSE(contains(prompt_ids(history, &memory), turn.ids));
  }
}

// A slip that was repaired is rendered well-formed, so that the model does not learn it; its reasoning still comes
// back.
TEST(TurnMemory, ARepairedTurnIsRenderedCanonically) {
  TurnMemory memory(1 << 20);
  const RecordedTurn turn = call_turn(kBlock.substr(1));  // one newline before the block
  memory.record(tiny_format(), prompt_of({user("q")}), turn);
  std::vector<Message> history = {user("q"), given_back(turn), user("more")};
  const Ids canonical = prompt_ids(history, nullptr);
  history[1].reasoning.clear();
  EXPECT_EQ(prompt_ids(history, &memory), canonical);
}

TEST(TurnMemory, ForgetsTheLeastRecentlyUsed) {
  TurnMemory memory(3 * 600);
  const auto record = [&](const std::string& id) {
    RecordedTurn turn = call_turn(kBlock);
    turn.calls[0].id = id;
    turn.ids.resize(50);
    memory.record(tiny_format(), prompt_of({user(id)}), turn);
    return given_back(turn);
  };
  const Prompt before = prompt_of({user("x")});
  const Message a = record("a");
  const Message b = record("b");
  const Message c = record("c");
  ASSERT_EQ(memory.size(), 3U);
  EXPECT_NE(memory.find(before, a), nullptr);  // now used later than b
  record("d");
  EXPECT_EQ(memory.size(), 3U);
  EXPECT_EQ(memory.find(before, b), nullptr);
  EXPECT_NE(memory.find(before, a), nullptr);
  EXPECT_NE(memory.find(before, c), nullptr);
  record("a");  // the same id again: the newer record wins, and the older one's end does not take it along
  record("e");
  record("f");
  EXPECT_LE(memory.size(), 3U);
  EXPECT_NE(memory.find(before, a), nullptr);
}

TEST(TurnMemory, ManyThreads) {
  TurnMemory memory(1 << 14);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&memory, t] {
      for (int i = 0; i < 100; ++i) {
        const Prompt before = prompt_of({user(std::to_string(i % 7))});
        const RecordedTurn turn = plain_turn();
        if (t % 2 == 0) memory.record(tiny_format(), before, turn);
        else memory.find(before, given_back(turn));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_GT(memory.size(), 0U);
}

TEST(NewCallId, IsLongAndNeverTheSame) {
  std::set<std::string> ids;
  for (int i = 0; i < 200; ++i) {
    const std::string id = new_call_id();
    EXPECT_EQ(id.size(), 29U);
    EXPECT_TRUE(id.starts_with("call_"));
    EXPECT_TRUE(ids.insert(id).second);
  }
  EXPECT_TRUE(new_call_id("toolu_").starts_with("toolu_"));
}

}  // namespace
}  // namespace fathom::text
