// MappedFile: a file's bytes, mapped read-only; nothing is read until it is touched.
//
// The file must not shrink while it is mapped (reading past the new end is a SIGBUS on every system); `changed()` tells
// whether size or modification time differ from what they were at opening.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/result.h"

namespace fathom {

class MappedFile {
 public:
  // Errors: kNotFound (no such file, not a regular file, no permission), kExhausted (address space). Empty files map.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  bool changed() const;

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::int64_t mtime_ns_ = 0;
};

// The whole of a small file as a string. Errors: kNotFound; kInvalid where it is larger than `max_bytes`.
Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace fathom
