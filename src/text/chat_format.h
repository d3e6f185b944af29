// ChatFormat: what a checkpoint needs from its tokenizer to speak the DeepSeek-V4 prompt format.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace fathom::text {

// Which table of effort prefixes a checkpoint was trained with. prompt-encoding.md 2.11.
enum class Revision : std::uint8_t { kPreview, k0731 };

// Quick-instruction tasks. prompt-encoding.md 2.12.
enum class Task : std::uint8_t { kAction, kQuery, kAuthority, kDomain, kTitle, kReadUrl };
inline constexpr std::array<std::string_view, 6> kTaskNames = {"action", "query", "authority",
                                                               "domain", "title", "read_url"};

// The control tokens of the format, looked up by spelling. prompt-encoding.md 1.6.
struct ControlTokens {
  std::int32_t bos = 0;
  std::int32_t eos = 0;
  std::int32_t user = 0;
  std::int32_t assistant = 0;
  std::int32_t think_open = 0;
  std::int32_t think_close = 0;
  std::int32_t dsml = 0;
  std::int32_t latest_reminder = 0;
  std::int32_t eot = -1;                  // legacy; -1 where the tokenizer has none
  std::array<std::int32_t, 6> task = {};  // by Task
  std::int32_t fim_begin = 0;
  std::int32_t fim_hole = 0;
  std::int32_t fim_end = 0;

  // EOS and the others that end what the model may say: BOS, <｜User｜>, <｜Assistant｜>, <｜latest_reminder｜>,
  // <|EOT|>.
  bool ends_turn(std::int32_t id) const {
    return id == eos || id == bos || id == user || id == assistant || id == latest_reminder || (id == eot && eot >= 0);
  }

  // Errors: kCorrupt, a token is missing; kUnavailable, the tokenizer is one of the V4.1 family, whose format differs.
  static Result<ControlTokens> find(const Tokenizer& tokenizer);
};

// Immutable; any number of threads. Moving is cheap.
class ChatFormat {
 public:
  // `folder` holds tokenizer.json and, where it is a checkpoint, config.json and generation_config.json: the revision
  // is 0731 if config.json has a key that begins with "dspark_", else preview; without a config.json it is 0731, the
  // current one. Errors: those of Tokenizer::load and ControlTokens::find; kCorrupt, an eos_token_id of the checkpoint
  // that is not <｜end▁of▁sentence｜>.
  static Result<ChatFormat> load(const std::filesystem::path& folder);
  static Result<ChatFormat> make(Tokenizer tokenizer, Revision revision);

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ControlTokens& control() const { return control_; }
  Revision revision() const { return revision_; }
  void set_revision(Revision r) { revision_ = r; }

 private:
  ChatFormat() = default;
  std::unique_ptr<const Tokenizer> tokenizer_;  // by pointer: prompts and parsers keep its address
  ControlTokens control_;
  Revision revision_ = Revision::k0731;
};

}  // namespace fathom::text
