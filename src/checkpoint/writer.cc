#include "checkpoint/writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"

namespace fathom::checkpoint {
namespace {

Code code_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return Code::kExhausted;
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case EROFS: return Code::kNotFound;
    default: return Code::kInternal;
  }
}

tl::unexpected<Error> fail_errno(const std::filesystem::path& path, std::string_view doing) {
  const int error = errno;
  return fail(code_of(error), "{}: cannot {}: {}", path.string(), doing, std::strerror(error));
}

std::string json_string(std::string_view s) {
  return nlohmann::json(s).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return fail(Code::kInvalid, "{}: exists and is not a regular file", path.string());
  }
  AtomicFile f;
  f.target_ = path;
  f.temporary_ = path;
  f.temporary_ += fmt::format(".{}.tmp", ::getpid());
  f.fd_ = ::open(f.temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (f.fd_ < 0) return fail_errno(f.temporary_, "create");
  return f;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : target_(std::move(other.target_)), temporary_(std::move(other.temporary_)), fd_(std::exchange(other.fd_, -1)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(target_, other.target_);
  std::swap(temporary_, other.temporary_);
  std::swap(fd_, other.fd_);
  return *this;
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

Result<> AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // One call never moves more than 2 GiB; 1 GiB is a round number below.
    const ssize_t n = ::write(fd_, bytes.data(), std::min<std::size_t>(bytes.size(), std::size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(target_, "write");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Result<> AtomicFile::extend(std::uint64_t bytes) {
  const off_t at = ::lseek(fd_, 0, SEEK_END);
  if (at < 0 || ::ftruncate(fd_, at + static_cast<off_t>(bytes)) != 0) return fail_errno(target_, "extend");
  return {};
}

Result<> AtomicFile::commit(bool durable) {
  // A full disk may only show here.
  if (durable && ::fsync(fd_) != 0) return fail_errno(target_, "write to disk");
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) return fail_errno(target_, "rename into place");
  ::close(std::exchange(fd_, -1));
  return {};
}

Result<> write_text_file(const std::filesystem::path& path, std::string_view text) {
  FATHOM_ASSIGN(AtomicFile file, AtomicFile::create(path));
  FATHOM_TRY(file.write(std::as_bytes(std::span(text))));
  return file.commit();
}

std::string header_text(std::span<const OutTensor> tensors, const Metadata& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (std::size_t i = 0; i < metadata.size(); ++i) {
      json +=
          fmt::format("{}{}:{}", i == 0 ? "" : ",", json_string(metadata[i].first), json_string(metadata[i].second));
    }
    json += "}";
  }
  std::uint64_t at = 0;
  for (const OutTensor& t : tensors) {
    std::int64_t n = 0;
    FATHOM_CHECK(element_count(t.shape, n), "a tensor's shape has a product");
    const std::uint64_t end = at + static_cast<std::uint64_t>(n) * size_of(t.dtype);
    json +=
        fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", json.size() == 1 ? "" : ",",
                    json_string(t.name), name_of(t.dtype), fmt::join(t.shape, ","), at, end);
    at = end;
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = json.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + json;
}

Result<> write_safetensors(const std::filesystem::path& path, std::vector<OutTensor> tensors,
                           const Metadata& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const OutTensor& a, const OutTensor& b) {
    const std::size_t sa = size_of(a.dtype);
    const std::size_t sb = size_of(b.dtype);
    return sa != sb ? sa > sb : a.name < b.name;
  });
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const OutTensor& t : tensors) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    return fail(Code::kInvalid, "{}: tensor {} appears twice", path.string(), *twice);
  }
  for (const OutTensor& t : tensors) {
    std::int64_t n = 0;
    FATHOM_CHECK(element_count(t.shape, n) && static_cast<std::size_t>(n) * size_of(t.dtype) == t.bytes.size(),
                 "a tensor has the bytes of its shape");
  }
  FATHOM_ASSIGN(AtomicFile file, AtomicFile::create(path));
  const std::string header = header_text(tensors, metadata);
  FATHOM_TRY(file.write(std::as_bytes(std::span(header))));
  for (const OutTensor& t : tensors) FATHOM_TRY(file.write(t.bytes));
  return file.commit();
}

}  // namespace fathom::checkpoint
