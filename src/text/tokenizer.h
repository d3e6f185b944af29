// Tokenizer: text to token ids and back, exactly as the checkpoint's tokenizer.json says. prompt-encoding.md 1.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fathom::text {

enum class Mode : std::uint8_t {
  kPlain,  // added tokens are not looked for: text that spells <｜User｜> stays text. For everything a request carries.
  kSpecial,  // added tokens in the text become their ids. For complete prompts written by a program.
};

// Immutable; any number of threads may use one. Moving is cheap.
class Tokenizer {
 public:
  // `path`: tokenizer.json or the folder that holds it. Errors: kNotFound; kInvalid (not JSON, too large); kCorrupt (a
  // check of prompt-encoding.md 1.1 fails); kUnavailable (a kind of tokenizer Fathom does not know, which it refuses
  // rather than guess at). Every message names the file.
  static Result<Tokenizer> load(const std::filesystem::path& path);
  // The same from the text of a tokenizer.json; `what` names it in errors.
  static Result<Tokenizer> parse(std::string_view json, std::string_view what);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The ids of `text`; never adds BOS. Valid UTF-8 is expected (callers check at the door: text/utf8.h); other bytes
  // are encoded byte by byte, so that decode(encode(x)) == x for any x. Time is linear but for a logarithm in the
  // length of the longest run of letters. Less than 2 GiB.
  std::vector<std::int32_t> encode(std::string_view text, Mode mode) const;
  void encode_to(std::string_view text, Mode mode, std::vector<std::int32_t>& ids) const;  // appends

  // Ids run from 0 to vocab_size() - 1; each has a spelling.
  std::int32_t vocab_size() const;
  // The exact bytes of a token (for an added token its content); nothing for an id outside the vocabulary.
  std::optional<std::string_view> token_bytes(std::int32_t id) const;
  // The id of the added token spelled so, as in control_id("<｜User｜>").
  std::optional<std::int32_t> control_id(std::string_view spelling) const;
  bool is_added(std::int32_t id) const;

  // The text of `ids`, broken UTF-8 replaced (text/utf8.h). Errors: kInvalid, an id outside the vocabulary.
  Result<std::string> decode(std::span<const std::int32_t> ids) const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<const State> state);
  std::unique_ptr<const State> state_;
};

}  // namespace fathom::text
