// The two ways to run attention, rows of one token spread over blocks or one block a token, share every step, and must:
// their results are the same to the bit.
#include <algorithm>
#include <cmath>

#include "ops/attention/attention_mma.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ops.h"

namespace fathom::ops::cuda {
namespace {

// A block takes kHeads heads of one token. Its visible rows come in parts of kRows, cut by their place in the visible
// set alone; each part has its own softmax, and parts are merged in order. So the result depends on the token's
// position, not on who computes which part.
constexpr int kThreads = 256;
constexpr int kHeads = 16;
constexpr int kRows = 32;
constexpr int kMostDim = 2 * kThreads;  // a thread owns two dims of every head
constexpr int kPad = 4;                 // floats between rows of shared memory, against bank conflicts

struct Shape {
  int dim;
  int stride;  // dim + kPad
};

__host__ __device__ inline Shape shape_of(int dim) { return {dim, dim + kPad}; }

// Shared memory: queries [kHeads, stride], rows [kRows, stride], probabilities [kRows, kHeads], and per head the part's
// maximum and sum.
struct Room {
  float* q;
  float* rows;
  float* p;
  float* top;
  float* sum;

  __device__ Room(float* base, Shape s)
      : q(base), rows(q + kHeads * s.stride), p(rows + kRows * s.stride), top(p + kRows * kHeads), sum(top + kHeads) {}
  static std::size_t bytes(Shape s) {
    return sizeof(float) * static_cast<std::size_t>((kHeads + kRows) * s.stride + kRows * kHeads + 2 * kHeads);
  }
};

// The running result of one head: maximum, denominator; a thread's two dims of the sum.
struct State {
  float top;
  float sum;
  float2 o;

  __device__ void merge(float part_top, float part_sum, float2 part) {
    const float m = fmaxf(top, part_top);
    const float a = expf(top - m);
    const float b = expf(part_top - m);
    sum = fmaf(sum, a, part_sum * b);
    o.x = fmaf(o.x, a, part.x * b);
    o.y = fmaf(o.y, a, part.y * b);
    top = m;
  }
};

// A warp copies whole rows, a lane up to kPieces pieces of 4 values of each: all are under way before the first is
// used.
constexpr int kPieces = kMostDim / 4 / kWarp;

__device__ void load_queries(const SparseAttention& op, const Room& room, Shape s, std::int64_t t, int h0) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int k = 0; k < kHeads / (kThreads / kWarp); ++k) {
    const int h = threadIdx.x / kWarp + k * (kThreads / kWarp);
    const float* q = op.q.data + t * op.q.ld + static_cast<std::int64_t>(h0 + h) * s.dim;
    float4 v[kPieces];
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int at = 4 * (lane + j * kWarp);
      v[j] = {0, 0, 0, 0};
      if (at < s.dim && h0 + h < op.heads) v[j] = {q[at], q[at + 1], q[at + 2], q[at + 3]};
    }
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int at = 4 * (lane + j * kWarp);
      if (at < s.dim) *reinterpret_cast<float4*>(room.q + h * s.stride + at) = v[j];
    }
  }
}

// Visible rows [begin, begin + n) of a part, decoded; the rest of the part's rows are zero.
__device__ void load_rows(const SparseAttention& op, const DeviceRing& ring, const DevicePages& pages,
                          const Visible& visible, const Room& room, Shape s, int begin, int n) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll 2
  for (int k = 0; k < kRows / (kThreads / kWarp); ++k) {
    const int r = threadIdx.x / kWarp + k * (kThreads / kWarp);
    float4 v[kPieces];
#pragma unroll
    for (int j = 0; j < kPieces; ++j) v[j] = {0, 0, 0, 0};
    if (r < n) {
      const Visible::Place from = visible.place(op, ring, pages, begin + r);
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        const int at = 4 * (lane + j * kWarp);
        if (at >= s.dim) continue;
        if (from.values != nullptr) {
          v[j] = {from.values[at], from.values[at + 1], from.values[at + 2], from.values[at + 3]};
        } else {
          v[j] = decode4(from.in_ring ? ring.codec : pages.codec, from.stored, at);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int at = 4 * (lane + j * kWarp);
      if (at < s.dim) *reinterpret_cast<float4*>(room.rows + r * s.stride + at) = v[j];
    }
  }
}

// The softmax of part `part` and its weighted sum: maxima and sums in the room, the thread's two dims of each head in
// o. Begins with a barrier.
__device__ void attend_part(const SparseAttention& op, const DeviceRing& ring, const DevicePages& pages,
                            const Visible& visible, const Room& room, Shape s, float scale, int part,
                            float2 (&o)[kHeads]) {
  const int begin = part * kRows;
  const int n = min(kRows, visible.n - begin);
  __syncthreads();  // the previous part has been read
  load_rows(op, ring, pages, visible, room, s, begin, n);
  __syncthreads();

  // A thread has head tid / 16 and rows tid % 16, tid % 16 + 16.
  static_assert(kThreads == kHeads * kRows / 2);
  const int h = threadIdx.x / (kRows / 2);
  const int r = threadIdx.x % (kRows / 2);
  const float* q = room.q + h * s.stride;
  const float* v0 = room.rows + r * s.stride;
  const float* v1 = v0 + kRows / 2 * s.stride;
  float4 d0 = {0, 0, 0, 0};
  float4 d1 = {0, 0, 0, 0};
  for (int at = 0; at < s.dim; at += 4) {
    const float4 a = *reinterpret_cast<const float4*>(q + at);
    const float4 b = *reinterpret_cast<const float4*>(v0 + at);
    const float4 c = *reinterpret_cast<const float4*>(v1 + at);
    d0 = {fmaf(a.x, b.x, d0.x), fmaf(a.y, b.y, d0.y), fmaf(a.z, b.z, d0.z), fmaf(a.w, b.w, d0.w)};
    d1 = {fmaf(a.x, c.x, d1.x), fmaf(a.y, c.y, d1.y), fmaf(a.z, c.z, d1.z), fmaf(a.w, c.w, d1.w)};
  }
  const float s0 = r < n ? ((d0.x + d0.y) + (d0.z + d0.w)) * scale : -INFINITY;
  const float s1 = r + kRows / 2 < n ? ((d1.x + d1.y) + (d1.z + d1.w)) * scale : -INFINITY;
  float top = fmaxf(s0, s1);
  for (int d = kRows / 4; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, d));
  const float p0 = r < n ? expf(s0 - top) : 0.0F;
  const float p1 = r + kRows / 2 < n ? expf(s1 - top) : 0.0F;
  float sum = p0 + p1;
  for (int d = kRows / 4; d > 0; d /= 2) sum += __shfl_xor_sync(kAll, sum, d);
  room.p[r * kHeads + h] = carry_to(p0, op.carrier);
  room.p[(r + kRows / 2) * kHeads + h] = carry_to(p1, op.carrier);
  if (r == 0) {
    room.top[h] = top;
    room.sum[h] = sum;
  }
  __syncthreads();

  for (int k = 0; k < kHeads; ++k) o[k] = {0, 0};
  const int at = 2 * static_cast<int>(threadIdx.x);
  if (at >= s.dim) return;
  for (int row = 0; row < n; ++row) {
    const float2 v = *reinterpret_cast<const float2*>(room.rows + row * s.stride + at);
    const float* p = room.p + row * kHeads;
    for (int k = 0; k < kHeads; ++k) {
      o[k].x = fmaf(p[k], v.x, o[k].x);
      o[k].y = fmaf(p[k], v.y, o[k].y);
    }
  }
}

// Divides, turns back by the token's position, rounds and writes the thread's two dims of head h.
__device__ void write_head(const SparseAttention& op, Shape s, std::int64_t t, int h, const State& state) {
  const int at = 2 * static_cast<int>(threadIdx.x);
  if (at >= s.dim || h >= op.heads) return;
  float x = carry_to(state.o.x / state.sum, op.carrier);
  float y = carry_to(state.o.y / state.sum, op.carrier);
  const int plain = s.dim - 2 * static_cast<int>(op.cos.cols);
  if (at >= plain) {
    const int j = (at - plain) / 2;
    rotate_pair(x, y, op.cos.data[t * op.cos.ld + j], -op.sin.data[t * op.sin.ld + j], op.carrier);
  }
  float* out = op.out.data + t * op.out.ld + static_cast<std::int64_t>(h) * s.dim + at;
  out[0] = x;
  out[1] = y;
}

// The sink is one more logit whose value is zero.
__device__ State fresh(const SparseAttention& op, int h) { return {h < op.heads ? op.sink[h] : 0.0F, 1.0F, {0, 0}}; }

// One block does all parts of its heads.
__global__ void __launch_bounds__(kThreads)
    attend_token(SparseAttention op, DeviceRing ring, DevicePages pages, Shape s, float scale) {
  await_previous();
  extern __shared__ float4 shared4[];
  const Room room(reinterpret_cast<float*>(shared4), s);
  const std::int64_t t = blockIdx.y;
  const int h0 = static_cast<int>(blockIdx.x) * kHeads;
  const Segment segment = op.batch.segments[op.batch.segment_of[t]];
  const Visible visible(op, segment, t);
  load_queries(op, room, s, t, h0);
  State states[kHeads];
  for (int k = 0; k < kHeads; ++k) states[k] = fresh(op, h0 + k);
  for (int part = 0; part * kRows < visible.n; ++part) {
    float2 o[kHeads];
    attend_part(op, ring, pages, visible, room, s, scale, part, o);
    for (int k = 0; k < kHeads; ++k) states[k].merge(room.top[k], room.sum[k], o[k]);
  }
  for (int k = 0; k < kHeads; ++k) write_head(op, s, t, h0 + k, states[k]);
}

// Parts spread over blocks: what one part of one head leaves, [tokens, heads rounded up, parts] of these.
struct PartSizes {
  int parts;   // most of any token
  int heads;   // heads, rounded up to kHeads
  int stride;  // floats: dim, then the maximum and the sum
  __device__ float* at(float* base, std::int64_t token, int h, int part) const {
    return base + ((token * heads + h) * parts + part) * stride;
  }
};

__global__ void __launch_bounds__(kThreads)
    attend_parts(SparseAttention op, DeviceRing ring, DevicePages pages, Shape s, float scale, int t0, PartSizes sizes,
                 float* partial) {
  await_previous();
  extern __shared__ float4 shared4[];
  const Room room(reinterpret_cast<float*>(shared4), s);
  const std::int64_t t = t0 + static_cast<std::int64_t>(blockIdx.z);
  const int part = static_cast<int>(blockIdx.x);
  const int h0 = static_cast<int>(blockIdx.y) * kHeads;
  const Segment segment = op.batch.segments[op.batch.segment_of[t]];
  const Visible visible(op, segment, t);
  if (part * kRows >= visible.n) return;
  load_queries(op, room, s, t, h0);
  float2 o[kHeads];
  attend_part(op, ring, pages, visible, room, s, scale, part, o);
  const int at = 2 * static_cast<int>(threadIdx.x);
  for (int k = 0; k < kHeads; ++k) {
    float* mine = sizes.at(partial, blockIdx.z, h0 + k, part);
    if (at < s.dim) *reinterpret_cast<float2*>(mine + at) = o[k];
    if (threadIdx.x == 0) *reinterpret_cast<float2*>(mine + s.dim) = {room.top[k], room.sum[k]};
  }
}

// One block a token and head.
__global__ void __launch_bounds__(kThreads)
    attend_merge(SparseAttention op, Shape s, int t0, PartSizes sizes, float* partial) {
  await_previous();
  const std::int64_t t = t0 + static_cast<std::int64_t>(blockIdx.y);
  const int h = static_cast<int>(blockIdx.x);
  const Visible visible(op, op.batch.segments[op.batch.segment_of[t]], t);
  const int at = 2 * static_cast<int>(threadIdx.x);
  State state = fresh(op, h);
  const int parts = (visible.n + kRows - 1) / kRows;
  constexpr int kAhead = 8;  // parts under way
  for (int begin = 0; begin < parts; begin += kAhead) {
    float2 o[kAhead];
    float2 m[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const float* mine = sizes.at(partial, blockIdx.y, h, min(begin + k, parts - 1));
      o[k] = at < s.dim ? *reinterpret_cast<const float2*>(mine + at) : float2{0, 0};
      m[k] = *reinterpret_cast<const float2*>(mine + s.dim);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (begin + k < parts) state.merge(m[k].x, m[k].y, o[k]);
    }
  }
  write_head(op, s, t, h, state);
}

// One block a token: its row into its ring, unless a later token of the step takes the same place.
constexpr int kStoreThreads = 256;
__global__ void store_window(StoreWindow op, DeviceRing ring) {
  await_previous();
  const std::int64_t t = blockIdx.x;
  const Segment s = op.batch.segments[op.batch.segment_of[t]];
  const int position = op.batch.positions[t];
  if (s.tokens - (position - s.start) > ring.capacity) return;
  for (int piece = threadIdx.x / kWarp; piece < pieces_of(ring.codec); piece += kStoreThreads / kWarp) {
    encode_piece(ring.codec, op.kv.data + t * op.kv.ld, ring.at(s.slot, position), piece);
  }
}

}  // namespace

bool takes_whole(const Context& c, const SparseAttention& op) {
  // Where a block a token, or a span of its rows, keeps the device busy, nothing has to be added up afterwards.
  constexpr int kManyTokens = 32;
  constexpr std::int64_t kManyParts = 240;
  const bool many = op.batch.tokens >= kManyTokens ||
                    std::int64_t{op.batch.tokens} * ceil_div(most_rows(op), kPartRows) >= kManyParts;
  return many && on_tensor_units(op) && c.kernels.uses(Leaf::kSparseAttentionWgmma);
}

void run(Context& c, const SparseAttention& op) {
  const auto dim = static_cast<int>(op.kv.cols);
  FATHOM_CHECK(op.q.cols == op.heads * op.kv.cols && op.out.cols == op.q.cols, "heads of the entries' width");
  FATHOM_CHECK(op.ring.capacity >= op.window, "the ring holds the window");
  FATHOM_CHECK(op.pattern == Pattern::kCausal || op.entries.ratio == 0, "draft blocks see no compressed entries");
  FATHOM_CHECK(dim % 4 == 0 && dim <= kMostDim && op.cos.cols * 2 <= dim, "heads of up to 512 dims");
  if (takes_whole(c, op)) return attend_whole(c, op);
  if (on_tensor_units(op) && c.kernels.uses(Leaf::kSparseAttentionMma)) return attend_spread(c, op);
  const Shape s = shape_of(dim);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
  const DeviceRing ring(op.ring);
  const DevicePages pages(op.entries);
  const auto head_blocks = static_cast<unsigned>(ceil_div(op.heads, kHeads));
  const std::int32_t tokens = op.batch.tokens;
  if (static_cast<std::int64_t>(tokens) * head_blocks >= 2 * static_cast<std::int64_t>(c.multiprocessors)) {
    launch(c, "sparse_attention", attend_token, dim3(head_blocks, static_cast<unsigned>(tokens)), kThreads,
           Room::bytes(s), op, ring, pages, s, scale);
    return;
  }
  const PartSizes sizes{
      .parts = ceil_div(most_rows(op), kRows), .heads = static_cast<int>(head_blocks) * kHeads, .stride = dim + 2};
  const std::int64_t floats = std::int64_t{sizes.parts} * sizes.heads * sizes.stride;
  constexpr std::int64_t kMostFloats = std::int64_t{64} << 20;  // a few tokens at a time where contexts are long
  const auto at_once = static_cast<std::int32_t>(std::clamp<std::int64_t>(kMostFloats / floats, 1, 32768));
  for (std::int32_t t0 = 0; t0 < tokens; t0 += at_once) {
    const auto n = static_cast<unsigned>(std::min(at_once, tokens - t0));
    auto* partial =
        reinterpret_cast<float*>(c.scratch->take(sizeof(float) * static_cast<std::size_t>(floats) * n, c.fault));
    launch(c, "sparse_attention_parts", attend_parts, dim3(static_cast<unsigned>(sizes.parts), head_blocks, n),
           kThreads, Room::bytes(s), op, ring, pages, s, scale, t0, sizes, partial);
    launch(c, "sparse_attention_merge", attend_merge, dim3(static_cast<unsigned>(op.heads), n), kThreads, 0, op, s, t0,
           sizes, partial);
  }
}

void run(Context& c, const StoreWindow& op) {
  launch(c, "store_window", store_window, dim3(static_cast<unsigned>(op.batch.tokens)), kStoreThreads, 0, op,
         DeviceRing(op.ring));
}

}  // namespace fathom::ops::cuda
