#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace fathom {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

std::int64_t mtime_ns(const struct stat& s) {
  return std::int64_t{s.st_mtim.tv_sec} * 1'000'000'000 + s.st_mtim.tv_nsec;
}

Result<struct stat> open_regular(const std::filesystem::path& path, const Descriptor& file) {
  if (file.get() < 0) return fail(Code::kNotFound, "{}: cannot open: {}", path.string(), std::strerror(errno));
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) {
    return fail(Code::kNotFound, "{}: cannot stat: {}", path.string(), std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return fail(Code::kNotFound, "{}: not a regular file", path.string());
  return info;
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: a named pipe in the file's place must not hang the open; it is refused as not regular.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  FATHOM_ASSIGN(const struct stat info, open_regular(path, file));
  MappedFile m;
  m.path_ = path;
  m.size_ = static_cast<std::size_t>(info.st_size);
  m.mtime_ns_ = mtime_ns(info);
  if (m.size_ == 0) return m;
  void* p = ::mmap(nullptr, m.size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (p == MAP_FAILED) {
    m.size_ = 0;
    return fail(Code::kExhausted, "{}: cannot map {} bytes: {}", path.string(), info.st_size, std::strerror(errno));
  }
  m.data_ = static_cast<const std::byte*>(p);
  return m;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mtime_ns_(other.mtime_ns_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mtime_ns_, other.mtime_ns_);
  return *this;
}

MappedFile::~MappedFile() {
  // mmap gave these pages and munmap only takes them back; the mapping itself was never writable.
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

bool MappedFile::changed() const {
  struct stat info = {};
  if (::stat(path_.c_str(), &info) != 0) return true;
  return static_cast<std::size_t>(info.st_size) != size_ || mtime_ns(info) != mtime_ns_;
}

Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  FATHOM_ASSIGN(const struct stat info, open_regular(path, file));
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size > max_bytes) {
    return fail(Code::kInvalid, "{}: {} bytes, more than the {} such a file may have", path.string(), size, max_bytes);
  }
  std::string text(size, '\0');
  std::size_t have = 0;
  while (have < size) {
    const ssize_t n = ::read(file.get(), text.data() + have, size - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(Code::kNotFound, "{}: cannot read: {}", path.string(), std::strerror(errno));
    if (n == 0) return fail(Code::kCorrupt, "{}: became shorter while it was read", path.string());
    have += static_cast<std::size_t>(n);
  }
  return text;
}

}  // namespace fathom
