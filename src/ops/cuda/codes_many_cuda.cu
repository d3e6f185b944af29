#include "ops/cuda/codes_many.cuh"

#include <algorithm>

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPieces = kCodeRow / 16;

struct TilesTo {
  std::byte* codes;
  float* scales;
  int blocks;
};

#if FATHOM_WGMMA

// Row `row` of the tiles: the row of x that it has, or -1.
__device__ std::int64_t row_of_tiles(const TileRows& rows, std::int64_t row) {
  if (rows.items == nullptr) return row < rows.rows ? row : -1;
  const std::int64_t item = row / kManyTokens;
  if (item >= *rows.n_items) return -1;
  const Item it = rows.items[item];
  const auto n = static_cast<int>(row % kManyTokens);
  if (n >= it.count) return -1;
  return rows.list != nullptr ? rows.list[it.first + n] : it.first + n;
}

// Piece p of block b of a row, and the block's scale.
__device__ std::byte* piece_of(const TilesTo& to, std::int64_t row, int b, int p) {
  const auto n = static_cast<int>(row % kTileRows);
  return to.codes + (row / kTileRows * to.blocks + b) * kCodeTileBytes + code_piece(n, p);
}
__device__ float& scale_of(const TilesTo& to, std::int64_t row, int b) {
  return to.scales[(row / kTileRows * to.blocks + b) * kTileRows + row % kTileRows];
}

#endif

// A warp a block of 128 inputs of a row.
__global__ void make_tiles(Mat<const float> x, TileRows rows, TilesTo to) {
#if FATHOM_WGMMA
  await_previous();
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  const std::int64_t row = i / to.blocks;
  const auto b = static_cast<int>(i % to.blocks);
  const std::int64_t from_row = row_of_tiles(rows, row);
  if (from_row < 0) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* const from = x.data + from_row * x.ld + b * kBlock + 4 * lane;
  float v[4];
  if (reinterpret_cast<std::uintptr_t>(from) % sizeof(float4) == 0) {
    const float4 all = *reinterpret_cast<const float4*>(from);
    v[0] = all.x;
    v[1] = all.y;
    v[2] = all.z;
    v[3] = all.w;
  } else {
    for (int j = 0; j < 4; ++j) v[j] = from[j];
  }
  float scale;
  const std::uint32_t codes = quantise_to_codes(v, scale);
  const int word = code_word(lane);
  reinterpret_cast<std::uint32_t*>(piece_of(to, row, b, word / 4))[word % 4] = codes;
  if (lane == 0) scale_of(to, row, b) = scale;
#endif
}

// A thread a piece of 16 codes.
__global__ void gather_tiles(TilesTo from, TileRows rows, TilesTo to) {
#if FATHOM_WGMMA
  await_previous();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = i / kPieces / to.blocks;
  const auto b = static_cast<int>(i / kPieces % to.blocks);
  const auto p = static_cast<int>(i % kPieces);
  const std::int64_t from_row = row_of_tiles(rows, row);
  if (from_row < 0) return;
  *reinterpret_cast<uint4*>(piece_of(to, row, b, p)) =
      *reinterpret_cast<const uint4*>(piece_of(from, from_row, b, p));
  if (p == 0) scale_of(to, row, b) = scale_of(from, from_row, b);
#endif
}

TilesTo tiles_in(std::byte* memory, const TileRows& rows, int blocks) {
  const std::int64_t codes = rows.padded() * blocks * kCodeRow;
  return {memory, reinterpret_cast<float*>(memory + codes), blocks};
}

unsigned grid_of(std::int64_t threads) { return static_cast<unsigned>(ceil_div(threads, kThreads)); }

}  // namespace

std::size_t code_tiles_bytes(const TileRows& rows, std::int64_t cols) { return codes_bytes(rows.padded(), cols); }

CodeTiles make_code_tiles(Context& c, Mat<const float> x, const TileRows& rows, std::byte* memory) {
  const TilesTo to = tiles_in(memory, rows, static_cast<int>(x.cols / kBlock));
  const std::int64_t all = rows.items != nullptr ? rows.padded() : rows.rows;
  launch(c, "make_code_tiles", make_tiles, dim3(grid_of(all * to.blocks * kWarp)), kThreads, 0, x, rows, to);
  return {to.codes, to.scales, to.blocks};
}

CodeTiles gather_code_tiles(Context& c, const CodeTiles& from, const TileRows& rows, std::byte* memory) {
  const TilesTo to = tiles_in(memory, rows, from.blocks);
  const TilesTo all{const_cast<std::byte*>(from.codes), const_cast<float*>(from.scales), from.blocks};
  launch(c, "gather_code_tiles", gather_tiles, dim3(grid_of(rows.padded() * to.blocks * kPieces)), kThreads, 0, all,
         rows, to);
  return {to.codes, to.scales, to.blocks};
}

CodeTiles code_tiles_in(const TileRows& rows, std::int64_t cols, std::byte* memory) {
  const TilesTo to = tiles_in(memory, rows, static_cast<int>(cols / kBlock));
  return {to.codes, to.scales, to.blocks};
}

void run_codes_many(Context& c, const char* name, const CodesProduct& p, const CodeTiles& x, const CodeTiles& to) {
  const CodesJob job = codes_job_of(p);
  const bool gate = p.m.part == Part::kGate;
  FATHOM_CHECK(p.m.groups == 1 && x.blocks == job.job.blocks, "what the kernel takes");
  FATHOM_CHECK(!gate || (job.job.segments == 1 && to.blocks * kBlock == p.m.w.rows), "where the results go");
  const bool one = p.m.items == nullptr;
  const int items = one ? ceil_div(p.m.rows, kManyTokens) : static_cast<int>(p.m.most_items);
  const auto go = [&](auto kernel, std::size_t shared) {
    launch(c, name, kernel, dim3(static_cast<unsigned>(c.multiprocessors)), kManyThreads, shared, job.job, x, to, items);
  };
  const auto of = [&]<Format F>() {
    if (gate) go(codes_many<F, true, 2, false>, many_shared<ManyStage<F, 2>, true>());
    else if (job.job.segments == 1) go(codes_many<F, false, 2, false>, many_shared<ManyStage<F, 2>, false>());
    else go(codes_many<F, false, 1, true>, many_shared<ManyStage<F, 1>, false>());
  };
  if (job.fp4) of.operator()<Format::kFp4>();
  else of.operator()<Format::kFp8>();
}

}  // namespace fathom::ops::cuda
