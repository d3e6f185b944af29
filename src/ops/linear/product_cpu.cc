#include "ops/linear/product.h"

#include <algorithm>

#include "base/check.h"
#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/product_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/cache_control.h>
#include "ops/simd/decode-inl.h"
#include "ops/simd/lanes-inl.h"
#include "ops/simd/quantise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
namespace {

// Floats of a row of x to the next chunk.
template <class F>
inline constexpr std::int64_t kStride = 16 * F::kSteps;

// Many tokens are taken this many at a time: what they make of x stays in the second cache.
constexpr std::int64_t kBlockTokens = 16;

// ---- Few tokens: weights go from memory through registers into the sums, each byte once.

// kRows rows of one chunk times kTokens rows of x. at: where the chunk begins in the rows of x.
template <class F, int kRows, int kTokens>
HWY_INLINE void add_chunk(const F& format, const Bytes* rows, const Lanes* scale, const float* const* x,
                          std::int64_t at, Lanes (&acc)[kRows][kTokens]) {
  constexpr int kHalf = F::kSteps / 2;
  Lanes sum[kRows][kTokens];
  FATHOM_UNROLL for (int r = 0; r < kRows; ++r) {
    FATHOM_UNROLL for (int t = 0; t < kTokens; ++t) sum[r][t] = F::kScaled ? zero_lanes() : acc[r][t];
  }
  FATHOM_UNROLL for (int half = 0; half < 2; ++half) {
    FATHOM_UNROLL for (int r = 0; r < kRows; ++r) {
      Lanes w[kHalf];
      format.decode(rows[r], half, w);
      FATHOM_UNROLL for (int i = 0; i < kHalf; ++i) {
        FATHOM_UNROLL for (int t = 0; t < kTokens; ++t) {
          const Lanes v = load_lanes(x[t] + at + 16 * (kHalf * half + i));
          FATHOM_UNROLL for (int p = 0; p < kParts; ++p) {
            sum[r][t].part[p] = F::multiply_add(v.part[p], w[i].part[p], sum[r][t].part[p]);
          }
        }
      }
    }
  }
  FATHOM_UNROLL for (int r = 0; r < kRows; ++r) {
    FATHOM_UNROLL for (int t = 0; t < kTokens; ++t) {
      acc[r][t] = F::kScaled ? fma(sum[r][t], scale[r], acc[r][t]) : sum[r][t];
    }
  }
}

template <class F, int kRows>
HWY_INLINE void load_scales(const F& format, const Weight& w, std::int64_t row, std::int64_t chunk, Lanes* scale) {
  if constexpr (F::kScaled) {
    if constexpr (F::kScalePerRow) {
      FATHOM_UNROLL for (int r = 0; r < kRows; ++r) scale[r] = format.scale(w, row + r, chunk);
    } else {  // kRows divides 128 and `row`
      scale[0] = format.scale(w, row, chunk);
      FATHOM_UNROLL for (int r = 1; r < kRows; ++r) scale[r] = scale[0];
    }
  }
}

// The last, short chunk of a row, filled up with zeros.
struct Tail {
  alignas(64) std::uint8_t bytes[4 * kChunk];
  std::uint8_t scales[16];
  Weight w;  // one row, one chunk

  template <class F>
  HWY_INLINE Tail(const F&, const Weight& whole, std::int64_t row) : bytes{}, scales{}, w(whole) {
    const std::int64_t chunk = whole.cols / kChunk;
    const auto done = static_cast<std::size_t>(chunk * F::kChunkBytes);
    std::memcpy(bytes, whole.data + row * whole.row_bytes() + done, static_cast<std::size_t>(whole.row_bytes()) - done);
    if constexpr (F::kScaled) {
      const std::int64_t block = F::kScalePerRow ? 32 : kChunk;
      const std::int64_t per_row = (whole.cols + block - 1) / block;
      const std::int64_t first = chunk * (kChunk / block);
      const std::size_t size = size_of(whole.scale_dtype);
      const std::int64_t scale_row = F::kScalePerRow ? row : row / kChunk;
      std::memcpy(scales, whole.scales + static_cast<std::size_t>(scale_row * per_row + first) * size,
                  static_cast<std::size_t>(per_row - first) * size);
      w.scales = reinterpret_cast<const std::byte*>(scales);
      w.cols = kChunk;
    }
  }
};

template <class F, int kRows, int kTokens>
HWY_INLINE void add_tail(const F& format, const Weight& w, std::int64_t row, const float* const* x,
                         Lanes (&acc)[kRows][kTokens]) {
  for (int r = 0; r < kRows; ++r) {
    const Tail tail(format, w, row + r);
    const Bytes bytes = tail.bytes;
    Lanes scale[1];
    if constexpr (F::kScaled) scale[0] = format.scale(tail.w, 0, 0);
    Lanes one[1][kTokens];
    FATHOM_UNROLL for (int t = 0; t < kTokens; ++t) one[0][t] = acc[r][t];
    add_chunk<F, 1, kTokens>(format, &bytes, scale, x, w.cols / kChunk * kStride<F>, one);
    FATHOM_UNROLL for (int t = 0; t < kTokens; ++t) acc[r][t] = one[0][t];
  }
}

template <class F>
HWY_INLINE bool row_is_nan(const Weight& w, std::int64_t row) {
  if constexpr (requires { F::kNanInTable; }) {
    if constexpr (!F::kNanInTable) return has_nan_code(bytes_of(w.data + row * w.row_bytes()), w.row_bytes());
  }
  return false;
}

template <class F>
HWY_INLINE float finish(float sum) {
  return sum * (1.0F / F::kUnit);
}

template <class F, int kRows, int kTokens>
HWY_NOINLINE void stream_rows(const F& format, const Weight& w, std::int64_t row, const float* const* x,
                              float* const* y) {
  Lanes acc[kRows][kTokens];
  FATHOM_UNROLL for (int r = 0; r < kRows; ++r) {
    FATHOM_UNROLL for (int t = 0; t < kTokens; ++t) acc[r][t] = zero_lanes();
  }
  const std::int64_t chunks = w.cols / kChunk;
  const std::int64_t row_bytes = w.row_bytes();
  const Bytes first = bytes_of(w.data) + row * row_bytes;
  for (std::int64_t c = 0; c < chunks; ++c) {
    Bytes rows[kRows];
    Lanes scale[kRows];
    FATHOM_UNROLL for (int r = 0; r < kRows; ++r) {
      rows[r] = first + r * row_bytes + c * F::kChunkBytes;
      // Rows taken together are short runs that the processor's own prefetchers notice late: fetch the same place of
      // the next rows, to the second cache (x passes through the first meanwhile).
      if constexpr (kRows > 1) {
        for (int line = 0; line < F::kChunkBytes; line += 64)
          __builtin_prefetch(rows[r] + kRows * row_bytes + line, 0, 2);
      } else if constexpr (F::kFetchAhead > 0) {
        hwy::Prefetch(rows[r] + F::kFetchAhead);
      }
    }
    load_scales<F, kRows>(format, w, row, c, scale);
    add_chunk<F, kRows, kTokens>(format, rows, scale, x, c * kStride<F>, acc);
  }
  if (chunks * kChunk < w.cols) add_tail<F, kRows, kTokens>(format, w, row, x, acc);
  for (int r = 0; r < kRows; ++r) {
    const bool nan = row_is_nan<F>(w, row + r);
    for (int t = 0; t < kTokens; ++t) {
      y[t][row + r] = nan ? std::numeric_limits<float>::quiet_NaN() : finish<F>(sum_lanes(acc[r][t]));
    }
  }
}

// Rows taken together: they share the loads of x, which for several tokens no longer stays in the first cache. One row
// alone reads memory in order, which prefetchers like best.
template <class F, int kTokens>
constexpr int rows_together() {
  if (kTokens == 1 || kParts > 2) return 1;
  if (kParts == 2) return kTokens == 2 ? 2 : 1;  // as the registers allow
  if (F::kSteps == 4) return kTokens == 2 ? 1 : 2;
  return F::kScaled || kTokens == 2 ? 2 : 4;
}

template <class F, int kTokens>
void stream(const Weight& w, std::int64_t begin, std::int64_t end, const float* const* x, float* const* y) {
  constexpr int kRows = rows_together<F, kTokens>();
  const F format;
  std::int64_t row = begin;
  for (; row < end && row % kRows != 0; ++row) stream_rows<F, 1, kTokens>(format, w, row, x, y);
  for (; row + kRows <= end; row += kRows) stream_rows<F, kRows, kTokens>(format, w, row, x, y);
  for (; row < end; ++row) stream_rows<F, 1, kTokens>(format, w, row, x, y);
}

// ---- Several tokens where one register holds sixteen lanes: a few rows times four tokens at a time. Later passes find
// the rows in the first cache and decode them again, which costs less than any detour through memory.

template <class F>
void stream_passes(const Weight& w, std::int64_t begin, std::int64_t end, const float* const* x, std::int64_t tokens,
                   float* const* y) {
  constexpr std::int64_t kRows = std::max(2, rows_together<F, 4>());
  const std::int64_t passes = (tokens + 3) / 4;
  for (std::int64_t row = begin; row < end;) {
    const std::int64_t next = std::min(end, row + kRows - row % kRows);
    for (std::int64_t i = 0; i < passes; ++i) {
      const std::int64_t t = i * tokens / passes;
      switch ((i + 1) * tokens / passes - t) {
        case 1: stream<F, 1>(w, row, next, x + t, y + t); break;
        case 2: stream<F, 2>(w, row, next, x + t, y + t); break;
        case 3: stream<F, 3>(w, row, next, x + t, y + t); break;
        default: stream<F, 4>(w, row, next, x + t, y + t);
      }
    }
    row = next;
  }
}

// ---- Several tokens where it takes more registers: decoding costs as much as four tokens' arithmetic, and few
// registers are left to share it. A panel of a few rows is decoded once, into the first cache, where all tokens meet
// it.

constexpr int kPanelRows = 4;
constexpr std::int64_t kPanelChunks = 4;
constexpr int kTileTokens = 3;

// Some chunks of kPanelRows rows, and the sums of these rows for a block of tokens.
struct Panel {
  alignas(64) float w[kPanelChunks][kPanelRows][kChunk];
  alignas(64) float scale[kPanelChunks][kPanelRows][16];
  alignas(64) float sum[kBlockTokens][kPanelRows][16];
};

template <class F>
HWY_INLINE void decode_row(const F& format, Bytes bytes, const Weight& w, std::int64_t row, std::int64_t chunk,
                           float* to, float* scale) {
  constexpr int kHalf = F::kSteps / 2;
  FATHOM_UNROLL for (int half = 0; half < 2; ++half) {
    Lanes lanes[kHalf];
    format.decode(bytes, half, lanes);
    FATHOM_UNROLL for (int i = 0; i < kHalf; ++i) store_lanes(lanes[i], to + 16 * (kHalf * half + i));
  }
  if constexpr (F::kScaled) store_lanes(format.scale(w, row, chunk), scale);
}

// Compilers would rather load a value again for each of its uses, which here costs more than the arithmetic.
HWY_INLINE V loaded_once(V v) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  asm("" : "+v"(v.raw));
#endif
  return v;
}

// One register of every sum: a chunk's weights w [kPanelRows, 128] times kTokens rows of x.
template <class F, int kTokens>
HWY_INLINE void add_steps(const float* const (&x)[kTokens], std::int64_t at, const float* w,
                          V (&sum)[kPanelRows][kTokens]) {
  for (int n = 0; n < F::kSteps; ++n) {
    V xs[kTokens];
    FATHOM_UNROLL for (int i = 0; i < kTokens; ++i) xs[i] = hn::LoadU(D(), x[i] + at + 16 * n);
    FATHOM_UNROLL for (int r = 0; r < kPanelRows; ++r) {
      const V wr = loaded_once(hn::Load(D(), w + r * kChunk + 16 * n));
      FATHOM_UNROLL for (int i = 0; i < kTokens; ++i) sum[r][i] = F::multiply_add(xs[i], wr, sum[r][i]);
    }
  }
}

// The panel's first chunks times kTokens rows of x, into the sums from token t on.
template <class F, int kTokens>
HWY_INLINE void add_tile(const float* const* x, std::int64_t at, std::int64_t chunks, std::int64_t t, Panel& panel) {
  const float* rows[kTokens];
  FATHOM_UNROLL for (int i = 0; i < kTokens; ++i) rows[i] = x[t + i] + at;
  const auto place = [&](int r, int i, int p) HWY_ATTR { return panel.sum[t + i][r] + p; };
  for (std::int64_t c = 0; c < chunks; ++c) {
    for (int p = 0; p < 16; p += kWidth) {
      V sum[kPanelRows][kTokens];
      FATHOM_UNROLL for (int r = 0; r < kPanelRows; ++r) {
        FATHOM_UNROLL for (int i = 0; i < kTokens; ++i) {
          sum[r][i] = F::kScaled ? hn::Zero(D()) : hn::Load(D(), place(r, i, p));
        }
      }
      add_steps<F, kTokens>(rows, c * kStride<F> + p, panel.w[c][0] + p, sum);
      FATHOM_UNROLL for (int r = 0; r < kPanelRows; ++r) {
        FATHOM_UNROLL for (int i = 0; i < kTokens; ++i) {
          if constexpr (F::kScaled) {
            sum[r][i] = hn::MulAdd(sum[r][i], hn::Load(D(), panel.scale[c][r] + p), hn::Load(D(), place(r, i, p)));
          }
          hn::Store(sum[r][i], D(), place(r, i, p));
        }
      }
    }
  }
}

template <class F>
HWY_NOINLINE void add_tiles(const float* const* x, std::int64_t at, std::int64_t chunks, std::int64_t tokens,
                            Panel& panel) {
  const std::int64_t tiles = (tokens + kTileTokens - 1) / kTileTokens;
  for (std::int64_t i = 0; i < tiles; ++i) {
    const std::int64_t t = i * tokens / tiles;
    switch ((i + 1) * tokens / tiles - t) {
      case 1: add_tile<F, 1>(x, at, chunks, t, panel); break;
      case 2: add_tile<F, 2>(x, at, chunks, t, panel); break;
      default: add_tile<F, kTileTokens>(x, at, chunks, t, panel);
    }
  }
}

// At most kPanelRows rows times at most kBlockTokens tokens.
template <class F>
HWY_NOINLINE void panel_rows(const F& format, const Weight& w, std::int64_t row, std::int64_t rows,
                             const float* const* x, std::int64_t tokens, float* const* y) {
  Panel panel;
  std::memset(panel.sum, 0, sizeof(panel.sum[0]) * static_cast<std::size_t>(tokens));
  if (rows < kPanelRows) {
    std::memset(panel.w, 0, sizeof(panel.w));
    std::memset(panel.scale, 0, sizeof(panel.scale));
  }
  const std::int64_t whole = w.cols / kChunk;
  const std::int64_t chunks = (w.cols + kChunk - 1) / kChunk;
  const std::int64_t row_bytes = w.row_bytes();
  const Bytes first = bytes_of(w.data) + row * row_bytes;
  for (std::int64_t c = 0; c < chunks; c += kPanelChunks) {
    const std::int64_t n = std::min(kPanelChunks, chunks - c);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < std::min(n, whole - c); ++i) {
        const Bytes bytes = first + r * row_bytes + (c + i) * F::kChunkBytes;
        // Rows taken together are short runs that the processor's own prefetchers notice late: fetch the same place of
        // the next rows, to the second cache (x passes through the first meanwhile).
        for (int line = 0; line < F::kChunkBytes; line += 64)
          __builtin_prefetch(bytes + kPanelRows * row_bytes + line, 0, 2);
        decode_row(format, bytes, w, row + r, c + i, panel.w[i][r], panel.scale[i][r]);
      }
      if (c + n > whole) {
        const Tail tail(format, w, row + r);
        decode_row(format, tail.bytes, tail.w, 0, 0, panel.w[n - 1][r], panel.scale[n - 1][r]);
      }
    }
    add_tiles<F>(x, c * kStride<F>, n, tokens, panel);
  }
  bool nan[kPanelRows];
  for (std::int64_t r = 0; r < rows; ++r) nan[r] = row_is_nan<F>(w, row + r);
  for (std::int64_t t = 0; t < tokens; ++t) {
    float sums[kPanelRows];
    sum_four(panel.sum[t][0], sums);
    for (std::int64_t r = 0; r < rows; ++r) {
      y[t][row + r] = nan[r] ? std::numeric_limits<float>::quiet_NaN() : finish<F>(sums[r]);
    }
  }
}

template <class F>
void panels(const Weight& w, std::int64_t begin, std::int64_t end, const float* const* x, std::int64_t tokens,
            float* const* y) {
  const F format;
  for (std::int64_t row = begin; row < end; row += kPanelRows) {
    panel_rows<F>(format, w, row, std::min<std::int64_t>(kPanelRows, end - row), x, tokens, y);
  }
}

// Many tokens: as many rows as half the second cache holds stay there while blocks of tokens pass by.
template <class F>
void multiply(const Weight& w, std::int64_t begin, std::int64_t end, const float* const* x, std::int64_t tokens,
              float* const* y) {
  constexpr std::int64_t kBytes = 128 << 10;
  if (tokens == 0) return;
  if (tokens == 1) return stream<F, 1>(w, begin, end, x, y);
  if (tokens == 2) return stream<F, 2>(w, begin, end, x, y);
  if constexpr (kParts == 1) {
    if (tokens <= kBlockTokens) return stream_passes<F>(w, begin, end, x, tokens, y);
  } else if constexpr (F::kScaled) {
    if (tokens == 3) return stream<F, 3>(w, begin, end, x, y);
    if (tokens == 4) return stream<F, 4>(w, begin, end, x, y);
  }
  const std::int64_t rows = std::max<std::int64_t>(4, kBytes / w.row_bytes() / 4 * 4);
  for (std::int64_t row = begin; row < end; row += rows) {
    const std::int64_t last = std::min(end, row + rows);
    for (std::int64_t t = 0; t < tokens; t += kBlockTokens) {
      const std::int64_t n = std::min(kBlockTokens, tokens - t);
      if constexpr (kParts == 1) {
        stream_passes<F>(w, row, last, x + t, n, y + t);
      } else {
        panels<F>(w, row, last, x + t, n, y + t);
      }
    }
  }
}

void MultiplyRows(const Weight& w, std::int64_t begin, std::int64_t end, const float* const* x, std::int64_t tokens,
                  bool pairs, float* const* y) {
  FATHOM_CHECK(w.dtype != DType::kFp4x2 || w.cols % quant::kFp4Block == 0, "FP4 rows are whole scale blocks");
#if HWY_TARGET == HWY_AVX3_DL
  if (pairs) {
    if (w.dtype == DType::kF8E4M3) return multiply<Fp8Pairs>(w, begin, end, x, tokens, y);
    return multiply<Fp4Pairs>(w, begin, end, x, tokens, y);
  }
#endif
  FATHOM_CHECK(!pairs, "rows packed in pairs for an instruction set without them");
  switch (w.dtype) {
    case DType::kF32: return multiply<F32Format>(w, begin, end, x, tokens, y);
    case DType::kBf16: return multiply<Bf16Format>(w, begin, end, x, tokens, y);
    case DType::kF8E4M3: return multiply<Fp8Format>(w, begin, end, x, tokens, y);
    case DType::kFp4x2: return multiply<Fp4Format>(w, begin, end, x, tokens, y);
    default: FATHOM_CHECK(false, "a weight is F32, BF16, F8_E4M3 or packed FP4");
  }
}

#if HWY_TARGET == HWY_AVX3_DL
// Two columns that are exact in bf16, hence with zeros below, in one 32-bit lane.
template <class DF, class VF>
HWY_INLINE VF join(DF d, VF upper, VF lower) {
  const hn::RebindToUnsigned<DF> du;
  return hn::BitCast(d, hn::Or(hn::BitCast(du, upper), hn::ShiftRight<16>(hn::BitCast(du, lower))));
}

// A chunk in column order to the order of FP8's lanes, in pairs. `to` may be `from`, or memory before it.
HWY_INLINE void pair_columns(const float* from, float* to) {
  for (int n = 0; n < 8; n += 2) {
    FATHOM_UNROLL for (int p = 0; p < 16; p += kWidth) {
      const V upper = hn::LoadU(D(), from + 16 * n + p);
      const V lower = hn::LoadU(D(), from + 16 * (n + 1) + p);
      hn::StoreU(join(D(), upper, lower), D(), to + 8 * n + p);
    }
  }
}

// The same for FP4: lane i of pair m joins columns 8i + m + 4 and 8i + m.
HWY_INLINE void pair_nibbles(const float* from, float* to) {
  const hn::CappedTag<float, 4> d4;
  float pairs[64];
  for (int i = 0; i < 16; ++i) {
    hn::StoreU(join(d4, hn::LoadU(d4, from + 8 * i + 4), hn::LoadU(d4, from + 8 * i)), d4, pairs + 4 * i);
  }
  V m[4];
  hn::LoadInterleaved4(D(), pairs, m[0], m[1], m[2], m[3]);
  FATHOM_UNROLL for (int j = 0; j < 4; ++j) hn::StoreU(m[j], D(), to + 16 * j);
}

void pair_row(bool fp4, std::int64_t chunks, float* packed) {
  for (std::int64_t c = 0; c < chunks; ++c) {
    const float* from = packed + c * kChunk;
    float* to = packed + c * (kChunk / 2);
    if (fp4) {
      pair_nibbles(from, to);
    } else {
      pair_columns(from, to);
    }
  }
}
#else
void pair_row(bool, std::int64_t, float*) { FATHOM_CHECK(false, "an instruction set without pairs"); }
#endif

void deal_out_nibbles(float* chunk) {
  float columns[kChunk];
  std::copy_n(chunk, kChunk, columns);
  for (int n = 0; n < 8; ++n) {
    for (int i = 0; i < 16; ++i) chunk[16 * n + i] = columns[8 * i + kFp4Order[n]];
  }
}

void PackRow(const float* x, std::int64_t groups, const Weight& w, bool quantise, bool pairs, float* packed) {
  const std::int64_t cols = w.cols;
  const std::int64_t padded = cpu::padded_cols(cols);
  std::copy_n(x, groups * cols, packed);
  // Quantised as one row: its blocks do not know groups.
  if (quantise) fp8_round_trip(packed, groups * cols, quant::kActBlock);
  // From the back: groups move apart without overlap.
  for (std::int64_t g = groups - 1; g >= 0 && padded != cols; --g) {
    float* to = packed + g * padded;
    std::copy_backward(packed + g * cols, packed + (g + 1) * cols, to + cols);
    std::fill(to + cols, to + padded, 0.0F);
  }
  const bool fp4 = w.dtype == DType::kFp4x2;
  if (pairs) return pair_row(fp4, groups * padded / kChunk, packed);
  for (std::int64_t c = 0; fp4 && c < groups * padded; c += kChunk) deal_out_nibbles(packed + c);
}

// Whether the bf16 dot product of this processor is two fused multiply-adds, the upper half first: manuals say so in
// different words, so it is tried on numbers of all sizes.
bool PairsAreExact() {
#if HWY_TARGET == HWY_AVX3_DL
  static const bool exact = [] {
    if (__builtin_cpu_supports("avx512bf16") == 0) return false;
    std::uint32_t state = 1;
    const auto random = [&state](int exponents, std::uint32_t mask) {
      state = state * 1664525U + 1013904223U;
      const std::uint32_t exponent =
          127U + (state >> 8) % static_cast<unsigned>(exponents) - static_cast<unsigned>(exponents / 2);
      return std::bit_cast<float>(((state & 0x80000000U) | exponent << 23 | ((state * 747796405U) >> 9)) & mask);
    };
    for (int round = 0; round < 256; ++round) {
      alignas(64) float x[2][16];
      alignas(64) float w[2][16];
      alignas(64) float xs[16];
      alignas(64) float ws[16];
      alignas(64) float sum[16];
      for (int i = 0; i < 16; ++i) {
        for (int half = 0; half < 2; ++half) {
          x[half][i] = random(20, 0xffff0000U);
          w[half][i] = random(16, 0xffff0000U);
        }
        const auto join = [](float upper, float lower) {
          return std::bit_cast<float>(std::bit_cast<std::uint32_t>(upper) | std::bit_cast<std::uint32_t>(lower) >> 16);
        };
        xs[i] = join(x[0][i], x[1][i]);
        ws[i] = join(w[0][i], w[1][i]);
        sum[i] = random(30, 0xffffffffU);
      }
      const V got = PairSteps::multiply_add(hn::Load(D(), xs), hn::Load(D(), ws), hn::Load(D(), sum));
      const V first = hn::MulAdd(hn::Load(D(), x[0]), hn::Load(D(), w[0]), hn::Load(D(), sum));
      const V want = hn::MulAdd(hn::Load(D(), x[1]), hn::Load(D(), w[1]), first);
      if (!hn::AllTrue(D(), hn::Eq(got, want))) return false;
    }
    return true;
  }();
  return exact;
#else
  return false;
#endif
}

}  // namespace
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops::cpu {
namespace {

HWY_EXPORT(MultiplyRows);
HWY_EXPORT(PackRow);
HWY_EXPORT(PairsAreExact);

constexpr std::int64_t kFewTokens = 4;

}  // namespace

bool use_pairs(const Weight& w, std::int64_t groups, bool quantise, const Context& ctx) {
  return quantise && w.quantised() && (groups == 1 || w.cols % 128 == 0) && ctx.bf16_dot &&
         HWY_DYNAMIC_DISPATCH(PairsAreExact)();
}

void pack_row(const float* x, std::int64_t groups, const Weight& w, bool quantise, bool pairs, float* packed) {
  HWY_DYNAMIC_DISPATCH(PackRow)(x, groups, w, quantise, pairs, packed);
}

PackedRows pack_rows(Mat<const float> x, std::int64_t groups, const Weight& w, bool quantise, Context& ctx) {
  const bool pairs = use_pairs(w, groups, quantise, ctx);
  const std::int64_t padded = padded_cols(w.cols);
  if (!quantise && w.dtype != DType::kFp4x2 && padded == w.cols && x.rows <= kFewTokens) {
    return {x.data, x.ld, padded, false};
  }
  const std::int64_t ld = packed_ld(groups * padded);
  float* packed = ctx.scratch.take<float>(x.rows * ld);
  ctx.pool.parallel_for(x.rows, grain(x.rows, 4 * x.cols, 1, ctx), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) pack_row(x.row(t), groups, w, quantise, pairs, packed + t * ld);
  });
  return {packed, ld, pairs ? padded / 2 : padded, pairs};
}

void multiply_rows(const Weight& w, std::int64_t begin, std::int64_t end, const float* const* x, std::int64_t tokens,
                   bool pairs, float* const* y) {
  HWY_DYNAMIC_DISPATCH(MultiplyRows)(w, begin, end, x, tokens, pairs, y);
}

std::int64_t product_grain(const Weight& w, std::int64_t rows, std::int64_t tokens, const Context& ctx) {
  return grain(rows, w.cols * (1 + tokens) / 4, tokens <= kFewTokens ? 4 : 16, ctx);
}

}  // namespace fathom::ops::cpu
#endif
