// Where a sequence's entries lie in device memory, and how they are read and written: batch.h and quant/entry.h for
// kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/batch.h"
#include "ops/cuda/numbers.cuh"

namespace fathom::ops::cuda {

// quant::EntryCodec with its size worked out.
struct DeviceCodec {
  quant::EntryFormat format = quant::EntryFormat::kF32;
  int dim = 0;
  int rope_dim = 0;
  int bytes = 0;

  DeviceCodec() = default;
  explicit DeviceCodec(const quant::EntryCodec& c)
      : format(c.format), dim(c.dim), rope_dim(c.rope_dim), bytes(static_cast<int>(c.bytes())) {}
};

struct DeviceRing {
  std::int64_t offset;
  int capacity;
  DeviceCodec codec;

  explicit DeviceRing(const WindowRing& r) : offset(r.offset), capacity(r.capacity), codec(r.codec) {}
  __device__ std::byte* at(std::byte* slot, int position) const {
    return slot + offset + static_cast<std::int64_t>(position % capacity) * codec.bytes;
  }
};

struct DevicePages {
  std::int64_t offset;
  int ratio;
  DeviceCodec codec;

  explicit DevicePages(const EntryPages& p) : offset(p.offset), ratio(p.ratio), codec(p.codec) {}
  __device__ std::byte* at(const Segment& s, int entry) const {
    const int per_page = kPageTokens / ratio;
    return s.pages[entry / per_page] + offset + static_cast<std::int64_t>(entry % per_page) * codec.bytes;
  }
};

__device__ inline std::uint32_t byte_at(const std::byte* p, int i) { return static_cast<std::uint32_t>(p[i]); }

// Values [i, i + 4) of a stored entry; i, the dims and the rotated dims are multiples of 4.
__device__ inline float4 decode4(const DeviceCodec& c, const std::byte* e, int i) {
  using quant::EntryFormat;
  if (c.format == EntryFormat::kF32) {
    const auto* x = reinterpret_cast<const float*>(e) + i;
    return {x[0], x[1], x[2], x[3]};
  }
  if (c.format == EntryFormat::kFp4) {
    const std::uint32_t pairs = *reinterpret_cast<const std::uint16_t*>(e + i / 2);
    const float scale = ue8m0(byte_at(e, c.dim / 2 + i / quant::kFp4Block));
    return {e2m1(pairs & 15U) * scale, e2m1((pairs >> 4) & 15U) * scale, e2m1((pairs >> 8) & 15U) * scale,
            e2m1(pairs >> 12) * scale};
  }
  const int plain = c.dim - c.rope_dim;
  const bool wide = c.format == EntryFormat::kFp8RopeF32;
  if (i >= plain) {
    if (wide) {
      const auto* x = reinterpret_cast<const float*>(e) + (i - plain);
      return {x[0], x[1], x[2], x[3]};
    }
    const auto* x = reinterpret_cast<const std::uint32_t*>(e) + (i - plain) / 2;
    return {__uint_as_float(x[0] << 16), __uint_as_float(x[0] & 0xffff0000U), __uint_as_float(x[1] << 16),
            __uint_as_float(x[1] & 0xffff0000U)};
  }
  const std::byte* codes = e + (wide ? 4 : 2) * c.rope_dim;
  const std::uint32_t four = *reinterpret_cast<const std::uint32_t*>(codes + i);
  const float scale = ue8m0(byte_at(codes, plain + i / quant::kEntryBlock));
  return {e4m3(four & 255U) * scale, e4m3((four >> 8) & 255U) * scale, e4m3((four >> 16) & 255U) * scale,
          e4m3(four >> 24) * scale};
}

// EntryCodec::encode in pieces, each the work of one warp: blocks that share a scale, and rotated dims that have none.
__device__ inline int pieces_of(const DeviceCodec& c) {
  using quant::EntryFormat;
  if (c.format == EntryFormat::kF32) return 1;
  if (c.format == EntryFormat::kFp4) return (c.dim + quant::kFp4Block - 1) / quant::kFp4Block;
  return 1 + (c.dim - c.rope_dim + quant::kEntryBlock - 1) / quant::kEntryBlock;
}

// x: dim values, in shared or global memory.
__device__ inline void encode_piece(const DeviceCodec& c, const float* x, std::byte* out, int piece) {
  using quant::EntryFormat;
  const int lane = threadIdx.x % kWarp;
  if (c.format == EntryFormat::kF32) {
    for (int i = lane; i < c.dim; i += kWarp) reinterpret_cast<float*>(out)[i] = x[i];
    return;
  }
  if (c.format == EntryFormat::kFp4) {
    const int i = piece * quant::kFp4Block + lane;
    const float v = i < c.dim ? x[i] : 0.0F;
    const bool has_nan = __any_sync(kAll, isnan(v)) != 0;
    const std::uint32_t scale = fp4_scale_code(warp_max(fabsf(v)), has_nan);
    const std::uint32_t code = e2m1_code(__fdiv_rn(v, ue8m0(scale)));
    const std::uint32_t next = __shfl_down_sync(kAll, code, 1);
    if (lane % 2 == 0 && i < c.dim) out[i / 2] = static_cast<std::byte>(code | next << 4);
    if (lane == 0) out[c.dim / 2 + piece] = static_cast<std::byte>(scale);
    return;
  }
  const int plain = c.dim - c.rope_dim;
  const bool wide = c.format == EntryFormat::kFp8RopeF32;
  if (piece == 0) {
    for (int i = lane; i < c.rope_dim; i += kWarp) {
      if (wide) reinterpret_cast<float*>(out)[i] = x[plain + i];
      else reinterpret_cast<std::uint16_t*>(out)[i] = static_cast<std::uint16_t>(bf16_bits(x[plain + i]));
    }
    return;
  }
  out += (wide ? 4 : 2) * c.rope_dim;
  const int i = (piece - 1) * quant::kEntryBlock + lane;
  const int j = i + kWarp;
  const float a = i < plain ? x[i] : 0.0F;
  const float b = j < plain ? x[j] : 0.0F;
  const std::uint32_t code = fp8_scale_code(warp_max(fmaxf(fabsf(a), fabsf(b))));
  const float scale = ue8m0(code);
  if (i < plain) out[i] = static_cast<std::byte>(e4m3_code(__fdiv_rn(a, scale)));
  if (j < plain) out[j] = static_cast<std::byte>(e4m3_code(__fdiv_rn(b, scale)));
  if (lane == 0) out[plain + piece - 1] = static_cast<std::byte>(code);
}

}  // namespace fathom::ops::cuda
