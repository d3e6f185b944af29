// Attention of few tokens: a block takes one part of the rows of 16 heads of one token, merge() adds the parts.
#include <algorithm>

#include "ops/attention/attention_mma.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr int kHeads = 16;
constexpr int kQuarters = 4;
constexpr int kLogitPitch = kPartRows + 4;
constexpr int kProbabilityPitch = kPartRows + 8;

// Less than the 99 KiB that any GPU grants a block.
struct Room {
  union {
    std::uint16_t q[kHeads][kMmaPitch];
    std::uint16_t p[kHeads][kProbabilityPitch];  // once the queries have been used
  };
  std::uint16_t rows[kPartRows][kMmaPitch];
  float logits[kQuarters][kHeads][kLogitPitch];
};
static_assert(sizeof(Room) <= 99 << 10);

// The queries of 16 heads: asked for, then, rounded and in order, written to shared memory. A thread has 4 dims of
// every second head.
struct Queries {
  static constexpr int kAcross = kMmaDim / 4;
  static constexpr int kEach = kHeads * kAcross / kMmaThreads;
  float4 v[kEach];

  __device__ Queries(const SparseAttention& op, std::int64_t t, int h0) {
    const int dim = threadIdx.x % kAcross * 4;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      // What comes of heads that there are not is not looked at.
      const int h = min(h0 + static_cast<int>(threadIdx.x) / kAcross + i * (kMmaThreads / kAcross), op.heads - 1);
      v[i] = *reinterpret_cast<const float4*>(op.q.data + t * op.q.ld + static_cast<std::int64_t>(h) * kMmaDim + dim);
    }
  }
  __device__ void store(Room& room) const {
    const int dim = threadIdx.x % kAcross * 4;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int h = static_cast<int>(threadIdx.x) / kAcross + i * (kMmaThreads / kAcross);
      *reinterpret_cast<uint2*>(&room.q[h][dim]) = dim < kMmaPlain ? pack_plain(v[i]) : pack_rotated(v[i]);
    }
  }
};

// Rows [begin, begin + n) of what is visible to shared memory, zeros behind them. A warp has every eighth row; all
// stored ones are asked for before the first is used.
__device__ void load_rows(const SparseAttention& op, const DeviceRing& ring, const DevicePages& pages,
                          const Visible& visible, int begin, int n, Room& room, const Queries& queries) {
  constexpr int kEach = kPartRows / kMmaWarps;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  Visible::Place place{nullptr, nullptr, false};
  if (lane < kEach && warp + lane * kMmaWarps < n)
    place = visible.place(op, ring, pages, begin + warp + lane * kMmaWarps);
  StoredRow stored[kEach];
  const float* values[kEach];
  bool here[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const auto from = __shfl_sync(kAll, reinterpret_cast<std::uintptr_t>(place.stored), i);
    values[i] = reinterpret_cast<const float*>(__shfl_sync(kAll, reinterpret_cast<std::uintptr_t>(place.values), i));
    here[i] = from != 0;
    if (here[i]) stored[i].load(reinterpret_cast<const std::byte*>(from), lane);
  }
  queries.store(room);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (here[i]) continue;
    std::uint16_t* row = room.rows[warp + i * kMmaWarps];
#pragma unroll
    for (int j = 0; j < kMmaDim / 4 / kWarp; ++j) {
      const int dim = 4 * (lane + j * kWarp);
      const float4 v = values[i] != nullptr ? *reinterpret_cast<const float4*>(values[i] + dim) : float4{0, 0, 0, 0};
      *reinterpret_cast<uint2*>(row + dim) = dim < kMmaPlain ? pack_plain(v) : pack_rotated(v);
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!here[i]) continue;
    std::uint16_t* row = room.rows[warp + i * kMmaWarps];
    stored[i].store(lane, row + 8 * lane, row + StoredRow::second_dim(lane), row + StoredRow::third_dim(lane));
  }
}

// Dot products: a warp has 32 rows and a quarter of the dims.
__device__ void multiply_queries(Room& room) {
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int row0 = warp % 2 * 32;
  const int quarter = warp / 2;
  const int dim0 = quarter * (kMmaDim / kQuarters);
  const std::uint32_t a_at = shared_address(&room.q[matrix_row(lane)][dim0 + matrix_column(lane)]);
  const std::uint32_t b_at = shared_address(&room.rows[row0 + matrix_b_row(lane)][dim0 + matrix_b_column(lane)]);
  float c[4][4] = {};
#pragma unroll
  for (int k = 0; k < kMmaDim / kQuarters / 16; ++k) {
    std::uint32_t a[4];
    load_matrices(a, a_at + k * 32);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      std::uint32_t b[4];
      load_matrices(b, b_at + k * 32 + j * 16 * kMmaPitch * 2);
      multiply_tile(c[2 * j], a, b[0], b[1]);
      multiply_tile(c[2 * j + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float* to = &room.logits[quarter][lane / 4][row0 + 8 * j + lane % 4 * 2];
    *reinterpret_cast<float2*>(to) = {c[j][0], c[j][1]};
    *reinterpret_cast<float2*>(to + 8 * kLogitPitch) = {c[j][2], c[j][3]};
  }
}

// Probabilities: 16 lanes have a head, 4 of them 16 rows, as lanes hold them in attention_whole_cuda.cu.
__device__ PartWeight weigh(Room& room, int n, float scale) {
  const int h = threadIdx.x / 16;
  const int row0 = threadIdx.x % 16 / 4 * 16 + threadIdx.x % 4 * 2;
  float x[4];
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = row0 + i / 2 * 8 + i % 2;
    float dot = room.logits[0][h][row];
#pragma unroll
    for (int quarter = 1; quarter < kQuarters; ++quarter) dot += room.logits[quarter][h][row];
    x[i] = row < n ? exponent(dot, scale) : -INFINITY;
    top = fmaxf(top, x[i]);
  }
#pragma unroll
  for (int d = 8; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, d));
  top = reference(top);
#pragma unroll
  for (float& v : x) v = related(v, top);
  float sum = (x[0] + x[1]) + (x[2] + x[3]);
#pragma unroll
  for (const int d : {4, 8, 1, 2}) sum += __shfl_xor_sync(kAll, sum, d);
  *reinterpret_cast<std::uint32_t*>(&room.p[h][row0]) = pack_rounded(x[0], x[1]);
  *reinterpret_cast<std::uint32_t*>(&room.p[h][row0 + 8]) = pack_rounded(x[2], x[3]);
  return {top, sum};
}

// The weighted sum of the rows: a warp has an eighth of the dims.
__device__ void multiply_rows(const Room& room, float (&c)[8][4]) {
  const int lane = threadIdx.x % kWarp;
  const int dim0 = threadIdx.x / kWarp * (kMmaDim / kMmaWarps);
  const std::uint32_t a_at = shared_address(&room.p[matrix_row(lane)][matrix_column(lane)]);
  const std::uint32_t b_at = shared_address(&room.rows[matrix_row(lane)][dim0 + matrix_column(lane)]);
#pragma unroll
  for (int k = 0; k < kPartRows / 16; ++k) {
    std::uint32_t a[4];
    load_matrices(a, a_at + k * 32);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      std::uint32_t b[4];
      load_matrices_turned(b, b_at + k * 16 * kMmaPitch * 2 + j * 32);
      multiply_tile(c[2 * j], a, b[0], b[1]);
      multiply_tile(c[2 * j + 1], a, b[2], b[3]);
    }
  }
}

__global__ void __launch_bounds__(kMmaThreads)
    attend_parts(SparseAttention op, DeviceRing ring, DevicePages pages, float scale, Partials partials) {
  await_previous();
  extern __shared__ uint4 shared16[];
  Room& room = *reinterpret_cast<Room*>(shared16);
  const std::int64_t t = partials.t0 + static_cast<std::int64_t>(blockIdx.z);
  const int part = static_cast<int>(blockIdx.x);
  const int h0 = static_cast<int>(blockIdx.y) * kHeads;
  const Segment segment = op.batch.segments[op.batch.segment_of[t]];
  const Visible visible(op, segment, t);
  const int begin = part * kPartRows;
  const int n = min(kPartRows, visible.n - begin);
  if (n <= 0) return;
  const Queries queries(op, t, h0);
  load_rows(op, ring, pages, visible, begin, n, room, queries);
  __syncthreads();
  multiply_queries(room);
  __syncthreads();
  const PartWeight weight = weigh(room, n, scale);
  const std::int64_t first = partials.at(t, part, h0);
  if (threadIdx.x % 16 == 0) partials.weights[first + threadIdx.x / 16] = weight;
  __syncthreads();
  float c[8][4] = {};
  multiply_rows(room, c);
  const int lane = threadIdx.x % kWarp;
  float* sums = partials.sums + (first + lane / 4) * kMmaDim + threadIdx.x / kWarp * (kMmaDim / kMmaWarps) + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    *reinterpret_cast<float2*>(sums + 8 * j) = {c[j][0], c[j][1]};
    *reinterpret_cast<float2*>(sums + 8 * kMmaDim + 8 * j) = {c[j][2], c[j][3]};
  }
}

}  // namespace

void attend_spread(Context& c, const SparseAttention& op) {
  const int head_blocks = ceil_div(op.heads, kHeads);
  Pieces pieces;
  const PartialsPlan plan(op, kPartRows, head_blocks * kHeads, pieces);
  std::byte* memory = c.scratch->take(pieces.bytes(), c.fault);
  if (memory == nullptr) return;
  for (std::int32_t t0 = 0; t0 < op.batch.tokens; t0 += plan.tokens()) {
    const Partials partials = plan.at(memory, t0);
    const std::int32_t n = std::min(plan.tokens(), op.batch.tokens - t0);
    launch(c, "sparse_attention_parts", attend_parts,
           dim3(static_cast<unsigned>(plan.units()), static_cast<unsigned>(head_blocks), static_cast<unsigned>(n)),
           kMmaThreads, sizeof(Room), op, DeviceRing(op.ring), DevicePages(op.entries), exponent_scale(), partials);
    merge(c, op, partials, n);
  }
}

}  // namespace fathom::ops::cuda
