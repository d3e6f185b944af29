// Products of packed weights (codes.h) with many tokens: of one matrix, and of experts that many tokens chose.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/codes.h"

namespace fathom::ops::cuda {

inline constexpr int kManyTokens = 128;  // of an item
inline constexpr int kManyRows = 65;     // of x, from which on products of one matrix go this way

// Codes of rows of inputs as the kernel copies them into shared memory: of 64 rows and a block of 128 inputs 8,192 bytes,
// then the next block of the same rows. A row has 128 bytes as in Codes, but that its piece p of 16 is at place
// p ^ (row % 8). Scales are in the same order, [rows / 64][block][row % 64].
struct CodeTiles {
  const std::byte* codes = nullptr;
  const float* scales = nullptr;
  int blocks = 0;
};

// Which rows are wanted: the first `rows`; or those of items of up to kManyTokens entries, item i's from row
// i * kManyTokens on, where entry e is row list[e], or e without a list.
struct TileRows {
  std::int64_t rows = 0;
  const std::int32_t* list = nullptr;
  const Item* items = nullptr;
  const std::int32_t* n_items = nullptr;
  std::int64_t most_items = 0;

  std::int64_t padded() const {
    return kManyTokens * (items != nullptr ? most_items : (rows + kManyTokens - 1) / kManyTokens);
  }
};

// Bytes that tiles of `rows` by `cols` inputs take; cols in whole blocks.
std::size_t code_tiles_bytes(const TileRows& rows, std::int64_t cols);
// Makes tiles of x, in memory aligned to 256.
CodeTiles make_code_tiles(Context& c, Mat<const float> x, const TileRows& rows, std::byte* memory);
// The same out of tiles of all rows in order.
CodeTiles gather_code_tiles(Context& c, const CodeTiles& from, const TileRows& rows, std::byte* memory);

// Tiles of the same memory, to be written: what a kGate product leaves for the next one.
CodeTiles code_tiles_in(const TileRows& rows, std::int64_t cols, std::byte* memory);

// p.x is not read: `x` has the rows in order, or those of the items. Items are of up to kManyTokens; p.m.groups is 1.
// Of kGate the results go, quantised, to the same rows of `to` instead of p.m.y.
void run_codes_many(Context& c, const char* name, const CodesProduct& p, const CodeTiles& x, const CodeTiles& to = {});

}  // namespace fathom::ops::cuda
