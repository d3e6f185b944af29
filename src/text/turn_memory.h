// TurnMemory: the answers of late, kept so that a client that sends one back gets the very tokens that were sampled.
// prompt-encoding.md 4.7.
//
// Why: a turn rendered again may differ from what was sampled in one byte or in one cut between tokens, and the cached
// prefix of a long conversation ends there. And clients drop reasoning that the model needs to see again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/chat_format.h"
#include "text/message.h"
#include "text/prompt.h"

namespace fathom::text {

struct RecordedTurn {
  std::string content;
  std::string reasoning;
  std::vector<ToolCall> calls;    // with the ids that the client was given
  std::vector<std::int32_t> ids;  // sampled: from behind the think token of the prompt to EOS or the closing tag
  bool thinking = false;          // the prompt ended with <think>
  bool well_formed = false;       // set by record(): the ids may stand in for the turn; a repaired turn is rendered
};

// Safe from any thread. Holds at most about `max_bytes`, the least recently used turns going first.
class TurnMemory {
 public:
  explicit TurnMemory(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  // Keeps a turn that the model ended itself, by EOS or by closing its tool block. `prompt` is what it answered.
  void record(const ChatFormat& format, const Prompt& prompt, RecordedTurn turn);

  // The turn that `message`, an assistant message behind `before`, gives back, if it is unchanged: calls with the ids,
  // names and arguments (compared as JSON) of the record, or the same content behind the same prompt; and the recorded
  // reasoning, or none. Null if there is no such turn.
  std::shared_ptr<const RecordedTurn> find(const Prompt& before, const Message& message) const;

  std::size_t size() const;

 private:
  struct Entry {
    std::shared_ptr<const RecordedTurn> turn;
    std::uint64_t key = 0;  // of prompt and content
    std::size_t bytes = 0;
  };
  using Entries = std::list<Entry>;
  void forget_oldest();

  const std::size_t max_bytes_;
  mutable std::mutex mutex_;                                     // guards all below
  mutable Entries entries_;                                      // the most recently used first
  std::unordered_map<std::string, Entries::iterator> by_call_;   // first call id of a turn
  std::unordered_map<std::uint64_t, Entries::iterator> by_key_;  // turns without calls
  std::size_t bytes_ = 0;
};

// An id nobody can guess: `prefix` and 24 letters from the system's random source.
std::string new_call_id(std::string_view prefix = "call_");

}  // namespace fathom::text
