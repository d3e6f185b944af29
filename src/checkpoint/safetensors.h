// One safetensors file: its header, checked, and its tensors' bytes. checkpoint.md 3.
//
// The container is an u64 (little-endian) header length, a JSON header, and payloads that follow each other without gap
// or overlap up to the end of the file. Everything here is from outside: a header that breaks a rule is refused whole,
// with the rule, the file and the tensor in the error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "tensor/view.h"

namespace fathom::checkpoint {

using Shape = std::vector<std::int64_t>;  // outermost first; {} is a scalar

// Bounds a header must respect; real headers stay far inside them.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the container format's own limit
inline constexpr std::size_t kMaxTensorsPerFile = 1'000'000;
inline constexpr std::size_t kMaxNameBytes = 512;
inline constexpr std::size_t kMaxRank = 8;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;  // "I8" reads as kFp4x2; whether FP4 is meant is for the schema to say
  Shape shape;                // as stored: a pair of FP4 values counts as one element
  std::uint64_t begin = 0;    // bytes from the start of the file, end exclusive
  std::uint64_t end = 0;
  bool operator==(const TensorInfo&) const = default;
};

struct Header {
  std::vector<TensorInfo> tensors;                            // in payload order
  std::vector<std::pair<std::string, std::string>> metadata;  // __metadata__, in file order
};

// Parses and checks the header at the start of `file`, whose whole extent is file.size(). Only the header's bytes are
// read. `what` names the file in errors. Errors: kCorrupt.
Result<Header> parse_header(std::span<const std::byte> file, std::string_view what);

// A mapped file and its header. Views stay valid while this object, or one it was moved to, lives. Safe to read from
// several threads.
class SafetensorsFile {
 public:
  // Errors: those of MappedFile::open and parse_header.
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return map_.path(); }
  const Header& header() const { return header_; }
  const MappedFile& map() const { return map_; }

  // nullptr where there is none.
  const TensorInfo* find(std::string_view name) const;

  // Gives up both parts.
  std::pair<MappedFile, Header> release() && { return {std::move(map_), std::move(header_)}; }

  // As mapped: may not be aligned to the element size.
  std::span<const std::byte> bytes(const TensorInfo& t) const { return map_.bytes().subspan(t.begin, t.end - t.begin); }

 private:
  SafetensorsFile(MappedFile map, Header header);
  MappedFile map_;
  Header header_;
  std::vector<std::uint32_t> by_name_;  // positions in header_.tensors, sorted by name
};

inline constexpr std::size_t kDTypes = 7;  // values of DType

// The type of a safetensors dtype string; false where Fathom does not read it.
bool dtype_from(std::string_view text, DType& out);

// Elements of a shape, or false where the product leaves int64.
bool element_count(std::span<const std::int64_t> shape, std::int64_t& out);

// "[4096, 512]".
std::string to_string(std::span<const std::int64_t> shape);

// A name from outside, fit for a terminal: control bytes escaped, cut after 120 bytes.
std::string printable(std::string_view name);

}  // namespace fathom::checkpoint
