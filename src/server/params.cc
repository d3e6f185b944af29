#include "server/params.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

namespace fathom::server {
namespace {

using text::JsonValue;

constexpr std::size_t kMaxStops = 16;
constexpr std::size_t kMaxStopBytes = 256;
constexpr std::size_t kMaxSaltBytes = 256;
constexpr std::size_t kMaxBiases = 1024;
constexpr std::int32_t kMaxN = 16;

bool read_real(const JsonValue& value, double& out) {
  if (!value.is(JsonValue::Kind::kNumber)) return false;
  const char* end = value.text.data() + value.text.size();
  const auto [at, error] = std::from_chars(value.text.data(), end, out);
  return error == std::errc() && at == end && std::isfinite(out);
}

bool read_seed(Fields& f, std::uint64_t& seed) {
  const JsonValue* value = f.get("seed");
  if (value == nullptr) {
    std::random_device random;
    seed = (std::uint64_t{random()} << 32U) | random();
    return true;
  }
  const char* end = value->text.data() + value->text.size();
  std::int64_t negative = 0;
  if (value->is(JsonValue::Kind::kNumber)) {
    if (const auto r = std::from_chars(value->text.data(), end, seed); r.ec == std::errc() && r.ptr == end) return true;
    if (const auto r = std::from_chars(value->text.data(), end, negative); r.ec == std::errc() && r.ptr == end) {
      seed = static_cast<std::uint64_t>(negative);
      return true;
    }
  }
  return f.wrong("seed", "an integer of 64 bits");
}

bool read_stops(Fields& f, const char* key, std::vector<std::string>& stops) {
  const JsonValue* value = f.get(key);
  if (value == nullptr) return true;
  if (!value->is_string() && !value->is_array()) return f.wrong(key, "a string or a list of strings");
  std::vector<const JsonValue*> list;
  if (value->is_string()) list.push_back(value);
  else
    for (const JsonValue& item : value->items) list.push_back(&item);
  if (list.size() > kMaxStops) return f.wrong(key, fmt::format("at most {} strings, found {}", kMaxStops, list.size()));
  for (const JsonValue* item : list) {
    if (!item->is_string()) return f.wrong(key, "a string or a list of strings");
    if (item->text.empty() || item->text.size() > kMaxStopBytes) {
      return f.wrong(key, fmt::format("strings of 1 to {} bytes, found one of {}", kMaxStopBytes, item->text.size()));
    }
    stops.push_back(item->text);
  }
  return true;
}

bool read_bias(Fields& f, std::int32_t vocab, std::vector<engine::LogitBias>& out) {
  const JsonValue* map = f.get("logit_bias");
  if (map == nullptr) return true;
  if (!map->is_object()) return f.wrong("logit_bias", "an object of token ids to numbers");
  if (map->items.size() > kMaxBiases) return f.wrong("logit_bias", fmt::format("at most {} entries", kMaxBiases));
  for (std::size_t i = 0; i < map->items.size(); ++i) {
    const std::string& key = map->keys[i];
    std::int32_t id = -1;
    const auto r = std::from_chars(key.data(), key.data() + key.size(), id);
    if (r.ec != std::errc() || r.ptr != key.data() + key.size() || id < 0 || id >= vocab) {
      return f.wrong("logit_bias", fmt::format("token ids from 0 to {}", vocab - 1));
    }
    double bias = 0;
    if (!read_real(map->items[i], bias) || bias < -100 || bias > 100) {
      return f.wrong("logit_bias", fmt::format("a number from -100 to 100 for {}", key));
    }
    for (const auto& seen : out) {
      if (seen.id == id) return f.wrong("logit_bias", fmt::format("each id once, {} stands twice", id));
    }
    out.push_back({id, static_cast<float>(bias)});
  }
  return true;
}

bool read_sampling(Fields& f, std::int32_t vocab, engine::SamplingParams& s) {
  std::int64_t top_k = 0;
  if (!f.real("temperature", 0, 2, s.temperature) || !f.real("top_p", 0, 1, s.top_p, true) ||
      !f.integer("top_k", -1, std::numeric_limits<std::int32_t>::max(), top_k) || !f.real("min_p", 0, 1, s.min_p) ||
      !f.real("presence_penalty", -2, 2, s.presence_penalty) ||
      !f.real("frequency_penalty", -2, 2, s.frequency_penalty) ||
      !f.real("repetition_penalty", 0, 2, s.repetition_penalty, true)) {
    return false;
  }
  s.top_k = static_cast<std::int32_t>(std::max<std::int64_t>(top_k, 0));
  return read_bias(f, vocab, s.logit_bias) && read_seed(f, s.seed);
}

bool read_logprobs(Fields& f, Endpoint endpoint, engine::SamplingParams& s) {
  if (endpoint == Endpoint::kCompletions) {
    std::int32_t n = -1;
    if (!f.integer("logprobs", 0, engine::kMaxTopLogprobs, n)) return false;
    s.logprobs = n >= 0;
    s.top_logprobs = std::max(n, 0);
    return true;
  }
  if (endpoint != Endpoint::kChat) return true;
  if (!f.boolean("logprobs", s.logprobs)) return false;
  if (!f.integer("top_logprobs", 0, engine::kMaxTopLogprobs, s.top_logprobs)) return false;
  if (f.has("top_logprobs") && !s.logprobs) return f.wrong("top_logprobs", "logprobs true beside it");
  return true;
}

bool read_limit(Fields& f, Endpoint endpoint, Params& p) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  std::vector<const char*> keys = {"max_tokens"};
  if (endpoint == Endpoint::kChat) keys = {"max_completion_tokens", "max_tokens"};
  if (endpoint == Endpoint::kResponses) keys = {"max_output_tokens"};
  const bool scoring = endpoint == Endpoint::kCompletions && f.get("echo") != nullptr && f.get("echo")->is_true();
  for (const char* key : keys) {
    std::int32_t value = 0;
    if (!f.integer(key, scoring ? 0 : 1, kMost, value)) return false;
    if (!p.max_given && f.has(key)) {
      p.max_given = true;
      p.max_tokens = value;
    }
  }
  if (!p.max_given && endpoint == Endpoint::kCompletions) {
    p.max_given = true;
    p.max_tokens = 16;
  }
  return true;
}

bool read_streaming(Fields& f, Endpoint endpoint, Params& p) {
  if (!f.boolean("stream", p.stream)) return false;
  const JsonValue* options = f.get("stream_options");
  if (options == nullptr || endpoint == Endpoint::kMessages || endpoint == Endpoint::kResponses) return true;
  if (!p.stream) return f.wrong("stream_options", "stream true beside it");
  if (!options->is_object()) return f.wrong("stream_options", "an object");
  const auto flag = [&](const char* key, bool& out) {
    const JsonValue* value = options->get(key);
    if (value == nullptr) return true;
    if (!value->is_bool()) return f.wrong(fmt::format("stream_options.{}", key), "true or false");
    out = value->is_true();
    return true;
  };
  return flag("include_usage", p.include_usage) && flag("continuous_usage_stats", p.usage_in_chunks);
}

bool read_all(Fields& f, Endpoint endpoint, std::int32_t vocab, Params& p) {
  if (!f.string("model", p.model)) return false;
  if (!read_sampling(f, vocab, p.sampling) || !read_logprobs(f, endpoint, p.sampling)) return false;
  if (!read_limit(f, endpoint, p) || !read_streaming(f, endpoint, p)) return false;
  if (!read_stops(f, endpoint == Endpoint::kMessages ? "stop_sequences" : "stop", p.stop)) return false;
  if (!f.ids("stop_token_ids", vocab, p.stop_ids)) return false;
  if (!f.boolean("ignore_eos", p.ignore_eos) || !f.boolean("include_stop_str_in_output", p.include_stop) ||
      !f.boolean("skip_special_tokens", p.skip_special) || !f.boolean("return_token_ids", p.token_ids)) {
    return false;
  }
  if (!f.integer("min_tokens", 0, std::numeric_limits<std::int32_t>::max(), p.min_tokens)) return false;
  if (!f.integer("priority", -1000000, 1000000, p.priority) || !f.string("cache_salt", p.salt)) return false;
  if (p.salt.size() > kMaxSaltBytes) return f.wrong("cache_salt", fmt::format("at most {} bytes", kMaxSaltBytes));
  if (endpoint != Endpoint::kChat && endpoint != Endpoint::kCompletions) return true;
  if (!f.integer("n", 1, kMaxN, p.n)) return false;
  std::int32_t best_of = p.n;
  if (!f.integer("best_of", 1, kMaxN, best_of)) return false;
  if (best_of != p.n) return f.refuse(refusal(400, "best_of", "unsupported", "best_of: other than n is not supported"));
  return true;
}

}  // namespace

bool read_integer(const JsonValue& value, std::int64_t& out) {
  if (!value.is(JsonValue::Kind::kNumber)) return false;
  const char* end = value.text.data() + value.text.size();
  if (const auto r = std::from_chars(value.text.data(), end, out); r.ec == std::errc() && r.ptr == end) return true;
  double real = 0;
  if (!read_real(value, real) || real != std::floor(real) || std::abs(real) > 9e15) return false;
  out = static_cast<std::int64_t>(real);
  return true;
}

tl::expected<std::vector<std::int32_t>, Refusal> read_ids(const JsonValue& list, const std::string& param,
                                                          std::int32_t vocab) {
  if (!list.is_array()) return tl::unexpected(invalid(param, "a list of token ids"));
  std::vector<std::int32_t> ids;
  ids.reserve(list.items.size());
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    std::int64_t id = -1;
    if (!read_integer(list.items[i], id) || id < 0 || id >= vocab) {
      return tl::unexpected(refusal(400, fmt::format("{}[{}]", param, i), "invalid_value",
                                    fmt::format("{}[{}]: expected a token id from 0 to {}", param, i, vocab - 1)));
    }
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

bool Fields::refuse(Refusal r) {
  if (!is_refused_) refused_ = std::move(r);
  is_refused_ = true;
  return false;
}

bool Fields::real(const char* key, double low, double high, float& out, bool above_low) {
  const JsonValue* value = get(key);
  if (value == nullptr) return true;
  double x = 0;
  if (!read_real(*value, x) || x < low || x > high || (above_low && x == low)) {
    return wrong(key, fmt::format("a number {} {} and at most {}, found {}", above_low ? "above" : "of at least", low,
                                  high, value->text.empty() ? "something else" : value->text.substr(0, 40)));
  }
  out = static_cast<float>(x);
  return true;
}

bool Fields::integer(const char* key, std::int64_t low, std::int64_t high, std::int64_t& out) {
  const JsonValue* value = get(key);
  if (value == nullptr) return true;
  std::int64_t x = 0;
  if (!read_integer(*value, x) || x < low || x > high) {
    return wrong(key, fmt::format("an integer from {} to {}, found {}", low, high,
                                  value->text.empty() ? "something else" : value->text.substr(0, 40)));
  }
  out = x;
  return true;
}

bool Fields::integer(const char* key, std::int64_t low, std::int64_t high, std::int32_t& out) {
  std::int64_t x = out;
  if (!integer(key, low, high, x)) return false;
  out = static_cast<std::int32_t>(x);
  return true;
}

bool Fields::boolean(const char* key, bool& out) {
  const JsonValue* value = get(key);
  if (value == nullptr) return true;
  if (!value->is_bool()) return wrong(key, "true or false");
  out = value->is_true();
  return true;
}

bool Fields::string(const char* key, std::string& out) {
  const JsonValue* value = get(key);
  if (value == nullptr) return true;
  if (!value->is_string()) return wrong(key, "a string");
  out = value->text;
  return true;
}

bool Fields::ids(const char* key, std::int32_t vocab, std::vector<std::int32_t>& out) {
  const JsonValue* value = get(key);
  if (value == nullptr) return true;
  auto ids = read_ids(*value, key, vocab);
  if (!ids) return refuse(ids.error());
  out = std::move(*ids);
  return true;
}

tl::expected<Params, Refusal> read_params(const JsonValue& body, Endpoint endpoint, std::int32_t vocab) {
  Fields f(body);
  Params p;
  if (!read_all(f, endpoint, vocab, p)) return tl::unexpected(f.refused());
  return p;
}

}  // namespace fathom::server
