// The dialects' own words for an answer. http-api.md 5 to 8.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/answer.h"
#include "text/tokenizer.h"

namespace fathom::server {

struct WriterOptions {
  std::string model;  // as requested
  std::string request_id;
  std::int64_t created = 0;      // seconds since 1970
  bool include_usage = false;    // a stream ends with the usage
  bool usage_in_chunks = false;  // each chunk says what has been used so far
  bool thinking = false;         // reasoning is shown, be it empty
  bool logprobs = false;
  std::int32_t top_logprobs = 0;
  bool token_ids = false;
  std::vector<std::int32_t> prompt_ids = {};   // where token_ids
  const text::Tokenizer* tokenizer = nullptr;  // outlives the writer
};

std::unique_ptr<Writer> make_chat_writer(WriterOptions options);

// One choice.
std::unique_ptr<Writer> make_messages_writer(WriterOptions options);

struct ResponsesOptions {
  WriterOptions common;
  std::vector<std::pair<std::string, std::string>> echo;  // fields of the request as the response repeats them, JSON
  std::vector<std::string> custom_tools;                  // names
};
// One choice.
std::unique_ptr<Writer> make_responses_writer(ResponsesOptions options);

// Completions: what goes before each choice, per prompt; empty without echo.
struct Echo {
  std::string text;
  std::int32_t first = -1;       // the prompt's first token, which has no log-probability
  bool first_unwritten = false;  // it was put in front and does not stand in the text
};
std::unique_ptr<Writer> make_completions_writer(WriterOptions options, std::vector<Echo> echo, std::size_t n);

}  // namespace fathom::server
