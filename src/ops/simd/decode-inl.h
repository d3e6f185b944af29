// Checkpoint weights into the sixteen lanes of dot16 (lanes-inl.h), a chunk of 128 columns of one row at a time.
//
// Lane i of step n of a chunk holds column 16n + i; of packed FP4, column 8i + n: one register then holds all 128
// nibbles and a shift brings the next sixteen into place. x is dealt out the same way once (pack_row).
//
// What a format hands out is the stored value times kUnit, exactly: the unit is what its cheapest decoding gives, and
// the finished sum is divided by it, exactly again unless it leaves the range of f32.
#if defined(FATHOM_OPS_SIMD_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_OPS_SIMD_DECODE_INL_H_
#undef FATHOM_OPS_SIMD_DECODE_INL_H_
#else
#define FATHOM_OPS_SIMD_DECODE_INL_H_
#endif

#include <array>
#include <bit>

#include "ops/simd/lanes-inl.h"
#include "ops/weight.h"
#include "quant/bf16.h"
#include "quant/e2m1.h"
#include "quant/e4m3.h"
#include "quant/ue8m0.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {

using Bytes = const std::uint8_t*;
inline constexpr int kChunk = 128;

HWY_INLINE Bytes bytes_of(const std::byte* p) { return reinterpret_cast<Bytes>(p); }

// One scale as f32. index: in scales, not bytes.
HWY_INLINE float scale_value(const Weight& w, std::int64_t index) {
  if (w.scale_dtype == DType::kF32) {
    float s;
    std::memcpy(&s, w.scales + 4 * index, sizeof(s));
    return s;
  }
  return quant::ue8m0_value(static_cast<std::uint8_t>(w.scales[index]));
}

// The nibble of a 32-bit lane that each step takes: n / 2 places from the bottom, first in the upper half, then in the
// lower.
inline constexpr int kFp4Order[8] = {4, 0, 5, 1, 6, 2, 7, 3};

// Most formats: a register of weights for each step, multiplied by the register of x of that step.
struct PlainSteps {
  static constexpr int kSteps = 8;  // per chunk; x takes 16 * kSteps floats
  static constexpr int kFetchAhead =
      0;  // bytes to prefetch ahead of the weights in use; 0: the processor does it better
  static HWY_INLINE V multiply_add(V x, V w, V sum) { return hn::MulAdd(x, w, sum); }
};

struct F32Format : PlainSteps {
  static constexpr bool kScaled = false;
  static constexpr float kUnit = 1;
  static constexpr int kChunkBytes = 4 * kChunk;

  // The steps of the first or second half of a chunk.
  HWY_INLINE void decode(Bytes chunk, int half, Lanes* out) const {
    FATHOM_UNROLL for (int i = 0; i < 4; ++i) {
      const int n = 4 * half + i;
      FATHOM_UNROLL for (int p = 0; p < kParts; ++p) {
        std::memcpy(&out[i].part[p], chunk + 4 * (16 * n + p * kWidth), 4 * kWidth);
      }
    }
  }
};

struct Bf16Format : PlainSteps {
  static constexpr bool kScaled = false;
  static constexpr float kUnit = 1;
  static constexpr int kChunkBytes = 2 * kChunk;

  HWY_INLINE void decode(Bytes chunk, int half, Lanes* out) const {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<std::uint32_t, D> d32;
    FATHOM_UNROLL for (int i = 0; i < 4; ++i) {
      const int n = 4 * half + i;
      FATHOM_UNROLL for (int p = 0; p < kParts; ++p) {
        const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(chunk + 2 * (16 * n + p * kWidth)));
        out[i].part[p] = hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
      }
    }
  }
};

#if HWY_TARGET == HWY_AVX3_DL
// The upper two bytes of f32(value * 2^-8) of the 128 codes without their sign.
struct Fp8Tables {
  alignas(64) std::uint8_t high[128];
  alignas(64) std::uint8_t low[128];
  alignas(64) std::uint8_t order[64];
};
inline constexpr Fp8Tables kFp8Tables = [] {
  Fp8Tables t{};
  for (unsigned c = 0; c < 128; ++c) {
    const bool nan = c == 127;
    const auto bits =
        nan ? 0x7fc00000U : std::bit_cast<std::uint32_t>(quant::e4m3_value(static_cast<std::uint8_t>(c)) * 0x1p-8F);
    t.high[c] = static_cast<std::uint8_t>(bits >> 24);
    t.low[c] = static_cast<std::uint8_t>(bits >> 16);
  }
  // Where the byte at each place must come from, so that interleaving two byte vectors (within 16-byte blocks) and
  // taking the lower and upper halves of the 32-bit lanes gives columns in order.
  for (unsigned i = 0; i < 16; ++i) {
    const unsigned block = i / 4 * 16 + i % 4 * 2;
    t.order[block + 1] = static_cast<std::uint8_t>(i);
    t.order[block] = static_cast<std::uint8_t>(i + 16);
    t.order[block + 9] = static_cast<std::uint8_t>(i + 32);
    t.order[block + 8] = static_cast<std::uint8_t>(i + 48);
  }
  return t;
}();
#endif

struct Fp8Format : PlainSteps {
  static constexpr bool kScaled = true;
  static constexpr bool kScalePerRow = false;  // 128 rows share one
  static constexpr float kUnit = 0x1p-8F;      // E4M3 with its exponent read as that of f16
  static constexpr int kChunkBytes = kChunk;

#if HWY_TARGET == HWY_AVX3_DL
  static constexpr bool kNanInTable = true;
  __m512i high0, high1, low0, low1, order, sign, upper;

  HWY_INLINE Fp8Format()
      : high0(_mm512_load_si512(kFp8Tables.high)),
        high1(_mm512_load_si512(kFp8Tables.high + 64)),
        low0(_mm512_load_si512(kFp8Tables.low)),
        low1(_mm512_load_si512(kFp8Tables.low + 64)),
        order(_mm512_load_si512(kFp8Tables.order)),
        sign(_mm512_set1_epi8(static_cast<char>(0x80))),
        upper(_mm512_set1_epi32(static_cast<int>(0xffff0000U))) {}

  // The 64 codes of half a chunk as bf16: lane i of `first` has column 16 + i below column i, `last` the next 32 alike.
  HWY_INLINE void decode_words(Bytes chunk, int half, __m512i& first, __m512i& last) const {
    const __m512i codes = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(chunk + 64 * half));
    const __m512i low = _mm512_permutex2var_epi8(low0, codes, low1);
    __m512i high = _mm512_permutex2var_epi8(high0, codes, high1);
    high = _mm512_ternarylogic_epi32(high, codes, sign, 0xf8);  // high | (codes & sign)
    first = _mm512_unpacklo_epi8(low, high);
    last = _mm512_unpackhi_epi8(low, high);
  }
  HWY_INLINE void decode(Bytes chunk, int half, Lanes* out) const {
    __m512i first;
    __m512i last;
    decode_words(chunk, half, first, last);
    out[0].part[0].raw = _mm512_castsi512_ps(_mm512_and_si512(first, upper));
    out[1].part[0].raw = _mm512_castsi512_ps(_mm512_slli_epi32(first, 16));
    out[2].part[0].raw = _mm512_castsi512_ps(_mm512_and_si512(last, upper));
    out[3].part[0].raw = _mm512_castsi512_ps(_mm512_slli_epi32(last, 16));
  }
#else
  static constexpr bool kNanInTable = false;
  HWY_INLINE void decode(Bytes chunk, int half, Lanes* out) const {
    const hn::Rebind<std::int8_t, D> d8;
    const hn::Rebind<std::int16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    const auto keep = hn::Set(d16, static_cast<std::int16_t>(0xbf80));
    FATHOM_UNROLL for (int i = 0; i < 4; ++i) {
      const int n = 4 * half + i;
      FATHOM_UNROLL for (int p = 0; p < kParts; ++p) {
        const auto codes = hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(chunk + 16 * n + p * kWidth));
        const auto bits = hn::And(hn::ShiftLeft<7>(hn::PromoteTo(d16, codes)), keep);
        out[i].part[p] = hn::PromoteTo(D(), hn::BitCast(df16, bits));
      }
    }
  }
#endif

  HWY_INLINE Lanes scale(const Weight& w, std::int64_t row, std::int64_t chunk) const {
    const std::int64_t per_row = (w.cols + kChunk - 1) / kChunk;
    const auto s = hn::Set(D(), scale_value(w, row / kChunk * per_row + chunk));
    Lanes r;
    FATHOM_UNROLL for (int p = 0; p < kParts; ++p) r.part[p] = s;
    return r;
  }
};

// FP8 decoded through f16 gives the NaN codes 480: whether a row has one is asked apart.
HWY_INLINE bool has_nan_code(Bytes codes, std::int64_t n) {
  const hn::ScalableTag<std::uint8_t> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto mask = hn::Set(d, std::uint8_t{0x7f});
  auto top = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) top = hn::Max(top, hn::And(hn::LoadU(d, codes + i), mask));
  bool found = !hn::AllFalse(d, hn::Eq(top, mask));
  for (; i < n; ++i) found |= (codes[i] & 0x7fU) == 0x7fU;
  return found;
}

struct Fp4Format : PlainSteps {
  static constexpr bool kScaled = true;
  static constexpr bool kScalePerRow = true;
  static constexpr float kUnit = 2;  // twice an E2M1 value is an integer
  static constexpr int kChunkBytes = kChunk / 2;
  static constexpr std::array<std::int8_t, 16> kDoubled = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  __m512 values;

  HWY_INLINE Fp4Format() : values(_mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)) {}

  HWY_INLINE void decode(Bytes chunk, int half, Lanes* out) const {
    const __m512i nibbles = _mm512_loadu_si512(chunk);  // the permute looks at the lowest four bits of each lane
    FATHOM_UNROLL for (int i = 0; i < 4; ++i) {
      const auto shift = static_cast<unsigned>(4 * kFp4Order[4 * half + i]);
      out[i].part[0].raw = _mm512_permutexvar_ps(_mm512_srli_epi32(nibbles, shift), values);
    }
  }
#elif HWY_TARGET == HWY_SCALAR
  HWY_INLINE void decode(Bytes chunk, int half, Lanes* out) const {
    for (int i = 0; i < 4; ++i) {
      const int n = kFp4Order[4 * half + i];
      for (int p = 0; p < kParts; ++p) {
        const unsigned code = (chunk[4 * p + n / 2] >> (4 * (n % 2))) & 15U;
        out[i].part[p] = hn::Set(D(), static_cast<float>(kDoubled[code]));
      }
    }
  }
#else
  HWY_INLINE void decode(Bytes chunk, int half, Lanes* out) const {
    const hn::Repartition<std::uint8_t, D> d8;
    const hn::Rebind<std::int32_t, D> d32;
    const auto table = hn::BitCast(d8, hn::LoadDup128(hn::Repartition<std::int8_t, D>(), kDoubled.data()));
    const auto nibble = hn::Set(d8, std::uint8_t{15});
    FATHOM_UNROLL for (int p = 0; p < kParts; ++p) {
      const auto pairs = hn::LoadU(d8, chunk + 4 * p * kWidth);
      const auto even = hn::BitCast(d32, hn::TableLookupBytes(table, hn::And(pairs, nibble)));
      const auto odd = hn::BitCast(d32, hn::TableLookupBytes(table, hn::ShiftRight<4>(pairs)));
      if (half == 0) {  // nibbles 4, 0, 5, 1
        out[0].part[p] = signed_byte<8>(even);
        out[1].part[p] = signed_byte<24>(even);
        out[2].part[p] = signed_byte<8>(odd);
        out[3].part[p] = signed_byte<24>(odd);
      } else {  // 6, 2, 7, 3
        out[0].part[p] = signed_byte<0>(even);
        out[1].part[p] = signed_byte<16>(even);
        out[2].part[p] = signed_byte<0>(odd);
        out[3].part[p] = signed_byte<16>(odd);
      }
    }
  }
  // The byte of each 32-bit lane that a left shift by kShift brings to the top, as a number.
  template <int kShift, class V32>
  static HWY_INLINE V signed_byte(V32 v) {
    return hn::ConvertTo(D(), hn::ShiftRight<24>(hn::ShiftLeft<kShift>(v)));
  }
#endif

  // A chunk has four scales; lanes 4b .. 4b+3 hold the columns of scale b.
  HWY_INLINE Lanes scale(const Weight& w, std::int64_t row, std::int64_t chunk) const {
    const std::int64_t index = row * (w.cols / 32) + 4 * chunk;
    return w.scale_dtype == DType::kF8E8M0 ? power_of_two_scales(bytes_of(w.scales) + index)
                                           : f32_scales(bytes_of(w.scales) + 4 * index);
  }
  // E8M0 to f32 is a shift into the exponent. Code 0 (2^-127) counts as 0 and code 255 (NaN) as infinity.
  HWY_INLINE Lanes power_of_two_scales(Bytes four) const {
    std::uint32_t codes;
    std::memcpy(&codes, four, sizeof(codes));
    return spread(codes);
  }
  HWY_INLINE Lanes f32_scales(Bytes four) const {
    float s[4];
    std::memcpy(s, four, sizeof(s));
    float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = s[i / 4];
    return load_lanes(lanes);
  }
  HWY_INLINE Lanes spread(std::uint32_t codes) const {
    Lanes r;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    const __m512i turn = _mm512_setr_epi32(23, 23, 23, 23, 15, 15, 15, 15, 7, 7, 7, 7, 31, 31, 31, 31);
    const __m512i turned = _mm512_rolv_epi32(_mm512_set1_epi32(static_cast<int>(codes)), turn);
    r.part[0].raw = _mm512_castsi512_ps(_mm512_and_si512(turned, _mm512_set1_epi32(0x7f800000)));
#else
    const hn::Rebind<std::uint32_t, D> d32;
    FATHOM_UNROLL for (int p = 0; p < kParts; ++p) {
      const auto shift = hn::ShiftLeft<3>(hn::ShiftRight<2>(hn::Iota(d32, static_cast<std::uint32_t>(p * kWidth))));
      const auto exponent = hn::ShiftLeft<23>(hn::Set(d32, codes) >> shift);
      r.part[p] = hn::BitCast(D(), hn::And(exponent, hn::Set(d32, 0x7f800000U)));
    }
#endif
    return r;
  }
};

#if HWY_TARGET == HWY_AVX3_DL
// Quantised activations and 4- and 8-bit weights are exact in bf16, and the processor's bf16 dot product adds both
// products of a pair by fused multiply-adds, the upper half first, each rounded to nearest even: two steps of dot16 in
// one instruction, with the same bits. It flushes subnormals, which these operands cannot reach (smallest product
// 2^-48). pairs_are_exact() asks the processor.
struct PairSteps {
  static constexpr int kSteps = 4;  // of two columns a lane
  static constexpr int kFetchAhead = 0;
  static HWY_INLINE V multiply_add(V x, V w, V sum) {
    // Highway 1.0.3 has no target for it, and a compiler intrinsic would need one.
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(w.raw), "vm"(x.raw));
    return sum;
  }
};

struct Fp8Pairs : PairSteps, private Fp8Format {
  using Fp8Format::kChunkBytes;
  using Fp8Format::kNanInTable;
  using Fp8Format::kScaled;
  using Fp8Format::kScalePerRow;
  using Fp8Format::kUnit;
  using Fp8Format::scale;
  using PairSteps::kFetchAhead;
  using PairSteps::kSteps;
  using PairSteps::multiply_add;

  HWY_INLINE Fp8Pairs() {}
  HWY_INLINE void decode(Bytes chunk, int half, Lanes* out) const {
    __m512i first;
    __m512i last;
    decode_words(chunk, half, first, last);
    out[0].part[0].raw = _mm512_castsi512_ps(first);
    out[1].part[0].raw = _mm512_castsi512_ps(last);
  }
};

struct Fp4Pairs : PairSteps, private Fp4Format {
  using Fp4Format::kChunkBytes;
  using Fp4Format::kScaled;
  using Fp4Format::kScalePerRow;
  using Fp4Format::kUnit;
  using Fp4Format::scale;
  using PairSteps::kSteps;
  using PairSteps::multiply_add;
  static constexpr int kFetchAhead = 2048;
  __m512i words;  // the upper halves of `values`, twice: the permute looks at five bits of each 16-bit lane

  HWY_INLINE Fp4Pairs()
      : words(_mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(values), 16)))) {}
  HWY_INLINE void decode(Bytes chunk, int half, Lanes* out) const {
    const __m512i nibbles = _mm512_loadu_si512(chunk);
    FATHOM_UNROLL for (int i = 0; i < 2; ++i) {
      const __m512i index = _mm512_srli_epi32(nibbles, static_cast<unsigned>(4 * (2 * half + i)));
      out[i].part[0].raw = _mm512_castsi512_ps(_mm512_permutexvar_epi16(index, words));
    }
  }
};
#endif

}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
