#include "checkpoint/content.h"

#include <atomic>
#include <cstring>
#include <limits>

#include "checkpoint/checkpoint.h"

namespace fathom::checkpoint {
namespace {

// A count of bad elements and the first of them.
struct Bad {
  std::int64_t count = 0;
  std::int64_t first = 0;
};

template <class T, class IsBad>
Bad scan(std::span<const std::byte> bytes, const IsBad& is_bad) {
  Bad bad;
  const auto n = static_cast<std::int64_t>(bytes.size() / sizeof(T));
  for (std::int64_t i = 0; i < n; ++i) {
    T v;
    std::memcpy(&v, bytes.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    if (is_bad(v) && bad.count++ == 0) bad.first = i;
  }
  return bad;
}

// As scan() of T, eight bytes at a time: an element is bad where its exponent field is all ones, that is, where adding
// one at the field's lowest bit carries out of it. E8M0 is all field: its top bit must be set besides.
template <class T, class IsBad>
Bad scan_words(std::span<const std::byte> bytes, std::uint64_t field, std::uint64_t carry, bool all_field,
               const IsBad& is_bad) {
  Bad bad;
  const std::size_t whole = bytes.size() / 8 * 8;
  const std::uint64_t top = field + carry;  // the bit the carry lands in, of every element
  const auto add = [&](std::size_t from, std::size_t n) {
    const Bad some = scan<T>(bytes.subspan(from, n), is_bad);
    if (bad.count == 0) bad.first = static_cast<std::int64_t>(from / sizeof(T)) + some.first;
    bad.count += some.count;
  };
  for (std::size_t at = 0; at < whole; at += 8) {
    std::uint64_t w = 0;
    std::memcpy(&w, bytes.data() + at, 8);
    std::uint64_t hit = ((w & field) + carry) & top;
    if (all_field) hit &= w;
    if (hit != 0) add(at, 8);
  }
  if (whole < bytes.size()) add(whole, bytes.size() - whole);
  return bad;
}

// `scale`: the values multiply weights and must be positive.
Bad scan_values(DType dtype, std::span<const std::byte> bytes, bool scale) {
  constexpr std::uint64_t kBytes = 0x0101010101010101ULL;
  constexpr std::uint64_t kHalves = 0x0001000100010001ULL;
  constexpr std::uint64_t kWords = 0x0000000100000001ULL;
  switch (dtype) {
    case DType::kF8E8M0:
      return scan_words<std::uint8_t>(bytes, 0x7f * kBytes, kBytes, true, [](std::uint8_t v) { return v == 255; });
    case DType::kF8E4M3:
      return scan_words<std::uint8_t>(bytes, 0x7f * kBytes, kBytes, false,
                                      [](std::uint8_t v) { return (v & 0x7fU) == 0x7fU; });
    case DType::kBf16:
      return scan_words<std::uint16_t>(bytes, 0x7f80 * kHalves, 0x80 * kHalves, false,
                                       [](std::uint16_t v) { return (v & 0x7f80U) == 0x7f80U; });
    case DType::kF32:
      if (scale) return scan<float>(bytes, [](float v) { return !(v > 0 && v <= std::numeric_limits<float>::max()); });
      return scan_words<std::uint32_t>(bytes, 0x7f800000 * kWords, 0x800000 * kWords, false,
                                       [](std::uint32_t v) { return (v & 0x7f800000U) == 0x7f800000U; });
    case DType::kFp4x2:  // has no NaN
    case DType::kI32:
    case DType::kI64: return {};
  }
  return {};
}

std::string expected_values(DType dtype, bool scale) {
  if (dtype == DType::kF8E8M0) return "no E8M0 code 255 (NaN)";
  if (dtype == DType::kF8E4M3) return "no E4M3 code 0x7F or 0xFF (NaN)";
  return scale ? "finite values above 0" : "finite values";
}

}  // namespace

void check_ids(const Checkpoint& c, Problems& problems) {
  const std::int64_t experts = c.config().routed_experts;
  for (std::int32_t l = 0; l < c.config().hash_layers; ++l) {
    const Tensor* t = c.find(fmt::format("layers.{}.ffn.gate.tid2eid", l));
    if (t == nullptr || t->dtype != DType::kI64) continue;
    const Bad bad = scan<std::int64_t>(t->bytes, [experts](std::int64_t v) { return v < 0 || v >= experts; });
    if (bad.count == 0) continue;
    std::int64_t value = 0;
    std::memcpy(&value, t->bytes.data() + bad.first * 8, 8);
    problems.add({std::string(c.file_of(*t)), std::string(t->stored_name()),
                  fmt::format("expert id {} at [{}, {}] ({} ids out of range)", value, bad.first / t->shape[1],
                              bad.first % t->shape[1], bad.count),
                  fmt::format("ids 0 to {}", experts - 1)});
  }
}

void check_values(const Checkpoint& c, ThreadPool& pool, Problems& problems,
                  const std::function<void(std::uint64_t done, std::uint64_t all)>& progress) {
  const std::span<const Tensor> tensors = c.tensors();
  const std::uint64_t all = c.tensor_bytes();
  std::vector<Bad> bad(tensors.size());
  std::atomic<std::uint64_t> done{0};
  // Small groups, so that the calling thread comes by to report.
  constexpr std::size_t kGroup = 256;
  for (std::size_t from = 0; from < tensors.size(); from += kGroup) {
    const std::size_t n = std::min(kGroup, tensors.size() - from);
    pool.parallel_for(static_cast<std::int64_t>(n), 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::size_t at = from + static_cast<std::size_t>(i);
        bad[at] = scan_values(tensors[at].dtype, tensors[at].bytes, tensors[at].name.ends_with(".scale"));
        done += tensors[at].bytes.size();
      }
    });
    if (progress) progress(done, all);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (bad[i].count == 0) continue;
    const Tensor& t = tensors[i];
    problems.add({std::string(c.file_of(t)), std::string(t.stored_name()),
                  fmt::format("{} such elements, the first at {}", bad[i].count, bad[i].first),
                  expected_values(t.dtype, t.name.ends_with(".scale"))});
  }
}

}  // namespace fathom::checkpoint
