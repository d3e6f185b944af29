// Cache entries to f32 on whole registers: the values of quant::EntryCodec::decode (FP4's minus zero comes out as
// zero).
#if defined(FATHOM_OPS_SIMD_ENTRY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_OPS_SIMD_ENTRY_INL_H_
#undef FATHOM_OPS_SIMD_ENTRY_INL_H_
#else
#define FATHOM_OPS_SIMD_ENTRY_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "ops/simd/decode-inl.h"
#include "quant/block.h"
#include "quant/entry.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {

// n E4M3 codes times one scale.
HWY_INLINE void decode_fp8(Bytes codes, std::int64_t n, float scale, float* x) {
  const hn::Rebind<std::int8_t, D> d8;
  const hn::Rebind<std::int16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> df16;
  const auto keep = hn::Set(d16, static_cast<std::int16_t>(0xbf80));
  const auto nan_value = hn::Set(D(), 480 * Fp8Format::kUnit);  // what the NaN codes look like as f16
  const auto nan = hn::Set(D(), std::numeric_limits<float>::quiet_NaN());
  const auto unit = hn::Set(D(), 1.0F / Fp8Format::kUnit);
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const auto code = hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(codes + i));
    const auto bits = hn::And(hn::ShiftLeft<7>(hn::PromoteTo(d16, code)), keep);
    const auto value = hn::PromoteTo(D(), hn::BitCast(df16, bits));
    const auto number = hn::IfThenElse(hn::Eq(hn::Abs(value), nan_value), nan, value);
    hn::StoreU(hn::Mul(hn::Mul(number, unit), hn::Set(D(), scale)), D(), x + i);
  }
  for (; i < n; ++i) x[i] = quant::kE4m3Values[codes[i]] * scale;
}

// One block of 32 E2M1 codes times one scale.
HWY_INLINE void decode_fp4_block(Bytes pairs, float scale, float* x) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 32; ++i) x[i] = quant::kE2m1Values[(pairs[i / 2] >> (4 * (i % 2))) & 15U] * scale;
#else
  const hn::CappedTag<std::uint8_t, 16> d8;
  const hn::RebindToSigned<decltype(d8)> di8;
  const hn::Rebind<std::int8_t, hn::CappedTag<float, 4> > d4;
  const hn::Rebind<std::int32_t, hn::CappedTag<float, 4> > d32;
  const hn::CappedTag<float, 4> df;
  const auto table = hn::LoadU(di8, Fp4Format::kDoubled.data());
  const auto bytes = hn::LoadU(d8, pairs);
  const auto even = hn::And(bytes, hn::Set(d8, std::uint8_t{15}));
  const auto odd = hn::ShiftRight<4>(bytes);
  std::int8_t doubled[32];
  hn::StoreU(hn::TableLookupBytes(table, hn::BitCast(di8, hn::InterleaveLower(d8, even, odd))), di8, doubled);
  hn::StoreU(hn::TableLookupBytes(table, hn::BitCast(di8, hn::InterleaveUpper(d8, even, odd))), di8, doubled + 16);
  const auto factor = hn::Set(df, scale * (1.0F / Fp4Format::kUnit));
  for (int i = 0; i < 32; i += 4) {
    const auto v = hn::PromoteTo(d32, hn::LoadU(d4, doubled + i));
    hn::StoreU(hn::Mul(hn::ConvertTo(df, v), factor), df, x + i);
  }
#endif
}

HWY_INLINE void decode_entry(const quant::EntryCodec& codec, const std::byte* in, float* x) {
  const auto dim = static_cast<std::size_t>(codec.dim);
  switch (codec.format) {
    case quant::EntryFormat::kF32: std::memcpy(x, in, 4 * dim); return;
    case quant::EntryFormat::kFp8RopeF32: {
      const std::int64_t plain = codec.dim - codec.rope_dim;
      std::memcpy(x + plain, in, 4 * static_cast<std::size_t>(codec.rope_dim));
      const Bytes codes = bytes_of(in) + 4 * codec.rope_dim;
      for (std::int64_t b = 0; b * quant::kEntryBlock < plain; ++b) {
        const std::int64_t first = b * quant::kEntryBlock;
        const std::int64_t n = std::min<std::int64_t>(quant::kEntryBlock, plain - first);
        decode_fp8(codes + first, n, quant::ue8m0_value(codes[plain + b]), x + first);
      }
      return;
    }
    case quant::EntryFormat::kFp4: {
      if (codec.dim % quant::kFp4Block != 0) break;
      const Bytes pairs = bytes_of(in);
      for (std::int64_t b = 0; b < codec.dim / quant::kFp4Block; ++b) {
        decode_fp4_block(pairs + 16 * b, quant::ue8m0_value(pairs[codec.dim / 2 + b]), x + 32 * b);
      }
      return;
    }
    case quant::EntryFormat::kFp8RopeBf16: break;
  }
  codec.decode(in, {x, dim});
}

}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
