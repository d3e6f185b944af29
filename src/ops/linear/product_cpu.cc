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

// ---- Few tokens: weights go from memory through registers into the sums, each byte once.

// kRows rows of one chunk times kTokens rows of x.
template <class F, int kRows, int kTokens>
HWY_INLINE void add_chunk(const F& format, const Bytes* rows, const Lanes* scale, const float* const* x, std::int64_t k,
                          Lanes (&acc)[kRows][kTokens]) {
  Lanes sum[kRows][kTokens];
  FATHOM_UNROLL for (int r = 0; r < kRows; ++r) {
    FATHOM_UNROLL for (int t = 0; t < kTokens; ++t) sum[r][t] = F::kScaled ? zero_lanes() : acc[r][t];
  }
  FATHOM_UNROLL for (int half = 0; half < 2; ++half) {
    FATHOM_UNROLL for (int r = 0; r < kRows; ++r) {
      Lanes w[4];
      format.decode(rows[r], half, w);
      FATHOM_UNROLL for (int i = 0; i < 4; ++i) {
        FATHOM_UNROLL for (int t = 0; t < kTokens; ++t) {
          sum[r][t] = fma(load_lanes(x[t] + k + 64 * half + 16 * i), w[i], sum[r][t]);
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
    add_chunk<F, 1, kTokens>(format, &bytes, scale, x, w.cols / kChunk * kChunk, one);
    FATHOM_UNROLL for (int t = 0; t < kTokens; ++t) acc[r][t] = one[0][t];
  }
}

template <class F>
HWY_INLINE bool row_is_nan(const Weight& w, std::int64_t row) {
  if constexpr (std::is_same_v<F, Fp8Format>) {
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
  // Far enough ahead to hide memory, near enough to stay in the first cache.
  constexpr std::int64_t kAhead = 1024;
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
      for (int line = 0; line < F::kChunkBytes; line += 64) hwy::Prefetch(rows[r] + kAhead + line);
    }
    load_scales<F, kRows>(format, w, row, c, scale);
    add_chunk<F, kRows, kTokens>(format, rows, scale, x, c * kChunk, acc);
  }
  if (chunks * kChunk < w.cols) add_tail<F, kRows, kTokens>(format, w, row, x, acc);
  for (int r = 0; r < kRows; ++r) {
    const bool nan = row_is_nan<F>(w, row + r);
    for (int t = 0; t < kTokens; ++t) {
      y[t][row + r] = nan ? std::numeric_limits<float>::quiet_NaN() : finish<F>(sum_lanes(acc[r][t]));
    }
  }
}

template <class F, int kTokens>
void stream(const Weight& w, std::int64_t begin, std::int64_t end, const float* const* x, float* const* y) {
  constexpr int kRows = kTokens == 1 ? 4 : 2;
  const F format;
  std::int64_t row = begin;
  for (; row < end && row % kRows != 0; ++row) stream_rows<F, 1, kTokens>(format, w, row, x, y);
  for (; row + kRows <= end; row += kRows) stream_rows<F, kRows, kTokens>(format, w, row, x, y);
  for (; row < end; ++row) stream_rows<F, 1, kTokens>(format, w, row, x, y);
}

// ---- Many tokens: sixteen rows are decoded once into a panel, and small tiles of outputs are summed from it.

constexpr int kPanelRows = 16;
constexpr int kTileRows = 4;
constexpr int kTileTokens = kWidth == 8 || HWY_TARGET == HWY_SSE4 ? 2 : 4;  // as the registers allow
constexpr int kTokenBlock = 16;
constexpr int kPanelRow = kChunk + 16;  // unscaled weights of one row, then its scale in every lane

template <class F>
void decode_panel(const F& format, const Weight& w, std::int64_t begin, std::int64_t rows, std::int64_t chunk,
                  float* panel) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* out = panel + r * kPanelRow;
    Lanes v[4];
    const auto put = [&](Bytes bytes) HWY_ATTR {
      FATHOM_UNROLL for (int half = 0; half < 2; ++half) {
        format.decode(bytes, half, v);
        FATHOM_UNROLL for (int i = 0; i < 4; ++i) store_lanes(v[i], out + 64 * half + 16 * i);
      }
    };
    if ((chunk + 1) * kChunk <= w.cols) {
      put(bytes_of(w.data) + (begin + r) * w.row_bytes() + chunk * F::kChunkBytes);
      if constexpr (F::kScaled) store_lanes(format.scale(w, begin + r, chunk), out + kChunk);
    } else {
      const Tail tail(format, w, begin + r);
      put(tail.bytes);
      if constexpr (F::kScaled) store_lanes(format.scale(tail.w, 0, 0), out + kChunk);
    }
  }
  std::fill(panel + rows * kPanelRow, panel + (rows + kTileRows - 1) / kTileRows * kTileRows * kPanelRow, 0.0F);
}

// Four rows of a panel times kTokens rows of x, one chunk. acc: [kTileRows][kTokenBlock][16].
template <bool kScaled, int kTokens>
HWY_INLINE void add_tile(const float* HWY_RESTRICT panel, const float* const* x, std::int64_t k,
                         float* HWY_RESTRICT acc) {
  FATHOM_UNROLL for (int p = 0; p < kParts; ++p) {
    V sum[kTileRows][kTokens];
    const std::int64_t lane = p * kWidth;
    FATHOM_UNROLL for (int r = 0; r < kTileRows; ++r) {
      FATHOM_UNROLL for (int t = 0; t < kTokens; ++t) {
        sum[r][t] = kScaled ? hn::Zero(D()) : hn::LoadU(D(), acc + (r * kTokenBlock + t) * 16 + lane);
      }
    }
    FATHOM_UNROLL for (int n = 0; n < 8; ++n) {
      V w[kTileRows];
      FATHOM_UNROLL for (int r = 0; r < kTileRows; ++r) w[r] = hn::LoadU(D(), panel + r * kPanelRow + 16 * n + lane);
      FATHOM_UNROLL for (int t = 0; t < kTokens; ++t) {
        const V v = hn::LoadU(D(), x[t] + k + 16 * n + lane);
        FATHOM_UNROLL for (int r = 0; r < kTileRows; ++r) sum[r][t] = hn::MulAdd(v, w[r], sum[r][t]);
      }
    }
    FATHOM_UNROLL for (int r = 0; r < kTileRows; ++r) {
      FATHOM_UNROLL for (int t = 0; t < kTokens; ++t) {
        float* a = acc + (r * kTokenBlock + t) * 16 + lane;
        if constexpr (kScaled) {
          const V scale = hn::LoadU(D(), panel + r * kPanelRow + kChunk + lane);
          hn::StoreU(hn::MulAdd(sum[r][t], scale, hn::LoadU(D(), a)), D(), a);
        } else {
          hn::StoreU(sum[r][t], D(), a);
        }
      }
    }
  }
}

template <bool kScaled>
HWY_NOINLINE void add_panel(const float* panel, std::int64_t rows, const float* const* x, std::int64_t tokens,
                            std::int64_t k, float* acc) {
  for (std::int64_t r = 0; r < rows; r += kTileRows) {
    const float* w = panel + r * kPanelRow;
    float* a = acc + r * kTokenBlock * 16;
    std::int64_t t = 0;
    for (; t + kTileTokens <= tokens; t += kTileTokens) add_tile<kScaled, kTileTokens>(w, x + t, k, a + t * 16);
    for (; t < tokens; ++t) add_tile<kScaled, 1>(w, x + t, k, a + t * 16);
  }
}

template <class F>
void panels(const Weight& w, std::int64_t begin, std::int64_t end, const float* const* x, std::int64_t tokens,
            float* const* y, float* scratch) {
  const F format;
  const std::int64_t chunks = (w.cols + kChunk - 1) / kChunk;
  float* acc = scratch;  // [kPanelRows][kTokenBlock][16]
  float* panel = acc + kPanelRows * kTokenBlock * 16;
  for (std::int64_t row = begin; row < end; row += kPanelRows) {
    const std::int64_t rows = std::min<std::int64_t>(kPanelRows, end - row);
    bool nan[kPanelRows];
    for (std::int64_t r = 0; r < rows; ++r) nan[r] = row_is_nan<F>(w, row + r);
    for (std::int64_t t = 0; t < tokens; t += kTokenBlock) {
      const std::int64_t n = std::min<std::int64_t>(kTokenBlock, tokens - t);
      std::fill(acc, acc + kPanelRows * kTokenBlock * 16, 0.0F);
      for (std::int64_t c = 0; c < chunks; ++c) {
        // One block of tokens: the decoded chunk never leaves the first cache. Several: the panel is kept for the
        // others.
        float* at = panel + (tokens <= kTokenBlock ? 0 : c * kPanelRows * kPanelRow);
        if (t == 0) decode_panel(format, w, row, rows, c, at);
        add_panel<F::kScaled>(at, rows, x + t, n, c * kChunk, acc);
      }
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t r = 0; r < rows; ++r) {
          const float sum = finish<F>(sum_lanes(load_lanes(acc + (r * kTokenBlock + i) * 16)));
          y[t + i][row + r] = nan[r] ? std::numeric_limits<float>::quiet_NaN() : sum;
        }
      }
    }
  }
}

template <class F>
void multiply(const Weight& w, std::int64_t begin, std::int64_t end, const float* const* x, std::int64_t tokens,
              float* const* y, float* scratch) {
  switch (tokens) {
    case 0: return;
    case 1: return stream<F, 1>(w, begin, end, x, y);
    case 2: return stream<F, 2>(w, begin, end, x, y);
    case 3: return stream<F, 3>(w, begin, end, x, y);
    case 4: return stream<F, 4>(w, begin, end, x, y);
    default: return panels<F>(w, begin, end, x, tokens, y, scratch);
  }
}

void MultiplyRows(const Weight& w, std::int64_t begin, std::int64_t end, const float* const* x, std::int64_t tokens,
                  float* const* y, float* scratch) {
  switch (w.dtype) {
    case DType::kF32: return multiply<F32Format>(w, begin, end, x, tokens, y, scratch);
    case DType::kBf16: return multiply<Bf16Format>(w, begin, end, x, tokens, y, scratch);
    case DType::kF8E4M3: return multiply<Fp8Format>(w, begin, end, x, tokens, y, scratch);
    case DType::kFp4x2:
      FATHOM_CHECK(w.cols % quant::kFp4Block == 0, "FP4 rows are whole scale blocks");
      return multiply<Fp4Format>(w, begin, end, x, tokens, y, scratch);
    default: FATHOM_CHECK(false, "a weight is F32, BF16, F8_E4M3 or packed FP4");
  }
}

void PackRow(const float* x, std::int64_t groups, const Weight& w, bool quantise, float* packed) {
  const std::int64_t cols = w.cols;
  const std::int64_t padded = cpu::padded_cols(cols);
  // Quantised as one row (its blocks do not know groups), from the back, so that groups move apart without overlap.
  std::copy_n(x, groups * cols, packed);
  if (quantise) fp8_round_trip(packed, groups * cols, quant::kActBlock);
  for (std::int64_t g = groups - 1; g >= 0; --g) {
    float* to = packed + g * padded;
    std::copy_backward(packed + g * cols, packed + (g + 1) * cols, to + cols);
    std::fill(to + cols, to + padded, 0.0F);
  }
  if (w.dtype != DType::kFp4x2) return;
  for (std::int64_t c = 0; c < groups * padded; c += kChunk) {
    float chunk[kChunk];
    std::copy_n(packed + c, kChunk, chunk);
    for (int i = 0; i < 16; ++i) {
      for (int n = 0; n < 8; ++n) packed[c + 16 * n + i] = chunk[8 * i + n];
    }
  }
}

}  // namespace
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops::cpu {
namespace {

HWY_EXPORT(MultiplyRows);
HWY_EXPORT(PackRow);

constexpr std::int64_t kFewTokens = 4;

}  // namespace

void pack_row(const float* x, std::int64_t groups, const Weight& w, bool quantise, float* packed) {
  HWY_DYNAMIC_DISPATCH(PackRow)(x, groups, w, quantise, packed);
}

PackedRows pack_rows(Mat<const float> x, std::int64_t groups, const Weight& w, bool quantise, Context& ctx) {
  const std::int64_t group_cols = padded_cols(w.cols);
  if (!quantise && w.dtype != DType::kFp4x2 && group_cols == w.cols && x.rows <= kFewTokens) {
    return {x.data, x.ld, group_cols};
  }
  // Rows 512 bytes apart modulo 4096: sixteen of them do not fight for the same sets of the first cache.
  const std::int64_t ld = (groups * group_cols + 1023) / 1024 * 1024 + 128;
  float* packed = ctx.scratch.take<float>(x.rows * ld);
  ctx.pool.parallel_for(x.rows, grain(x.rows, 4 * x.cols, 1, ctx), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) pack_row(x.row(t), groups, w, quantise, packed + t * ld);
  });
  return {packed, ld, group_cols};
}

void multiply_rows(const Weight& w, std::int64_t begin, std::int64_t end, const float* const* x, std::int64_t tokens,
                   float* const* y, float* scratch) {
  HWY_DYNAMIC_DISPATCH(MultiplyRows)(w, begin, end, x, tokens, y, scratch);
}

std::int64_t product_scratch(const Weight& w, std::int64_t tokens) {
  constexpr std::int64_t kRows = 16;
  constexpr std::int64_t kBlock = 16;
  if (tokens <= kFewTokens) return 0;
  const std::int64_t chunks = tokens <= kBlock ? 1 : padded_cols(w.cols) / 128;
  return kRows * kBlock * 16 + chunks * kRows * (128 + 16);
}

std::int64_t product_grain(const Weight& w, std::int64_t rows, std::int64_t tokens, const Context& ctx) {
  return grain(rows, w.cols * (1 + tokens) / 4, tokens <= kFewTokens ? 4 : 16, ctx);
}

}  // namespace fathom::ops::cpu
#endif
