// One file of the disk tier: a page or a snapshot's image, with the tokens it belongs to.
//
//   bytes 0..95   header, little-endian (kMagic, version, kind, id, parent, fingerprint, sizes, checksums)
//   then          salt (roots' children only), tokens (i32), payload
//
// Two XXH3 checksums: one of header, salt and tokens, read when the directory is opened; one of the payload, read when
// it is used. A file says which file it continues by that file's number; numbers are never used twice in a directory,
// and a file is always younger than the one it continues.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace fathom::cache {

enum class FileKind : std::uint32_t { kPage = 1, kSnapshot = 2 };

// What the bytes mean: model, numerics, layout and version of the format, hashed. Files of another one are foreign.
struct Fingerprint {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const Fingerprint&) const = default;
  std::string hex() const;
};

// The fingerprint of any text that says all that matters.
Fingerprint fingerprint_of(std::string_view text);

struct FileHeader {
  FileKind kind = FileKind::kPage;
  std::uint64_t id = 0;
  std::uint64_t parent = 0;          // file of the page before; 0: there is none
  std::string salt;                  // where parent is 0
  std::int32_t position = 0;         // tokens before `tokens`
  std::vector<std::int32_t> tokens;  // 128 for a page, fewer for a snapshot
  std::int32_t drafted = 0;          // snapshots: Reach::drafted
  std::uint64_t payload_bytes = 0;

  std::uint64_t file_bytes() const;
};

inline constexpr std::size_t kMaxSaltBytes = 256;

std::string file_name(FileKind kind, std::uint64_t id);

// The whole file. payload.size() = header.payload_bytes.
std::vector<std::byte> encode_file(const FileHeader& header, const Fingerprint& fingerprint,
                                   std::span<const std::byte> payload);

// Under another name first, so that the name never stands for half a file. Error: kExhausted (no room), kNotFound.
Result<> write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);

// Checks all but the payload. Errors: kCorrupt, kInvalid (another fingerprint or version), kNotFound; naming the file.
Result<FileHeader> read_file_header(const std::filesystem::path& path, const Fingerprint& fingerprint);

// The payload, checked. Errors as above.
Result<std::vector<std::byte>> read_file_payload(const std::filesystem::path& path, const Fingerprint& fingerprint);

}  // namespace fathom::cache
