// The fields of a request that say how to sample, when to stop and how to answer. http-api.md 4.2 and the tables of 5
// to 8.
#pragma once

#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "engine/sampling_params.h"
#include "server/reject.h"
#include "text/json_value.h"

namespace fathom::server {

enum class Endpoint : std::uint8_t { kChat, kCompletions, kMessages, kResponses };

struct Params {
  std::string model;  // as requested; empty: not named
  engine::SamplingParams sampling;
  std::int32_t max_tokens = 0;  // 0: no limit was given
  bool max_given = false;       // distinguishes a limit of 0 (completions that only score)
  std::int32_t min_tokens = 0;
  std::int32_t n = 1;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_ids;
  bool ignore_eos = false;
  bool include_stop = false;
  bool skip_special = true;
  bool stream = false;
  bool include_usage = false;
  bool usage_in_chunks = false;  // every chunk of a stream says what has been used so far
  bool token_ids = false;        // the answer shows ids
  std::int32_t priority = 0;
  std::string salt;
};

// Reads fields of one object. Every step returns false once a field is refused; the first refusal stands.
class Fields {
 public:
  explicit Fields(const text::JsonValue& object) : object_(object) {}

  // Absent and null leave `out` alone.
  bool real(const char* key, double low, double high, float& out, bool above_low = false);
  bool integer(const char* key, std::int64_t low, std::int64_t high, std::int64_t& out);
  bool integer(const char* key, std::int64_t low, std::int64_t high, std::int32_t& out);
  bool boolean(const char* key, bool& out);
  bool string(const char* key, std::string& out);
  bool ids(const char* key, std::int32_t vocab, std::vector<std::int32_t>& out);
  bool has(const char* key) const { return object_.get(key) != nullptr; }
  const text::JsonValue* get(const char* key) const { return object_.get(key); }

  bool refuse(Refusal r);
  bool wrong(const std::string& param, std::string_view expected) { return refuse(invalid(param, expected)); }
  const Refusal& refused() const { return refused_; }

 private:
  const text::JsonValue& object_;
  Refusal refused_;
  bool is_refused_ = false;
};

// A JSON number that is an integer, as in 5 or 5.0. False for anything else.
bool read_integer(const text::JsonValue& value, std::int64_t& out);
// A list of token ids. Error: names the field.
tl::expected<std::vector<std::int32_t>, Refusal> read_ids(const text::JsonValue& list, const std::string& param,
                                                          std::int32_t vocab);

tl::expected<Params, Refusal> read_params(const text::JsonValue& body, Endpoint endpoint, std::int32_t vocab);

}  // namespace fathom::server
