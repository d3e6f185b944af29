// The matrix products of the CPU backend: rows of a weight times rows of x, by dot16 (simd/lanes-inl.h).
#pragma once

#include <cstdint>

#include "ops/cpu.h"
#include "ops/weight.h"

namespace fathom::ops::cpu {

// Rows of activations as the products read them: `groups` runs of w.cols columns, each run filled up with zeros to a
// multiple of 128, in the column order of the weight's format, quantised where asked.
struct PackedRows {
  const float* data = nullptr;
  std::int64_t ld = 0;
  std::int64_t group_cols = 0;  // padded

  const float* row(std::int64_t t) const { return data + t * ld; }
};

inline std::int64_t padded_cols(std::int64_t cols) { return (cols + 127) / 128 * 128; }

// All rows of x, in scratch memory (or x itself where it already is as it must be). Uses all threads.
PackedRows pack_rows(Mat<const float> x, std::int64_t groups, const Weight& w, bool quantise, Context& ctx);

// One row: groups * w.cols values to groups * padded_cols(w.cols).
void pack_row(const float* x, std::int64_t groups, const Weight& w, bool quantise, float* packed);

// y[t][r] = dot16(row r of w, x[t]) for r in [begin, end). x: `tokens` packed rows (of one group),
// y: as many pointers to row 0's result. scratch: product_scratch(...) floats, not shared with another thread.
void multiply_rows(const Weight& w, std::int64_t begin, std::int64_t end, const float* const* x, std::int64_t tokens,
                   float* const* y, float* scratch);
std::int64_t product_scratch(const Weight& w, std::int64_t tokens);

// Output rows that a thread should take at a time.
std::int64_t product_grain(const Weight& w, std::int64_t rows, std::int64_t tokens, const Context& ctx);

}  // namespace fathom::ops::cpu
