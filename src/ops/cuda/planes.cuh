// How values become bf16 numbers in the order that the tensor units read (matmul.h, Planes), a warp a block of 128:
// lane l has values [4 l, 4 l + 4).
#pragma once

#include "ops/cuda/matmul_common.cuh"
#include "ops/cuda/numbers.cuh"

namespace fathom::ops::cuda {

// Puts the block through FP8.
__device__ inline void quantise_block(float (&v)[4]) {
  float top = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) top = fmaxf(top, fabsf(v[j]));
  const float scale = ue8m0(fp8_scale_code(warp_max(top)));
#pragma unroll
  for (int j = 0; j < 4; ++j) v[j] = fp8_round(v[j], scale);
}

// Where in the block a lane's 4 numbers go: in kRow run 2t + h of 16 goes to half h, place t.
__device__ inline int place_in_block(Order order, int lane) {
  const int run = lane / 4;
  return order == Order::kRow ? (run % 2 * 4 + run / 2) * 16 + lane % 4 * 4 : 4 * lane;
}

// The 4 numbers that the lane writes there. Two lanes have 8 values; the order is 0 4 1 5 2 6 3 7, so each writes half
// of it with values of both.
__device__ inline uint2 plane_pair(const std::uint32_t (&bits)[4], int lane) {
  const bool odd = lane % 2 == 1;
  const std::uint32_t low = bits[0] | bits[1] << 16;
  const std::uint32_t high = bits[2] | bits[3] << 16;
  const std::uint32_t got = __shfl_xor_sync(kAll, odd ? low : high, 1);
  const std::uint32_t mine = odd ? high : low;
  const std::uint32_t four = odd ? got : mine;   // of the first lane
  const std::uint32_t eight = odd ? mine : got;  // of the second
  return {__byte_perm(four, eight, 0x5410), __byte_perm(four, eight, 0x7632)};
}

// Writes them into their place in a row's block, in any order. For rows in shared memory, the two pairs of run t of 16
// of a half are in columns 2t and 2t + 8 of one group of 16.
__device__ inline void store_pairs(std::uint16_t* block, Order order, int lane, uint2 pairs) {
  const bool shared = order == Order::kHalvesShared || order == Order::kRowShared;
  if (!shared) {
    *reinterpret_cast<uint2*>(block + place_in_block(order, lane)) = pairs;
    return;
  }
  const int run = lane / 4;
  const int half = order == Order::kHalvesShared ? run / 4 : run % 2;
  const int t = order == Order::kHalvesShared ? run % 4 : run / 2;
  auto* group = reinterpret_cast<std::uint32_t*>(block + 64 * half + lane % 4 * 16);
  group[t] = pairs.x;
  group[t + 4] = pairs.y;
}

// The lane's 4 values of a block into its place in `block`, rounded to bf16 or put through FP8.
__device__ inline void store_block(float4 values, Values as, Order order, std::uint16_t* block) {
  const int lane = threadIdx.x % kWarp;
  float v[4] = {values.x, values.y, values.z, values.w};
  if (as == Values::kQuantise) quantise_block(v);
  std::uint32_t bits[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) bits[j] = bf16_bits(v[j]);
  *reinterpret_cast<uint2*>(block + place_in_block(order, lane)) = plane_pair(bits, lane);
}

// Rows of f32 numbers into shared memory as planes, by kMatmulWarps warps: from(n) is where row n of `rows` begins,
// order(n) the order it wants. cols is a multiple of kBlock; to: rows of `pitch` numbers. No barrier.
template <class From, class OrderOf>
__device__ inline void stage_rows(int rows, int cols, Values as, const From& from, const OrderOf& order,
                                  std::uint16_t* to, int pitch) {
  constexpr int kAhead = 4;  // blocks under way
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int blocks = cols / kBlock;
  const bool a_row_each = rows >= kMatmulWarps / 2;  // or all warps on every row
  const int step = a_row_each ? 1 : kMatmulWarps;
#pragma unroll 1
  for (int n = a_row_each ? warp : 0; n < rows; n += a_row_each ? kMatmulWarps : 1) {
    const float* const row = from(n) + 4 * lane;
    const Order in = order(n);
#pragma unroll 1
    for (int b = a_row_each ? 0 : warp; b < blocks; b += kAhead * step) {
      float4 v[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        v[j] = {0, 0, 0, 0};
        if (b + j * step < blocks) v[j] = *reinterpret_cast<const float4*>(row + (b + j * step) * kBlock);
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (b + j * step < blocks) store_block(v[j], as, in, to + n * pitch + (b + j * step) * kBlock);
      }
    }
  }
}

}  // namespace fathom::ops::cuda
