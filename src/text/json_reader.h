// JsonReader: walks a JSON text value by value, without building a tree.
//
// Why not the library behind base/json.h: prompts carry JSON text whose numbers must keep their digits at any length
// (prompt-encoding.md 2.13), model output needs a strict yes or no by RFC 8259, and a tokenizer file of 128000 members
// must load in milliseconds; its ordered object looks every member up in a list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom::text {

// Strict RFC 8259 over UTF-8; lone surrogate escapes are refused. After the first mistake every call returns false and
// error() says what and where. The text must outlive the reader. Usage:
//
//   std::string_view key, value;
//   if (r.enter_object()) while (r.member(key)) { if (key == "a") r.string(value); else r.skip(); }
//   if (!r.finish()) ... r.error()
class JsonReader {
 public:
  enum class Kind : std::uint8_t { kObject, kArray, kString, kNumber, kTrue, kFalse, kNull, kNone };

  // At most `max_depth` arrays and objects inside each other.
  explicit JsonReader(std::string_view text, int max_depth = 128);

  // The kind of the value at the cursor, by its first character; kNone after an error or where no value stands.
  Kind peek();

  bool enter_object();                 // the next value is an object
  bool member(std::string_view& key);  // moves to the next member's value; false behind the last one
  bool enter_array();
  bool element();                        // moves to the next element; false behind the last one
  bool string(std::string_view& value);  // unescaped; valid until the next call that reads a string
  bool number(std::string_view& token);  // as written
  bool boolean(bool& value);
  bool null();
  bool skip();  // any one value, checked

  bool finish();  // nothing but white space is left, and nothing was wrong
  bool ok() const { return error_.empty(); }
  // "byte 17: expected ..."; empty while all is well.
  const std::string& error() const { return error_; }
  // Something the caller finds wrong at the cursor: the reader fails with this text.
  bool fail(std::string_view why);

 private:
  bool open(char bracket);
  bool next(char closing, bool& more);
  bool literal(std::string_view word);
  bool read_string(std::string_view& value, std::string& scratch);
  bool unescape(std::string& out);
  bool hex4(std::uint32_t& value);
  void skip_space();

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t max_depth_;
  std::vector<bool> fresh_;  // one per open bracket: nothing has been read inside it yet
  std::string key_;
  std::string value_;
  std::string error_;
};

// `text` is one JSON value and nothing else but white space.
bool is_json(std::string_view text, int max_depth = 128);

// Appends `s` with the escapes of prompt-encoding.md 2.13, without quotes.
void append_json_escaped(std::string_view s, std::string& out);

}  // namespace fathom::text
