// Index scores: the queries' heads lie in the lanes, keys are taken four at a time, and the heads' weighted sum is a
// dot16 over heads (lanes-inl.h).
//
// FP4 queries against FP4 keys are exact in 8-bit integers: a doubled E2M1 code is one of 0, 1, 2, 3, 4, 6, 8, 12, so
// 32 products sum to less than 2^13. x86 multiplies unsigned by signed bytes and adds neighbours: keys are read as
// code + 12, and the sums begin at -12 times the query's codes. Block by block the sums go to f32, times the scales,
// which are powers of two. So all x86 targets have the same dot products, and every one is exact where f32 can hold it.
// Other keys (`float` numerics), queries that are not FP4 (a NaN among them) and other processors: f32 over the dims in
// order.
#include "ops/indexer/index_score.h"

#include <algorithm>
#include <cstring>

#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/indexer/index_score_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "ops/simd/entry-inl.h"
#include "ops/simd/quantise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
namespace {

using cpu::kScoreKeys;
using cpu::ScoreQuery;

constexpr std::int64_t kBlock = quant::kFp4Block;

// total[j] += weight * max(0, dot), a register of heads from h on.
HWY_INLINE void add_weighted(const ScoreQuery& query, std::int64_t h, V dot, float* total) {
  float* at = total + h % 16;
  const V positive = hn::IfThenElseZero(hn::Gt(dot, hn::Zero(D())), dot);  // also of a NaN
  hn::StoreU(hn::MulAdd(hn::LoadU(D(), query.weights + h), positive, hn::LoadU(D(), at)), D(), at);
}

// kRegisters registers of heads from h on, in f32. keys: [kScoreKeys][dim].
template <int kRegisters>
HWY_INLINE void add_heads(const ScoreQuery& query, std::int64_t h, const float* keys, float (*total)[16]) {
  V dot[kScoreKeys][kRegisters];
  FATHOM_UNROLL for (int k = 0; k < kScoreKeys; ++k) {
    FATHOM_UNROLL for (int r = 0; r < kRegisters; ++r) dot[k][r] = hn::Zero(D());
  }
  const float* q = query.q + h;
  for (std::int64_t i = 0; i < query.dim; ++i, q += query.heads) {
    V x[kRegisters];
    FATHOM_UNROLL for (int r = 0; r < kRegisters; ++r) x[r] = hn::LoadU(D(), q + r * kWidth);
    FATHOM_UNROLL for (int k = 0; k < kScoreKeys; ++k) {
      const V key = hn::Set(D(), keys[k * query.dim + i]);
      FATHOM_UNROLL for (int r = 0; r < kRegisters; ++r) dot[k][r] = hn::MulAdd(x[r], key, dot[k][r]);
    }
  }
  FATHOM_UNROLL for (int k = 0; k < kScoreKeys; ++k) {
    FATHOM_UNROLL for (int r = 0; r < kRegisters; ++r) add_weighted(query, h + r * kWidth, dot[k][r], total[k]);
  }
}

// Dot products of kScoreKeys entries, weighted and added up over the heads. memory: kScoreKeys * dim floats.
HWY_INLINE void score_f32(const quant::EntryCodec& codec, const ScoreQuery& query, const std::byte* const* entries,
                          float* memory, float (*total)[16]) {
  constexpr int kRegisters = kWidth == 16 || (kWidth == 4 && HWY_TARGET != HWY_SSE4) ? 4 : 2;
  for (int k = 0; k < kScoreKeys; ++k) decode_entry(codec, entries[k], memory + k * query.dim);
  std::int64_t h = 0;
  for (; h + kRegisters * kWidth <= query.heads; h += kRegisters * kWidth) {
    add_heads<kRegisters>(query, h, memory, total);
  }
  for (; h < query.heads; h += kWidth) add_heads<1>(query, h, memory, total);
}

#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
using DI = hn::RebindToSigned<D>;
using VI = hn::Vec<DI>;
using D16 = hn::Repartition<std::int16_t, D>;
using DS = hn::Repartition<std::int8_t, D>;
using DU = hn::Repartition<std::uint8_t, D>;

#if HWY_TARGET == HWY_AVX3_DL
// Sums of four products, in 32 bits, by VNNI, which every processor of this target has; Highway 1.0.3 does not tell the
// compiler so.
using Sums = VI;
HWY_INLINE Sums begin_sums(VI start) { return start; }
HWY_INLINE Sums add_products(hn::Vec<DU> key, hn::Vec<DS> q, Sums sums) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums.raw) : "v"(key.raw), "vm"(q.raw));
  return sums;
}
HWY_INLINE VI end_sums(Sums sums) { return sums; }
#else
// Sums of two products, in 16 bits: |start| and the sum of a block stay below 2^14. `start` is in the lower half.
using Sums = hn::Vec<D16>;
HWY_INLINE Sums begin_sums(VI start) { return hn::BitCast(D16(), hn::And(start, hn::Set(DI(), 0xffff))); }
#if HWY_CAP_GE512
HWY_INLINE Sums multiply(hn::Vec<DU> key, hn::Vec<DS> q) { return Sums{_mm512_maddubs_epi16(key.raw, q.raw)}; }
HWY_INLINE VI end_sums(Sums sums) { return VI{_mm512_madd_epi16(sums.raw, hn::Set(D16(), 1).raw)}; }
#elif HWY_CAP_GE256
HWY_INLINE Sums multiply(hn::Vec<DU> key, hn::Vec<DS> q) { return Sums{_mm256_maddubs_epi16(key.raw, q.raw)}; }
HWY_INLINE VI end_sums(Sums sums) { return VI{_mm256_madd_epi16(sums.raw, hn::Set(D16(), 1).raw)}; }
#else
HWY_INLINE Sums multiply(hn::Vec<DU> key, hn::Vec<DS> q) { return Sums{_mm_maddubs_epi16(key.raw, q.raw)}; }
HWY_INLINE VI end_sums(Sums sums) { return VI{_mm_madd_epi16(sums.raw, hn::Set(D16(), 1).raw)}; }
#endif
HWY_INLINE Sums add_products(hn::Vec<DU> key, hn::Vec<DS> q, Sums sums) { return hn::Add(sums, multiply(key, q)); }
#endif

// The same in integers. keys: [kScoreKeys][dim], codes + 12, all even dims before all odd ones; scales:
// [kScoreKeys][dim / 32].
template <int kRegisters>
HWY_INLINE void add_heads_exact(const ScoreQuery& query, std::int64_t h, const std::uint8_t* keys, const float* scales,
                                float (*total)[16]) {
  const std::int64_t blocks = query.dim / kBlock;
  V dot[kScoreKeys][kRegisters];
  FATHOM_UNROLL for (int k = 0; k < kScoreKeys; ++k) {
    FATHOM_UNROLL for (int r = 0; r < kRegisters; ++r) dot[k][r] = hn::Zero(D());
  }
  const std::int8_t* q = query.codes + 4 * h;
  for (std::int64_t b = 0; b < blocks; ++b) {
    Sums sums[kScoreKeys][kRegisters];
    FATHOM_UNROLL for (int r = 0; r < kRegisters; ++r) {
      const Sums start = begin_sums(hn::LoadU(DI(), query.start + b * query.heads + h + r * kWidth));
      FATHOM_UNROLL for (int k = 0; k < kScoreKeys; ++k) sums[k][r] = start;
    }
    FATHOM_UNROLL for (int i = 0; i < kBlock / 4; ++i, q += 4 * query.heads) {
      hn::Vec<DS> x[kRegisters];
      FATHOM_UNROLL for (int r = 0; r < kRegisters; ++r) x[r] = hn::LoadU(DS(), q + 4 * r * kWidth);
      const std::uint8_t* at = keys + (i < 4 ? 0 : query.dim / 2) + 16 * b + 4 * (i % 4);
      FATHOM_UNROLL for (int k = 0; k < kScoreKeys; ++k) {
        std::int32_t four;
        std::memcpy(&four, at + k * query.dim, 4);
        const auto key = hn::BitCast(DU(), hn::Set(DI(), four));
        FATHOM_UNROLL for (int r = 0; r < kRegisters; ++r) sums[k][r] = add_products(key, x[r], sums[k][r]);
      }
    }
    FATHOM_UNROLL for (int r = 0; r < kRegisters; ++r) {
      const V scale = hn::LoadU(D(), query.scales + b * query.heads + h + r * kWidth);
      FATHOM_UNROLL for (int k = 0; k < kScoreKeys; ++k) {
        const V sum = hn::Mul(hn::ConvertTo(D(), end_sums(sums[k][r])), scale);
        dot[k][r] = hn::MulAdd(sum, hn::Set(D(), scales[k * blocks + b]), dot[k][r]);
      }
    }
  }
  FATHOM_UNROLL for (int k = 0; k < kScoreKeys; ++k) {
    FATHOM_UNROLL for (int r = 0; r < kRegisters; ++r) add_weighted(query, h + r * kWidth, dot[k][r], total[k]);
  }
}

// An FP4 entry to codes + 12, the low halves of all bytes before the high ones.
HWY_INLINE void read_codes(Bytes pairs, std::int64_t dim, std::uint8_t* codes, float* scales) {
  alignas(16) static constexpr std::uint8_t kCodes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  const auto read = [&](auto d, std::int64_t i) HWY_ATTR {
    const auto table = hn::LoadDup128(d, kCodes);
    const auto bytes = hn::LoadU(d, pairs + i);
    const auto low = hn::And(bytes, hn::Set(d, std::uint8_t{15}));
    const auto high = hn::ShiftRight<4>(bytes);
    hn::StoreU(hn::TableLookupBytes(table, low), d, codes + i);
    hn::StoreU(hn::TableLookupBytes(table, high), d, codes + dim / 2 + i);
  };
  std::int64_t i = 0;
  for (; i + 4 * kWidth <= dim / 2; i += 4 * kWidth) read(DU(), i);
  for (; i < dim / 2; i += 16) read(hn::CappedTag<std::uint8_t, 16>(), i);
  for (std::int64_t b = 0; b < dim / kBlock; ++b) scales[b] = quant::ue8m0_value(pairs[dim / 2 + b]);
}

// One block of one head: doubled codes, even dims first. False if its values are not 32 FP4 values of one scale.
HWY_INLINE bool encode_block(const float* x, std::int8_t* codes, std::int32_t* sum, float* scale) {
  const hn::Rebind<std::int8_t, D> d8;
  bool nan = false;
  const float top = std::max(max_abs(x, kBlock, &nan), quant::kE2m1Max * 0x1p-120F) * (1.0F / quant::kE2m1Max);
  const float unit = quant::ue8m0_value(quant::ue8m0_ceil(top));
  const V twice = hn::Set(D(), 2 / unit);
  auto equal = hn::Eq(twice, twice);
  VI total = hn::Zero(DI());
  for (std::int64_t i = 0; i < kBlock / 2; i += kWidth) {
    V even;
    V odd;
    hn::LoadInterleaved2(D(), x + 2 * i, even, odd);
    even = hn::Mul(even, twice);
    odd = hn::Mul(odd, twice);
    const VI even_code = hn::NearestInt(even);
    const VI odd_code = hn::NearestInt(odd);
    equal =
        hn::And(equal, hn::And(hn::Eq(hn::ConvertTo(D(), even_code), even), hn::Eq(hn::ConvertTo(D(), odd_code), odd)));
    total = hn::Add(total, hn::Add(even_code, odd_code));
    hn::StoreU(hn::DemoteTo(d8, even_code), d8, codes + i);
    hn::StoreU(hn::DemoteTo(d8, odd_code), d8, codes + kBlock / 2 + i);
  }
  *sum = hn::GetLane(hn::SumOfLanes(DI(), total));
  *scale = 0.25F * unit;
  return !nan && hn::AllTrue(D(), equal);
}

HWY_INLINE bool encode_query(const float* q, std::int64_t heads, ScoreQuery& query) {
  const std::int64_t blocks = query.dim / kBlock;
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      std::int32_t sum = 0;
      const std::int64_t at = b * query.heads + h;
      if (!encode_block(q + h * query.dim + b * kBlock, query.head_codes + b * kBlock, &sum, &query.scales[at])) {
        return false;
      }
      query.start[at] = -12 * sum;
    }
    for (std::int64_t i = 0; i < query.dim; i += 4) {
      std::memcpy(query.codes + i * query.heads + 4 * h, query.head_codes + i, 4);
    }
  }
  for (std::int64_t h = heads; h < query.heads; ++h) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      query.start[b * query.heads + h] = 0;
      query.scales[b * query.heads + h] = 0;
    }
    for (std::int64_t i = 0; i < query.dim; i += 4) std::memset(query.codes + i * query.heads + 4 * h, 0, 4);
  }
  return true;
}

// As score_f32, in integers.
HWY_INLINE void score_exact(const ScoreQuery& query, const std::byte* const* entries, float* memory,
                            float (*total)[16]) {
  constexpr int kRegisters = 2;
  float* scales = memory;
  auto* codes = reinterpret_cast<std::uint8_t*>(memory + kScoreKeys * query.dim / kBlock);
  for (int k = 0; k < kScoreKeys; ++k) {
    read_codes(bytes_of(entries[k]), query.dim, codes + k * query.dim, scales + k * query.dim / kBlock);
  }
  std::int64_t h = 0;
  for (; h + kRegisters * kWidth <= query.heads; h += kRegisters * kWidth) {
    add_heads_exact<kRegisters>(query, h, codes, scales, total);
  }
  for (; h < query.heads; h += kWidth) add_heads_exact<1>(query, h, codes, scales, total);
}
#else
HWY_INLINE bool encode_query(const float*, std::int64_t, ScoreQuery&) { return false; }
HWY_INLINE void score_exact(const ScoreQuery&, const std::byte* const*, float*, float (*)[16]) {}
#endif

void PrepareQuery(const IndexSelect& op, std::int64_t t, ScoreQuery& query) {
  for (std::int64_t h = 0; h < query.heads; ++h) {
    query.weights[h] = h < op.heads ? op.weights.row(t)[h] * op.scale : 0.0F;
  }
  const float* q = op.q.row(t);
  query.exact =
      op.keys.codec.format == quant::EntryFormat::kFp4 && query.dim % kBlock == 0 && encode_query(q, op.heads, query);
  if (query.exact) return;
  for (std::int64_t i = 0; i < query.dim; ++i) {
    for (std::int64_t h = 0; h < query.heads; ++h) {
      query.q[i * query.heads + h] = h < op.heads ? q[h * query.dim + i] : 0.0F;
    }
  }
}

void ScoreKeys(const IndexSelect& op, const Segment& s, const ScoreQuery& query, std::int32_t begin, std::int32_t end,
               float* memory, float* scores) {
  for (std::int32_t w = begin; w < end; w += kScoreKeys) {
    const auto n = std::min<std::int32_t>(kScoreKeys, end - w);
    const std::byte* entries[kScoreKeys];
    for (std::int32_t k = 0; k < kScoreKeys; ++k) {
      entries[k] = op.keys.at(s, std::min(w + k, end - 1));  // a short last tile repeats its last key
    }
    alignas(64) float total[kScoreKeys][16] = {};
    if (query.exact) score_exact(query, entries, memory, total);
    else score_f32(op.keys.codec, query, entries, memory, total);
    for (std::int32_t k = 0; k < n; ++k) scores[w + k] = sum_lanes(load_lanes(total[k]));
  }
}

}  // namespace
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops::cpu {
namespace {
HWY_EXPORT(PrepareQuery);
HWY_EXPORT(ScoreKeys);
}  // namespace

ScoreQuery take_score_query(const IndexSelect& op, Scratch& scratch) {
  const std::int64_t heads = (op.heads + 15) / 16 * 16;
  const std::int64_t dim = op.q.cols / op.heads;
  const std::int64_t blocks = (dim + quant::kFp4Block - 1) / quant::kFp4Block;
  return {.heads = heads,
          .dim = dim,
          .weights = scratch.take<float>(heads),
          .q = scratch.take<float>(dim * heads),
          .codes = scratch.take<std::int8_t>(dim * heads),
          .start = scratch.take<std::int32_t>(blocks * heads),
          .scales = scratch.take<float>(blocks * heads),
          .head_codes = scratch.take<std::int8_t>(dim)};
}

float* take_score_keys(const IndexSelect& op, Scratch& scratch) {
  return scratch.take<float>(kScoreKeys * op.q.cols / op.heads);
}

void prepare_query(const IndexSelect& op, std::int64_t t, ScoreQuery& query) {
  HWY_DYNAMIC_DISPATCH(PrepareQuery)(op, t, query);
}

void score_keys(const IndexSelect& op, const Segment& s, const ScoreQuery& query, std::int32_t begin, std::int32_t end,
                float* memory, float* scores) {
  HWY_DYNAMIC_DISPATCH(ScoreKeys)(op, s, query, begin, end, memory, scores);
}

}  // namespace fathom::ops::cpu
#endif
