#include "checkpoint/index.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/safetensors.h"

namespace fathom::checkpoint {
namespace {

// Receives the JSON event by event; other members than weight_map and metadata.total_size are passed over.
class IndexReader {
 public:
  std::vector<std::pair<std::string, std::string>> map;  // tensor, file
  std::optional<std::uint64_t> total_bytes;
  bool have_map = false;
  std::string why;

  bool null() { return value("null"); }
  bool boolean(bool) { return value("a boolean"); }
  bool number_integer(std::int64_t v) { return value(fmt::format("{}", v)); }
  bool number_unsigned(std::uint64_t v) {
    if (is_total()) total_bytes = v;
    return value(fmt::format("{}", v));
  }
  bool number_float(double v, const std::string&) {
    // Some writers sum sizes in floating point.
    if (is_total() && v >= 0 && v < 0x1p63) total_bytes = static_cast<std::uint64_t>(v);
    return value(fmt::format("{}", v));
  }
  bool string(std::string& v) {
    if (depth_ != 2 || at_ != At::kMap) return value("a string");
    map.emplace_back(std::move(key_), std::move(v));
    return true;
  }
  bool binary(std::vector<std::uint8_t>&) { return value("binary data"); }
  bool start_object(std::size_t) { return open("an object"); }
  bool start_array(std::size_t) {
    if (depth_ == 0) return stop("the index is an array, expected a JSON object");
    if (depth_ == 1 && key_ == "weight_map") return stop("weight_map: found an array, expected an object");
    return open("an array");
  }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& v) {
    key_ = std::move(v);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& e) {
    const bool encoding = std::string_view(e.what()).find("UTF-8") != std::string_view::npos;
    return stop(fmt::format("not valid {} at byte {}", encoding ? "UTF-8" : "JSON", position));
  }

 private:
  enum class At { kElsewhere, kMap, kMetadata };
  static constexpr int kMaxDepth = 32;

  bool is_total() const { return depth_ == 2 && at_ == At::kMetadata && key_ == "total_size"; }
  bool stop(std::string text) {
    why = std::move(text);
    return false;
  }
  bool value(std::string_view found) {
    if (depth_ == 0) return stop(fmt::format("the index is {}, expected a JSON object", found));
    if (depth_ == 1 && key_ == "weight_map")
      return stop(fmt::format("weight_map: found {}, expected an object", found));
    if (depth_ == 2 && at_ == At::kMap) {
      return stop(fmt::format("weight_map entry {}: found {}, expected a file name", printable(key_), found));
    }
    return true;
  }
  bool open(std::string_view found) {
    if (depth_ == 2 && at_ == At::kMap) return value(found);
    if (depth_ == 1) {
      at_ = key_ == "weight_map" ? At::kMap : key_ == "metadata" ? At::kMetadata : At::kElsewhere;
      if (at_ == At::kMap && std::exchange(have_map, true)) return stop("weight_map appears twice");
    }
    if (++depth_ > kMaxDepth) return stop(fmt::format("nested deeper than {} levels", kMaxDepth));
    return true;
  }
  bool close() {
    if (--depth_ == 1) at_ = At::kElsewhere;
    return true;
  }

  int depth_ = 0;
  At at_ = At::kElsewhere;
  std::string key_;
};

// Files are looked for beside the index and nowhere else.
bool is_plain_name(std::string_view file) {
  return !file.empty() && file.size() <= 255 && file != "." && file != ".." &&
         file.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

Result<Index> parse_index(std::string_view text, std::string_view what) {
  IndexReader reader;
  if (!nlohmann::json::sax_parse(text, &reader)) return fail(Code::kCorrupt, "{}: {}", what, reader.why);
  if (!reader.have_map) return fail(Code::kCorrupt, "{}: weight_map: found nothing, expected an object", what);
  auto& map = reader.map;
  std::sort(map.begin(), map.end());
  Index index;
  index.total_bytes = reader.total_bytes;
  for (std::size_t i = 0; i < map.size(); ++i) {
    if (i > 0 && map[i].first == map[i - 1].first) {
      return fail(Code::kCorrupt, "{}: tensor {} appears twice, in {} and {}", what, printable(map[i].first),
                  printable(map[i - 1].second), printable(map[i].second));
    }
    if (!is_plain_name(map[i].second)) {
      return fail(Code::kCorrupt,
                  "{}: weight_map entry {}: found \"{}\", expected the plain name of a file beside the index", what,
                  printable(map[i].first), printable(map[i].second));
    }
    index.files.push_back(map[i].second);
  }
  std::sort(index.files.begin(), index.files.end());
  index.files.erase(std::unique(index.files.begin(), index.files.end()), index.files.end());
  if (index.files.size() > kMaxShards) {
    return fail(Code::kCorrupt, "{}: found {} files, expected at most {}", what, index.files.size(), kMaxShards);
  }
  index.entries.reserve(map.size());
  for (auto& [tensor, file] : map) {
    const auto it = std::lower_bound(index.files.begin(), index.files.end(), file);
    index.entries.push_back({std::move(tensor), static_cast<std::uint32_t>(it - index.files.begin())});
  }
  return index;
}

}  // namespace fathom::checkpoint
