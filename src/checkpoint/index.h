// model.safetensors.index.json: which file holds which tensor. checkpoint.md 3.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fathom::checkpoint {

inline constexpr std::size_t kMaxIndexBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMaxShards = 10'000;

struct Index {
  struct Entry {
    std::string tensor;
    std::uint32_t file = 0;  // position in files
    bool operator==(const Entry&) const = default;
  };
  std::vector<std::string> files;            // distinct, sorted; plain names, without any directory
  std::vector<Entry> entries;                // sorted by tensor, unique
  std::optional<std::uint64_t> total_bytes;  // metadata.total_size
};

// `what` names the file in errors. Errors: kCorrupt (not JSON, no weight_map, a tensor twice, a file name that is a
// path).
Result<Index> parse_index(std::string_view text, std::string_view what);

}  // namespace fathom::checkpoint
