// A prompt as a list of items, and its token ids. prompt-encoding.md 1.7.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_format.h"

namespace fathom::text {

// Control items come only from the template; everything a request carries is text, which is tokenized without looking
// for control tokens. Adjacent text is one item. Ids are tokens that the model itself sampled in this conversation.
class Prompt {
 public:
  enum class Kind : std::uint8_t { kControl, kText, kIds };
  struct Item {
    Kind kind = Kind::kText;
    std::int32_t message = -1;      // the rendered message that began it; -1: before the first
    std::int32_t control = -1;      // kControl
    std::string text;               // kText
    std::vector<std::int32_t> ids;  // kIds
  };

  void control(std::int32_t id);
  void text(std::string_view s);
  void ids(std::vector<std::int32_t> ids);
  // The template's own text: where it spells <think>, </think> or ｜DSML｜ these are control tokens.
  void fixed_text(std::string_view s, const ControlTokens& control);

  void begin_message(std::int32_t index) { message_ = index; }
  const std::vector<Item>& items() const { return items_; }
  // The last item is this control token.
  bool ends_with(std::int32_t id) const;
  // Of all that has been added, however it was split into calls.
  std::uint64_t hash() const { return hash_; }

 private:
  void mix(std::string_view bytes);
  void mix_id(std::int32_t id);

  std::vector<Item> items_;
  std::uint64_t hash_ = 0xCBF29CE484222325U;  // FNV-1a
  std::int32_t message_ = -1;
};

// Which ids came from which item: spans follow one another and cover all ids.
struct PromptSpan {
  Prompt::Kind kind = Prompt::Kind::kText;
  std::int32_t message = -1;
  std::size_t begin = 0;  // in ids
  std::size_t end = 0;
};

struct EncodedPrompt {
  std::vector<std::int32_t> ids;
  std::vector<PromptSpan> spans;
};

EncodedPrompt encode_prompt(const Prompt& prompt, const Tokenizer& tokenizer);
// The prompt as one string, control tokens by their spelling: for people and for comparing.
std::string prompt_string(const Prompt& prompt, const Tokenizer& tokenizer);

}  // namespace fathom::text
