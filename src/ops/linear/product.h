// The matrix products of the CPU backend: rows of a weight times rows of x, by dot16 (simd/lanes-inl.h).
#pragma once

#include <cstdint>

#include "ops/cpu.h"
#include "ops/weight.h"

namespace fathom::ops::cpu {

// Rows of activations as the products read them: `groups` runs of w.cols columns, each run filled up with zeros to a
// multiple of 128, in the column order of the weight's format, quantised where asked. In pairs, two bf16 values take
// the place of one f32 (simd/decode-inl.h).
struct PackedRows {
  const float* data = nullptr;
  std::int64_t ld = 0;
  std::int64_t group_floats = 0;  // from group to group
  bool pairs = false;

  const float* row(std::int64_t t) const { return data + t * ld; }
};

inline std::int64_t padded_cols(std::int64_t cols) { return (cols + 127) / 128 * 128; }
// Floats from row to row: rows lie 512 bytes apart modulo 4096, so that sixteen of them do not fight for the same sets
// of the first cache.
inline std::int64_t packed_ld(std::int64_t padded) { return (padded + 1023) / 1024 * 1024 + 128; }

// Whether the rows in front of w are packed in pairs.
bool use_pairs(const Weight& w, std::int64_t groups, bool quantise, const Context& ctx);

// All rows of x, in scratch memory (or x itself where it already is as it must be). Uses all threads.
PackedRows pack_rows(Mat<const float> x, std::int64_t groups, const Weight& w, bool quantise, Context& ctx);

// One row: groups * w.cols values to groups * padded_cols(w.cols), of which the first half is left in pairs.
void pack_row(const float* x, std::int64_t groups, const Weight& w, bool quantise, bool pairs, float* packed);

// y[t][r] = dot16(row r of w, x[t]) for r in [begin, end). x: `tokens` packed rows (of one group), y: as many pointers
// to row 0's result. scratch: product_scratch(...) floats, not shared with another thread.
void multiply_rows(const Weight& w, std::int64_t begin, std::int64_t end, const float* const* x, std::int64_t tokens,
                   bool pairs, float* const* y);

// Output rows that a thread should take at a time.
std::int64_t product_grain(const Weight& w, std::int64_t rows, std::int64_t tokens, const Context& ctx);

}  // namespace fathom::ops::cpu
