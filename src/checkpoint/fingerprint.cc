#include "checkpoint/fingerprint.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>

namespace fathom::checkpoint {
namespace {

constexpr std::size_t kSample = 64;  // bytes taken from each of three places

// FNV-1a: what is told apart here is accident, not malice.
class Hash {
 public:
  void mix(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) value_ = (value_ ^ static_cast<std::uint64_t>(b)) * 0x100000001b3U;
  }
  void mix(std::string_view text) {
    mix(std::as_bytes(std::span(text)));
    mix(std::uint64_t{text.size()});
  }
  void mix(std::uint64_t number) { mix(std::as_bytes(std::span(&number, 1))); }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

void mix_samples(Hash& hash, std::span<const std::byte> bytes) {
  const std::size_t n = std::min(kSample, bytes.size());
  hash.mix(bytes.first(n));
  hash.mix(bytes.subspan((bytes.size() - n) / 2, n));
  hash.mix(bytes.last(n));
}

}  // namespace

std::uint64_t fingerprint(const Checkpoint& checkpoint) {
  Hash hash;
  for (const ShardInfo& file : checkpoint.files()) {
    hash.mix(file.bytes);
    std::error_code error;  // a synthetic checkpoint has no files: its bytes tell it apart
    const auto time = std::filesystem::last_write_time(checkpoint.path() / file.name, error);
    if (!error) hash.mix(static_cast<std::uint64_t>(time.time_since_epoch().count()));
  }
  for (const Tensor& t : checkpoint.tensors()) {
    hash.mix(t.name);
    hash.mix(static_cast<std::uint64_t>(t.dtype));
    for (const std::int64_t extent : t.shape) hash.mix(static_cast<std::uint64_t>(extent));
    if (t.name.find(".experts.") == std::string::npos) mix_samples(hash, t.bytes);
  }
  return hash.value();
}

}  // namespace fathom::checkpoint
