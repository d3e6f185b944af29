#include "quant/entry.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "quant/bf16.h"
#include "quant/block.h"
#include "quant/e2m1.h"
#include "quant/e4m3.h"
#include "quant/ue8m0.h"

namespace fathom::quant {
namespace {

std::size_t blocks(std::size_t n, std::size_t block) { return (n + block - 1) / block; }
std::size_t round_up_4(std::size_t n) { return (n + 3) & ~std::size_t{3}; }

// Codes, then one scale per 64.
std::byte* encode_fp8(std::span<const float> x, std::byte* out) {
  std::byte* scales = out + x.size();
  for (std::size_t begin = 0; begin < x.size(); begin += kEntryBlock) {
    const auto part = x.subspan(begin, std::min<std::size_t>(kEntryBlock, x.size() - begin));
    const std::uint8_t scale = fp8_block_scale(part);
    for (const float v : part) *out++ = std::byte{to_e4m3(v / ue8m0_value(scale))};
    *scales++ = std::byte{scale};
  }
  return scales;
}

void decode_fp8(const std::byte* in, std::span<float> x) {
  const std::byte* scales = in + x.size();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float scale = ue8m0_value(static_cast<std::uint8_t>(scales[i / kEntryBlock]));
    x[i] = kE4m3Values[static_cast<std::uint8_t>(in[i])] * scale;
  }
}

// Packed pairs, then one scale per 32.
void encode_fp4(std::span<const float> x, std::byte* out) {
  std::byte* scales = out + x.size() / 2;
  for (std::size_t begin = 0; begin < x.size(); begin += kFp4Block) {
    const auto part = x.subspan(begin, std::min<std::size_t>(kFp4Block, x.size() - begin));
    const std::uint8_t scale = fp4_block_scale(part);
    for (std::size_t i = 0; i < part.size(); i += 2) {
      const unsigned low = to_e2m1(part[i] / ue8m0_value(scale));
      const unsigned high = to_e2m1(part[i + 1] / ue8m0_value(scale));
      *out++ = std::byte{static_cast<std::uint8_t>(low | (high << 4))};
    }
    *scales++ = std::byte{scale};
  }
}

void decode_fp4(const std::byte* in, std::span<float> x) {
  const std::byte* scales = in + x.size() / 2;
  for (std::size_t i = 0; i < x.size(); i += 2) {
    const float scale = ue8m0_value(static_cast<std::uint8_t>(scales[i / kFp4Block]));
    const auto pair = static_cast<std::uint8_t>(in[i / 2]);
    x[i] = kE2m1Values[pair & 15U] * scale;
    x[i + 1] = kE2m1Values[pair >> 4] * scale;
  }
}

}  // namespace

std::size_t EntryCodec::bytes() const {
  const auto d = static_cast<std::size_t>(dim);
  const auto r = static_cast<std::size_t>(rope_dim);
  switch (format) {
    case EntryFormat::kF32: return 4 * d;
    case EntryFormat::kFp8RopeF32: return round_up_4(4 * r + (d - r) + blocks(d - r, kEntryBlock));
    case EntryFormat::kFp8RopeBf16: return round_up_4(2 * r + (d - r) + blocks(d - r, kEntryBlock));
    case EntryFormat::kFp4: return round_up_4(d / 2 + blocks(d, kFp4Block));
  }
  return 0;
}

void EntryCodec::encode(std::span<const float> x, std::byte* out) const {
  FATHOM_DCHECK(x.size() == static_cast<std::size_t>(dim), "an entry has dim values");
  const auto plain = x.first(static_cast<std::size_t>(dim - rope_dim));
  const auto rope = x.last(static_cast<std::size_t>(rope_dim));
  switch (format) {
    case EntryFormat::kF32: std::memcpy(out, x.data(), 4 * x.size()); return;
    case EntryFormat::kFp4: encode_fp4(x, out); return;
    case EntryFormat::kFp8RopeF32:
      std::memcpy(out, rope.data(), 4 * rope.size());
      encode_fp8(plain, out + 4 * rope.size());
      return;
    case EntryFormat::kFp8RopeBf16:
      for (std::size_t i = 0; i < rope.size(); ++i) {
        const Bf16 b = to_bf16(rope[i]);
        std::memcpy(out + 2 * i, &b, 2);
      }
      encode_fp8(plain, out + 2 * rope.size());
      return;
  }
}

void EntryCodec::decode(const std::byte* in, std::span<float> x) const {
  FATHOM_DCHECK(x.size() == static_cast<std::size_t>(dim), "an entry has dim values");
  const auto plain = x.first(static_cast<std::size_t>(dim - rope_dim));
  const auto rope = x.last(static_cast<std::size_t>(rope_dim));
  switch (format) {
    case EntryFormat::kF32: std::memcpy(x.data(), in, 4 * x.size()); return;
    case EntryFormat::kFp4: decode_fp4(in, x); return;
    case EntryFormat::kFp8RopeF32:
      std::memcpy(rope.data(), in, 4 * rope.size());
      decode_fp8(in + 4 * rope.size(), plain);
      return;
    case EntryFormat::kFp8RopeBf16:
      for (std::size_t i = 0; i < rope.size(); ++i) {
        Bf16 b;
        std::memcpy(&b, in + 2 * i, 2);
        rope[i] = to_f32(b);
      }
      decode_fp8(in + 2 * rope.size(), plain);
      return;
  }
}

}  // namespace fathom::quant
