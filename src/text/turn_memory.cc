#include "text/turn_memory.h"

#include <random>
#include <utility>

#include "text/json_value.h"
#include "text/strict_parser.h"

namespace fathom::text {
namespace {

std::uint64_t key_of(const Prompt& prompt, std::string_view content) {
  return prompt.hash() ^ (std::hash<std::string_view>()(content) * 0x9E3779B97F4A7C15U);
}

std::size_t bytes_of(const RecordedTurn& t) {
  std::size_t n = 256 + t.content.size() + t.reasoning.size() + 4 * t.ids.size();
  for (const ToolCall& c : t.calls) n += 96 + c.id.size() + c.name.size() + c.arguments.size();
  return n;
}

// Equal as JSON: white space and the spelling of strings do not count.
bool same_json(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto x = parse_json_value(a, "");
  const auto y = parse_json_value(b, "");
  std::string text_a;
  std::string text_b;
  return x && y && append_json_text(*x, text_a) && append_json_text(*y, text_b) && text_a == text_b;
}

bool is_unchanged(const RecordedTurn& turn, const Message& m) {
  if (turn.content != m.content || turn.calls.size() != m.tool_calls.size()) return false;
  if (!m.reasoning.empty() && m.reasoning != turn.reasoning) return false;
  for (std::size_t i = 0; i < turn.calls.size(); ++i) {
    const ToolCall& a = turn.calls[i];
    const ToolCall& b = m.tool_calls[i];
    if (a.id != b.id || a.name != b.name || !same_json(a.arguments, b.arguments)) return false;
  }
  return true;
}

}  // namespace

void TurnMemory::record(const ChatFormat& format, const Prompt& prompt, RecordedTurn turn) {
  const auto text = format.tokenizer().decode(turn.ids);
  turn.well_formed = text && parse_strict(*text, turn.thinking);
  const std::uint64_t key = key_of(prompt, turn.content);
  const std::size_t bytes = bytes_of(turn);
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.push_front({std::make_shared<const RecordedTurn>(std::move(turn)), key, bytes});
  bytes_ += bytes;
  const auto& calls = entries_.front().turn->calls;
  if (calls.empty()) by_key_[key] = entries_.begin();
  else by_call_[calls[0].id] = entries_.begin();
  while (bytes_ > max_bytes_ && !entries_.empty()) forget_oldest();
}

void TurnMemory::forget_oldest() {
  const auto oldest = std::prev(entries_.end());
  const auto& calls = oldest->turn->calls;
  // A newer turn may have taken the place in the index.
  if (calls.empty()) {
    const auto it = by_key_.find(oldest->key);
    if (it != by_key_.end() && it->second == oldest) by_key_.erase(it);
  } else {
    const auto it = by_call_.find(calls[0].id);
    if (it != by_call_.end() && it->second == oldest) by_call_.erase(it);
  }
  bytes_ -= oldest->bytes;
  entries_.pop_back();
}

std::shared_ptr<const RecordedTurn> TurnMemory::find(const Prompt& before, const Message& m) const {
  std::shared_ptr<const RecordedTurn> turn;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Entries::iterator entry;
    if (m.tool_calls.empty()) {
      const auto it = by_key_.find(key_of(before, m.content));
      if (it == by_key_.end()) return nullptr;
      entry = it->second;
    } else {
      const auto it = by_call_.find(m.tool_calls[0].id);
      if (it == by_call_.end()) return nullptr;
      entry = it->second;
    }
    turn = entry->turn;
    entries_.splice(entries_.begin(), entries_, entry);
  }
  return is_unchanged(*turn, m) ? turn : nullptr;
}

std::size_t TurnMemory::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.size();
}

std::string new_call_id(std::string_view prefix) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  std::random_device random;
  std::uniform_int_distribution<std::size_t> pick(0, kLetters.size() - 1);
  std::string id(prefix);
  for (int i = 0; i < 24; ++i) id.push_back(kLetters[pick(random)]);
  return id;
}

}  // namespace fathom::text
