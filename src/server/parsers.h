// The two ways to read an answer: as a turn of a conversation, or as plain text.
#pragma once

#include <memory>

#include "server/answer.h"
#include "text/chat_format.h"
#include "text/stream_parser.h"

namespace fathom::server {

// The format outlives the parser.
std::unique_ptr<ChoiceParser> make_turn_parser(const text::ChatFormat& format, const text::ParserOptions& options,
                                               const text::TokenOptions& tokens);

struct RawOptions {
  std::vector<std::string> stop;
  bool include_stop = false;
  bool skip_special = true;            // added tokens show as nothing
  std::vector<std::int32_t> stop_ids;  // end the answer and show as nothing
};
std::unique_ptr<ChoiceParser> make_raw_parser(const text::Tokenizer& tokenizer, const RawOptions& options);

}  // namespace fathom::server
