// How one cache entry (a window key/value, a compressed entry, an index key) stands in memory. model.md 9.5, 9.6, 9.7.
//
// A codec is lossless for what it is given: the model quantises an entry first (quant/block.h), and storing a quantised
// entry as codes and scales and reading it back gives the same bits. So a prefix read from the cache and one computed
// in this step cannot differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fathom::quant {

enum class EntryFormat : std::uint8_t {
  kF32,          // `float` numerics: dim f32
  kFp8RopeF32,   // `official`: rope dims f32, the others E4M3 with one E8M0 per 64
  kFp8RopeBf16,  // `official-bf16`: rope dims bf16 (584 bytes for 512 dims of which 64 rope)
  kFp4,          // index keys of both official numerics: all dims E2M1 with one E8M0 per 32
};

struct EntryCodec {
  EntryFormat format = EntryFormat::kF32;
  std::int32_t dim = 0;
  std::int32_t rope_dim = 0;  // the last rope_dim of dim; unused by kF32 and kFp4

  // Bytes from one entry to the next, a multiple of 4.
  std::size_t bytes() const;
  // x: dim values, quantised as the format says (else they are rounded to it). out: bytes() bytes, any alignment.
  void encode(std::span<const float> x, std::byte* out) const;
  void decode(const std::byte* in, std::span<float> x) const;

  bool operator==(const EntryCodec&) const = default;
};

}  // namespace fathom::quant
