// Rendering: a conversation to the prompt that DeepSeek-V4 was trained on. prompt-encoding.md 2.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat_format.h"
#include "text/message.h"
#include "text/prompt.h"

namespace fathom::text {

class TurnMemory;

enum class Effort : std::uint8_t { kNone, kLow, kHigh, kMax };

// "low", "high", "max"; nothing for any other name.
std::optional<Effort> effort_from_name(std::string_view name);

struct RenderOptions {
  bool thinking = true;
  Effort effort = Effort::kNone;  // a prefix in thinking mode; which, the revision of the format decides (2.11)
  bool drop_thinking = true;      // forget the reasoning of earlier turns; tools switch it off
  bool add_bos = true;            // only without context
  bool answer_header = true;      // false: nothing after the last message, for scoring
  // arguments of a call that are JSON but no object: an error, as in the published encoder; else taken as plain text,
  // as DeepSeek's service does.
  bool strict_arguments = false;
  // Where a turn of the history is found in it, the sampled ids stand for the turn, and reasoning that the request left
  // out comes back (4.7). Must outlive the call.
  const TurnMemory* memory = nullptr;
};

// The prompt for `messages`, which follow `context` (rendered elsewhere before; its text is not returned). Errors:
// kInvalid, with the reasons of 2.15.
Result<Prompt> render_chat(const ChatFormat& format, std::span<const Message> messages, const RenderOptions& options,
                           std::span<const Message> context = {});

// Where the parser of the answer starts, as the end of the prompt says. prompt-encoding.md 4.2.
enum class ParserState : std::uint8_t { kReasoning, kContent, kToolBlock };
ParserState initial_state(const Prompt& prompt, const ChatFormat& format);

// The ids to add when a chat goes on and its tokens so far stay as they are (nothing is forgotten, nothing rendered
// again): EOS, unless `last_id`, the last token of the answer, is one; the user's words; the answer header. A sampled
// token that ends turns but is not EOS is not to be kept.
std::vector<std::int32_t> next_turn(const ChatFormat& format, std::string_view user_text, bool thinking,
                                    std::int32_t last_id);

// <｜fim▁begin｜>PREFIX<｜fim▁hole｜>SUFFIX<｜fim▁end｜>, the model writes what stands in the hole.
// prompt-encoding.md 6.
Prompt render_fim(const ChatFormat& format, std::string_view prefix, std::string_view suffix, bool add_bos = true);

// The opener of a tool-call block and what goes before it; a forced call begins with it. prompt-encoding.md 3.5.
void append_tool_opener(Prompt& prompt, const ChatFormat& format);

// The ids that the engine forces to make the model call a tool: the opener, unless `opened` (the prompt has it), then,
// where `name` is not empty, the tag of an invoke with that name. Their text is not to be tokenized with its
// neighbours.
std::vector<std::int32_t> forced_call(const ChatFormat& format, bool opened, std::string_view name = {});

}  // namespace fathom::text
