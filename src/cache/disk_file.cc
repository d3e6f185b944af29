#include "cache/disk_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "ops/batch.h"

namespace fathom::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "files hold the machine's own bytes, little-endian");

constexpr std::array<char, 8> kMagic{'F', 'A', 'T', 'H', 'O', 'M', 'K', 'V'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kMaxPayload = std::uint64_t{1} << 34U;

struct RawHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t kind;
  std::uint64_t id;
  std::uint64_t parent;
  std::uint64_t fingerprint_low;
  std::uint64_t fingerprint_high;
  std::uint64_t payload_bytes;
  std::uint64_t payload_checksum;
  std::int32_t position;
  std::int32_t n_tokens;
  std::int32_t drafted;
  std::uint32_t salt_bytes;
  std::uint64_t reserved;
  std::uint64_t checksum;  // of all before it, salt and tokens
};
static_assert(sizeof(RawHeader) == 96);

std::uint64_t header_checksum(const RawHeader& raw, std::span<const std::byte> salt_and_tokens) {
  return XXH3_64bits_withSeed(&raw, offsetof(RawHeader, checksum),
                              XXH3_64bits(salt_and_tokens.data(), salt_and_tokens.size()));
}

class File {
 public:
  File(const std::filesystem::path& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0600)) {}  // NOLINT
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool ok() const { return fd_ >= 0; }
  // A regular file's size; -1 for anything else.
  std::int64_t size() const {
    struct stat s {};
    return ::fstat(fd_, &s) == 0 && S_ISREG(s.st_mode) ? s.st_size : -1;
  }
  bool read(std::span<std::byte> to) {
    while (!to.empty()) {
      const ssize_t n = ::read(fd_, to.data(), to.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      to = to.subspan(static_cast<std::size_t>(n));
    }
    return true;
  }
  bool write(std::span<const std::byte> from) {
    while (!from.empty()) {
      const ssize_t n = ::write(fd_, from.data(), from.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      from = from.subspan(static_cast<std::size_t>(n));
    }
    return true;
  }
  bool close() {
    const int r = ::close(fd_);
    fd_ = -1;
    return r == 0;
  }

 private:
  int fd_;
};

struct Opened {
  RawHeader raw;
  FileHeader header;
};

// Every number is checked before it is believed.
Result<> check_raw(const RawHeader& raw, std::int64_t size, const Fingerprint& fingerprint, const std::string& name) {
  if (raw.magic != kMagic) return fail(Code::kCorrupt, "{} is not a cache file", name);
  if (raw.version != kVersion)
    return fail(Code::kInvalid, "{} has version {} of the format, expected {}", name, raw.version, kVersion);
  if (Fingerprint{raw.fingerprint_low, raw.fingerprint_high} != fingerprint) {
    return fail(Code::kInvalid, "{} belongs to another model or other numerics", name);
  }
  const bool page = raw.kind == static_cast<std::uint32_t>(FileKind::kPage);
  const bool snapshot = raw.kind == static_cast<std::uint32_t>(FileKind::kSnapshot);
  const bool tokens_fit =
      page ? raw.n_tokens == ops::kPageTokens : raw.n_tokens >= 0 && raw.n_tokens < ops::kPageTokens;
  const bool place_fits = raw.position >= 0 && raw.position % ops::kPageTokens == 0 &&
                          (raw.position == 0) == (raw.parent == 0) && raw.parent < raw.id && raw.id != 0;
  const bool reach_fits = raw.drafted >= 0 && raw.drafted <= std::int64_t{raw.position} + raw.n_tokens;
  if (!(page || snapshot) || !tokens_fit || !place_fits || !reach_fits || raw.salt_bytes > kMaxSaltBytes ||
      raw.payload_bytes > kMaxPayload) {
    return fail(Code::kCorrupt, "{} has impossible numbers in its header", name);
  }
  const std::uint64_t expected =
      sizeof(RawHeader) + raw.salt_bytes + 4 * static_cast<std::uint64_t>(raw.n_tokens) + raw.payload_bytes;
  if (static_cast<std::uint64_t>(size) != expected) {
    return fail(Code::kCorrupt, "{} has {} bytes, its header says {}", name, size, expected);
  }
  return {};
}

Result<Opened> read_opened(File& file, const std::filesystem::path& path, const Fingerprint& fingerprint) {
  const std::string name = path.filename().string();
  if (!file.ok()) return fail(Code::kNotFound, "{} cannot be opened: {}", name, std::strerror(errno));
  const std::int64_t size = file.size();
  Opened o{};
  if (size < static_cast<std::int64_t>(sizeof(RawHeader)) || !file.read(std::as_writable_bytes(std::span(&o.raw, 1)))) {
    return fail(Code::kCorrupt, "{} is shorter than a header", name);
  }
  FATHOM_TRY(check_raw(o.raw, size, fingerprint, name));
  std::vector<std::byte> rest(o.raw.salt_bytes + sizeof(std::int32_t) * static_cast<std::size_t>(o.raw.n_tokens));
  if (!file.read(rest) || header_checksum(o.raw, rest) != o.raw.checksum) {
    return fail(Code::kCorrupt, "{} is damaged: the checksum of its header does not fit", name);
  }
  FileHeader& h = o.header;
  h.kind = static_cast<FileKind>(o.raw.kind);
  h.id = o.raw.id;
  h.parent = o.raw.parent;
  h.position = o.raw.position;
  h.drafted = o.raw.drafted;
  h.payload_bytes = o.raw.payload_bytes;
  h.salt.assign(reinterpret_cast<const char*>(rest.data()), o.raw.salt_bytes);
  h.tokens.resize(static_cast<std::size_t>(o.raw.n_tokens));
  if (!h.tokens.empty())
    std::memcpy(h.tokens.data(), rest.data() + o.raw.salt_bytes, sizeof(std::int32_t) * h.tokens.size());
  if (name != file_name(h.kind, h.id))
    return fail(Code::kCorrupt, "{} says that its name is {}", name, file_name(h.kind, h.id));
  return o;
}

}  // namespace

std::string Fingerprint::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Fingerprint fingerprint_of(std::string_view text) {
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  return {.low = h.low64, .high = h.high64};
}

std::uint64_t FileHeader::file_bytes() const {
  return sizeof(RawHeader) + salt.size() + sizeof(std::int32_t) * tokens.size() + payload_bytes;
}

std::string file_name(FileKind kind, std::uint64_t id) {
  return fmt::format("{:016x}.{}", id, kind == FileKind::kPage ? "page" : "state");
}

std::vector<std::byte> encode_file(const FileHeader& h, const Fingerprint& fingerprint,
                                   std::span<const std::byte> payload) {
  FATHOM_CHECK(payload.size() == h.payload_bytes && h.salt.size() <= kMaxSaltBytes, "a header describes its file");
  RawHeader raw{};
  raw.magic = kMagic;
  raw.version = kVersion;
  raw.kind = static_cast<std::uint32_t>(h.kind);
  raw.id = h.id;
  raw.parent = h.parent;
  raw.fingerprint_low = fingerprint.low;
  raw.fingerprint_high = fingerprint.high;
  raw.payload_bytes = h.payload_bytes;
  raw.payload_checksum = XXH3_64bits(payload.data(), payload.size());
  raw.position = h.position;
  raw.n_tokens = static_cast<std::int32_t>(h.tokens.size());
  raw.drafted = h.drafted;
  raw.salt_bytes = static_cast<std::uint32_t>(h.salt.size());
  std::vector<std::byte> out(h.file_bytes());
  std::byte* at = out.data() + sizeof raw;
  const auto put = [&at](const void* from, std::size_t n) {
    if (n > 0) std::memcpy(at, from, n);
    at += n;
  };
  put(h.salt.data(), h.salt.size());
  put(h.tokens.data(), sizeof(std::int32_t) * h.tokens.size());
  raw.checksum =
      header_checksum(raw, {out.data() + sizeof raw, static_cast<std::size_t>(at - out.data()) - sizeof raw});
  put(payload.data(), payload.size());
  std::memcpy(out.data(), &raw, sizeof raw);
  return out;
}

Result<> write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  {
    File file(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
    const bool written = file.ok() && file.write(bytes) && file.close();
    if (!written) {
      const int why = errno;
      ::unlink(temporary.c_str());
      return fail(why == ENOSPC || why == EDQUOT ? Code::kExhausted : Code::kNotFound, "cannot write {}: {}",
                  path.string(), std::strerror(why));
    }
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int why = errno;
    ::unlink(temporary.c_str());
    return fail(Code::kNotFound, "cannot name {}: {}", path.string(), std::strerror(why));
  }
  return {};
}

Result<FileHeader> read_file_header(const std::filesystem::path& path, const Fingerprint& fingerprint) {
  File file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  FATHOM_ASSIGN(Opened o, read_opened(file, path, fingerprint));
  return std::move(o.header);
}

Result<std::vector<std::byte>> read_file_payload(const std::filesystem::path& path, const Fingerprint& fingerprint) {
  File file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  FATHOM_ASSIGN(const Opened o, read_opened(file, path, fingerprint));
  std::vector<std::byte> payload(o.header.payload_bytes);
  if (!file.read(payload) || XXH3_64bits(payload.data(), payload.size()) != o.raw.payload_checksum) {
    return fail(Code::kCorrupt, "{} is damaged: the checksum of its contents does not fit", path.filename().string());
  }
  return payload;
}

}  // namespace fathom::cache
