// Attention of many tokens on Hopper: a block does a span of the rows of 64 heads of a token, which mostly is all of
// them, then another.
//
// Four groups of four warps: two read queries and expand rows, two parts ahead of the others; one has the logits, their
// probabilities, and the sum over the first half of the dims; one has the sum over the second half.
#include <algorithm>

#include "ops/attention/attention_mma.cuh"
#include "ops/cuda/row.cuh"
#include "ops/cuda/tensor_async.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr int kHeads = 64;
constexpr int kGroupThreads = 128;
constexpr int kThreads = 4 * kGroupThreads;
constexpr int kTiles = kMmaDim / 64;
constexpr int kBuffers = 2;

// 64 rows of 64 numbers (tensor_async.cuh).
struct Tile {
  uint4 pieces[64][8];
};

struct Room {
  Tile q[kTiles];
  Tile rows[kBuffers][kTiles];
  Tile p;                  // of heads by rows
  float factors[kHeads];      // what a part's reference makes of the sums before it
  float inverses[2][kHeads];  // of all weights; of an item and the one before
};
constexpr std::size_t kRoomBytes = sizeof(Room) + 1024;  // it begins at a multiple of 1,024

// What the step's own window rows look like in the ring's format: [tokens] entries.
constexpr int kEncodeThreads = 256;
__global__ void __launch_bounds__(kEncodeThreads)
    encode_window(Mat<const float> kv, DeviceCodec codec, std::byte* encoded) {
  await_previous();
  const std::int64_t t = blockIdx.x;
  for (int piece = threadIdx.x / kWarp; piece < pieces_of(codec); piece += kEncodeThreads / kWarp) {
    encode_piece(codec, kv.data + t * kv.ld, encoded + t * codec.bytes, piece);
  }
}

struct Task {
  SparseAttention op;
  Around around;
  DeviceRing ring;
  DevicePages pages;
  const std::byte* encoded;
  float scale;
  int head_blocks;
  int items;
  Partials partials;  // where tokens have several spans
};

#if FATHOM_ASYNC_PRODUCTS

__device__ inline std::uint16_t* place(Tile& tile, int row, int column) {
  return reinterpret_cast<std::uint16_t*>(&tile.pieces[row][column / 8 ^ row % 8]) + column % 8;
}

// Named barriers: the groups that meet at each wait for, or tell, the others.
enum Barrier : int {
  kFull = 1,
  kEmpty = kFull + kBuffers,
  kWeighed = kEmpty + kBuffers,
  kSummed,
  kBoth,
  kQueries,      // they are there
  kQueriesDone,  // they are not needed any more
};
__device__ inline void wait_at(int barrier, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void tell(int barrier, int threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// What was written to shared memory can be read by the matrix instructions of who is told.
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A block's items: (token, 64 heads, span).
struct Item {
  std::int64_t t;
  int h0;
  int span;
  int n;    // rows that the token sees
  int end;  // of the item's

  __device__ Item(const Task& task, int i)
      : t(task.partials.t0 + i / (task.head_blocks * task.partials.units)),
        h0(i / task.partials.units % task.head_blocks * kHeads),
        span(i % task.partials.units),
        n(Visible(task.op, task.op.batch.segments[task.op.batch.segment_of[t]], t).n),
        end(min(n, (span + 1) * kSpanRows)) {}
  __device__ int first_part() const { return span * kSpanParts; }
  __device__ int end_part() const { return (end + kPartRows - 1) / kPartRows; }
  __device__ bool alone() const { return n <= kSpanRows; }
};

// ---- The reading groups.

// The rows of one warp: every eighth of a part. Lane i knows of the i-th which entry it is, and then where it lies. Behind
// the end the last row is read again: its probabilities there are 0, and loads without a condition can be under way
// together.
constexpr int kReadingWarps = 2 * kGroupThreads / kWarp;
constexpr int kRowsOfWarp = kPartRows / kReadingWarps;

struct RowsOfWarp {
  const Task& task;
  const Segment& segment;
  const Visible visible;
  int end;
  int warp;
  int lane;

  __device__ int row(int part) const {
    return min(part * kPartRows + warp + kReadingWarps * (lane % kRowsOfWarp), end - 1);
  }
  __device__ int entry(int part) const {
    const int r = row(part) - visible.n_window;
    return r >= 0 && visible.selected != nullptr ? visible.selected[r] : r;
  }
  __device__ const std::byte* address(int part, int entry) const {
    const int r = row(part);
    if (r >= visible.n_window) return task.pages.at(segment, entry);
    const int position = visible.first + r;
    if (position < segment.start) return task.ring.at(segment.slot, position);
    return task.encoded +
           static_cast<std::int64_t>(segment.first_row + position - segment.start) * task.ring.codec.bytes;
  }
};

// Rows r % 8 == warp of a tile: where a lane's number `dim` of the first of them goes.
__device__ inline std::byte* place_of_warp(Tile* tiles, int warp, int dim) {
  return reinterpret_cast<std::byte*>(place(tiles[dim / 64], warp, dim % 64));
}

// Brings the queries of a block's next item nearer.
__device__ void expect_queries(const Task& task, int i) {
  if (i >= task.items) return;
  constexpr int kLine = 32;  // floats
  const std::int64_t t = task.partials.t0 + i / (task.head_blocks * task.partials.units);
  const int h0 = i / task.partials.units % task.head_blocks * kHeads;
  const int n = min(kHeads, task.op.heads - h0) * kMmaDim;
  const float* q = task.op.q.data + t * task.op.q.ld + static_cast<std::int64_t>(h0) * kMmaDim;
  for (int at = static_cast<int>(threadIdx.x) % (2 * kGroupThreads) * kLine; at < n; at += 2 * kGroupThreads * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(q + at));
  }
}

// The queries of an item, each head by one warp; two of its heads are under way. `first`: of the block's items.
__device__ void read_queries(const Task& task, Room& room, const Item& item, bool first) {
  constexpr int kLoaded = 4 * kWarp;  // dims that a warp reads at once
  constexpr int kQuads = kMmaDim / kLoaded;
  constexpr int kHeadsOfWarp = kHeads / kReadingWarps;
  const SparseAttention& op = task.op;
  const int warp = static_cast<int>(threadIdx.x) / kWarp % kReadingWarps;
  const int dim = 4 * (static_cast<int>(threadIdx.x) % kWarp);
  constexpr int kRotatedQuad = kMmaPlain / kLoaded;
  const bool rotated = dim >= kMmaPlain % kLoaded;  // in the last block
  float4 v[2][kQuads];
  const auto load = [&](float4(&to)[kQuads], int i) {
    const int head = min(item.h0 + warp + kReadingWarps * i, op.heads - 1);  // what comes of others is not looked at
    const float* q = op.q.data + item.t * op.q.ld + static_cast<std::int64_t>(head) * kMmaDim + dim;
#pragma unroll
    for (int k = 0; k < kQuads; ++k) to[k] = load4(q + k * kLoaded);
  };
  load(v[0], 0);
  load(v[1], 1);
  float2 cos = {1, 1};
  float2 sin = {0, 0};
  if (task.around.raw_queries && rotated) {
    const int pair = (dim - kMmaPlain % kLoaded) / 2;
    cos = {op.cos.data[item.t * op.cos.ld + pair], op.cos.data[item.t * op.cos.ld + pair + 1]};
    sin = {op.sin.data[item.t * op.sin.ld + pair], op.sin.data[item.t * op.sin.ld + pair + 1]};
  }
  if (!first) wait_at(kQueriesDone, 3 * kGroupThreads);
  std::byte* to = place_of_warp(room.q, warp, dim);
#pragma unroll 1
  for (int i = 0; i < kHeadsOfWarp; i += 2) {
#pragma unroll
    for (int j = 0; j < 2; ++j, to += kReadingWarps * 128) {
      float4(&x)[kQuads] = v[j];
      if (task.around.raw_queries) {
        float squares = 0;
#pragma unroll
        for (int k = 0; k < kQuads; ++k) squares = dot4(x[k], x[k], squares);
        const float rho = rms_scale(warp_sum(squares), kMmaDim, task.around.query_eps);
#pragma unroll
        for (int k = 0; k < kQuads; ++k) x[k] = carry4(scaled(rho, x[k]), Carrier::kBf16);
        if (rotated) rotate4(x[kRotatedQuad], cos, sin, Carrier::kBf16);
      }
#pragma unroll
      for (int k = 0; k < kQuads; ++k) {
        *reinterpret_cast<uint2*>(to + k * (kLoaded / 64) * sizeof(Tile)) =
            k == kRotatedQuad && rotated ? pack_rotated(x[k]) : pack_plain(x[k]);
      }
      if (i + 2 < kHeadsOfWarp) load(x, i + j + 2);
    }
  }
  publish();
  tell(kQueries, 3 * kGroupThreads);
}

__device__ void read_rows(const Task& task, Room& room) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp % kReadingWarps;
  const int lane = threadIdx.x % kWarp;
  constexpr int kAhead = kRowsOfWarp / 2;  // rows under way
  constexpr int kRowStep = kReadingWarps * 128;
  StoredRow rows[kAhead];
  const auto load = [lane](StoredRow& row, const std::byte* from_lane, int i) {
    const auto from = __shfl_sync(kAll, reinterpret_cast<std::uintptr_t>(from_lane), i);
    row.load(reinterpret_cast<const std::byte*>(from), lane);
  };
  std::byte* const first = place_of_warp(room.rows[0], warp, 8 * lane);
  std::byte* const second = place_of_warp(room.rows[0], warp, StoredRow::second_dim(lane));
  std::byte* const third = place_of_warp(room.rows[0], warp, StoredRow::third_dim(lane));
  int count = 0;  // parts so far
  for (int i = static_cast<int>(blockIdx.x); i < task.items; i += static_cast<int>(gridDim.x)) {
    const Item item(task, i);
    if (item.first_part() >= item.end_part()) continue;
    read_queries(task, room, item, count == 0);
    const Segment segment = task.op.batch.segments[task.op.batch.segment_of[item.t]];
    const RowsOfWarp mine{.task = task,
                          .segment = segment,
                          .visible = Visible(task.op, segment, item.t),
                          .end = item.end,
                          .warp = warp,
                          .lane = lane};
    const std::byte* now = mine.address(item.first_part(), mine.entry(item.first_part()));
    int entry = mine.entry(item.first_part() + 1);
#pragma unroll
    for (int r = 0; r < kAhead; ++r) load(rows[r], now, r);
    expect_queries(task, i + static_cast<int>(gridDim.x));
    for (int part = item.first_part(); part < item.end_part(); ++part, ++count) {
      const std::byte* next = mine.address(part + 1, entry);
      entry = mine.entry(part + 2);
      const int buffer = count % kBuffers;
      if (count >= kBuffers) wait_at(kEmpty + buffer, kThreads);
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        const int at = buffer * static_cast<int>(sizeof(room.rows[0])) + half * kAhead * kRowStep;
        const std::byte* from = half == 0 ? now : next;
#pragma unroll
        for (int r = 0; r < kAhead; ++r) {
          rows[r].store(lane, first + at + r * kRowStep, second + at + r * kRowStep, third + at + r * kRowStep);
          load(rows[r], from, (1 - half) * kAhead + r);
        }
      }
      publish();
      tell(kFull + buffer, 3 * kGroupThreads);
      now = next;
    }
  }
}

// ---- The multiplying groups.

// s = queries times the rows of a buffer; four sums over quarters of the dims.
__device__ void multiply_queries(Room& room, const Tile* rows, float (&s)[32]) {
  constexpr int kTilesOfQuarter = kTiles / 4;
  float c[32];
#pragma unroll
  for (int quarter = 0; quarter < 4; ++quarter) {
    float(&d)[32] = quarter == 0 ? s : c;
    begin_products();
#pragma unroll
    for (int i = 0; i < kTilesOfQuarter; ++i) {
      const std::uint64_t a = tile_at(&room.q[quarter * kTilesOfQuarter + i]);
      const std::uint64_t b = tile_at(&rows[quarter * kTilesOfQuarter + i]);
#pragma unroll
      for (int k = 0; k < 4; ++k) multiply_shared<0>(d, a + k * kAlongStep, b + k * kAlongStep, i + k);
    }
    end_products();
    await_products(d);
    if (quarter > 0) {
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] += c[i];
    }
  }
}

// A thread's two heads: threads of a quad share them.
struct Heads {
  float top[2];
  float sum[2];
  float factor[2];
};

// Probabilities in place of dot products; s[4 j + 2 r + i] is of head r and row 8 j + 2 t + i.
__device__ void weigh(float (&s)[32], int n, float scale, Heads& heads) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[4 * j + 2 * r + i];
        x = 8 * j + 2 * t + i < n ? exponent(x, scale) : -INFINITY;
        top = fmaxf(top, x);
      }
    }
    for (const int d : {1, 2}) top = fmaxf(top, __shfl_xor_sync(kAll, top, d));
    top = fmaxf(heads.top[r], reference(top));
    heads.factor[r] = whole_power2(heads.top[r] - top);
    heads.top[r] = top;
    float sums[4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) s[4 * j + 2 * r + i] = related(s[4 * j + 2 * r + i], top);
      const float pair = s[4 * j + 2 * r] + s[4 * j + 2 * r + 1];
      if (j % 2 == 0) sums[j / 2] = pair;
      else sums[j / 2] += pair;
    }
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    for (const int d : {1, 2}) sum += __shfl_xor_sync(kAll, sum, d);
    heads.sum[r] = fmaf(heads.sum[r], heads.factor[r], sum);
  }
}

// o, related to another reference, plus a part's sum over 64 dims.
__device__ void add_part(float (&o)[32], const float (&part)[32], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) o[i] = fmaf(o[i], factor[i / 2 % 2], part[i]);
}

// Leaves 64 dims of 64 heads for merge(). A thread has heads `head` and head + 8.
__device__ void write_partial(const Task& task, const Item& item, int head, int dim0, const float (&o)[32]) {
  float* to = task.partials.sums + task.partials.at(item.t, item.span, item.h0 + head) * kMmaDim + dim0 + threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    *reinterpret_cast<float2*>(to + 8 * j) = {o[4 * j], o[4 * j + 1]};
    *reinterpret_cast<float2*>(to + 8 * kMmaDim + 8 * j) = {o[4 * j + 2], o[4 * j + 3]};
  }
}

// Writes 64 dims of a thread's two heads: times `inverse`, rounded, those of the last tile turned back. Of every 8
// dims a thread has two: lanes 0 to 3 of a quad have 0 2, 1 3, 4 6, 5 7, or in the last tile 0 1, 2 3, 4 5, 6 7.
__device__ void write_tile(const Task& task, const Item& item, int head, int tile, float (&o)[32],
                           const float (&inverse)[2]) {
  const SparseAttention& op = task.op;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const bool rotated = tile == kTiles - 1;
  std::uint32_t pairs[2][8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float cos = rotated ? op.cos.data[item.t * op.cos.ld + 4 * j + t] : 1;
    const float sin = rotated ? -op.sin.data[item.t * op.sin.ld + 4 * j + t] : 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      std::uint32_t& pair = pairs[r][j];
      pair = pack_rounded(o[4 * j + 2 * r] * inverse[r], o[4 * j + 2 * r + 1] * inverse[r]);
      if (!rotated) continue;
      float a = __uint_as_float(pair << 16);
      float b = __uint_as_float(pair & 0xffff0000U);
      rotate_pair(a, b, cos, sin, Carrier::kBf16);
      pair = pack_exact(a, b);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int h = item.h0 + head + 8 * r;
    const bool live = h < op.heads;
    if (task.around.planes != nullptr) {
      // Dims d and d + 4 of 8 form a pair of the planes; the pairs of a lane fill 16 bytes of them (planes.cuh).
      const int which = rotated ? t % 2 * 2 + t / 2 : t;
      std::uint16_t* to = task.around.planes + (item.t * op.heads + h) * kMmaDim + 64 * tile + 8 * which;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        std::uint32_t w[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const std::uint32_t mine = pairs[r][2 * k + e];
          const std::uint32_t other = __shfl_xor_sync(kAll, mine, 2);
          w[k] = t < 2 ? __byte_perm(mine, other, 0x5410) : __byte_perm(other, mine, 0x7632);
        }
        if (live) *reinterpret_cast<uint4*>(to + 32 * e) = {w[0], w[1], w[2], w[3]};
      }
    } else {
      float* to = op.out.data + item.t * op.out.ld + static_cast<std::int64_t>(h) * kMmaDim + 64 * tile + 2 * t;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        std::uint32_t pair = pairs[r][j];
        const std::uint32_t other = __shfl_xor_sync(kAll, pair, 1);
        if (!rotated) pair = t % 2 == 0 ? __byte_perm(pair, other, 0x5410) : __byte_perm(other, pair, 0x7632);
        const float2 v = {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U)};
        if (live) *reinterpret_cast<float2*>(to + 8 * j) = v;
      }
    }
  }
}

// The weights of an item's heads, when all parts are done: what sums are to be multiplied with, or for merge().
__device__ void finish_weights(const Task& task, float (&inverses)[kHeads], const Item& item, int head,
                               const Heads& heads) {
  if (threadIdx.x % 4 != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int h = item.h0 + head + 8 * r;
    if (!item.alone()) {
      task.partials.weights[task.partials.at(item.t, item.span, h)] = {heads.top[r], heads.sum[r]};
    } else if (h < task.op.heads) {
      const PartWeight sink = sink_weight(task.op.sink[h]);
      const float top = fmaxf(sink.top, heads.top[r]);
      const float factor = whole_power2(heads.top[r] - top);
      const float sum = fmaf(heads.sum[r], factor, sink.sum * whole_power2(sink.top - top));
      inverses[head + 8 * r] = factor * __frcp_rn(sum);
    }
  }
}

// kFirst: the group that has the logits.
template <bool kFirst>
__device__ void multiply(const Task& task, Room& room) {
  constexpr int kHalf = kTiles / 2;
  const int lane = threadIdx.x % kWarp;
  const int head = static_cast<int>(threadIdx.x) % kGroupThreads / kWarp * 16 + lane / 4;  // and head + 8
  int count = 0;
  int turn = 0;
  for (int i = static_cast<int>(blockIdx.x); i < task.items; i += static_cast<int>(gridDim.x)) {
    const Item item(task, i);
    if (item.first_part() >= item.end_part()) continue;
    if (kFirst) wait_at(kQueries, 3 * kGroupThreads);
    Heads heads = {{-0x1p20F, -0x1p20F}, {0, 0}, {0, 0}};
    float o[kHalf][32];
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
#pragma unroll
      for (int k = 0; k < 32; ++k) o[j][k] = 0;
    }
    for (int part = item.first_part(); part < item.end_part(); ++part, ++count) {
      const int buffer = count % kBuffers;
      const Tile* rows = room.rows[buffer];
      float c[32];
      std::uint32_t p[4][4];
      if (kFirst) {
        wait_at(kFull + buffer, 3 * kGroupThreads);
        multiply_queries(room, rows, c);
        if (part + 1 == item.end_part()) tell(kQueriesDone, 3 * kGroupThreads);
        weigh(c, item.end - part * kPartRows, task.scale, heads);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
          for (int x = 0; x < 4; ++x) p[k][x] = pack_rounded(c[8 * k + 2 * x], c[8 * k + 2 * x + 1]);
        }
        if (count > 0) wait_at(kSummed, 2 * kGroupThreads);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
          for (int x = 0; x < 4; ++x) {
            const int row = 16 * k + x / 2 * 8 + lane % 4 * 2;
            *reinterpret_cast<std::uint32_t*>(place(room.p, head + x % 2 * 8, row)) = p[k][x];
          }
        }
        if (lane % 4 == 0) {
          for (int r = 0; r < 2; ++r) room.factors[head + 8 * r] = heads.factor[r];
        }
        publish();
        tell(kWeighed, 2 * kGroupThreads);
      } else {
        wait_at(kWeighed, 2 * kGroupThreads);
        for (int r = 0; r < 2; ++r) heads.factor[r] = room.factors[head + 8 * r];
      }
#pragma unroll
      for (int j = 0; j < kHalf; ++j) {
        const std::uint64_t b = tile_at(&rows[(kFirst ? 0 : kHalf) + j]);
        begin_products();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (kFirst) multiply_registers<1>(c, p[k], b + k * kAcrossStep, k);
          else multiply_shared<1>(c, tile_at(&room.p) + k * kAlongStep, b + k * kAcrossStep, k);
        }
        end_products();
        await_products(c);
        add_part(o[j], c, heads.factor);
      }
      if (!kFirst) tell(kSummed, 2 * kGroupThreads);
      tell(kEmpty + buffer, kThreads);
    }
    constexpr int kTile0 = kFirst ? 0 : kHalf;
    float(&inverses)[kHeads] = room.inverses[turn];
    turn ^= 1;
    if (kFirst) finish_weights(task, inverses, item, head, heads);
    if (item.alone()) {
      wait_at(kBoth, 2 * kGroupThreads);
      const float inverse[2] = {inverses[head], inverses[head + 8]};
#pragma unroll
      for (int j = 0; j < kHalf; ++j) write_tile(task, item, head, kTile0 + j, o[j], inverse);
    } else {
#pragma unroll
      for (int j = 0; j < kHalf; ++j) write_partial(task, item, head, 64 * (kTile0 + j), o[j]);
    }
  }
}

#endif

__global__ void __launch_bounds__(kThreads, 1) attend_whole_tokens(Task task) {
  await_previous();
#if FATHOM_ASYNC_PRODUCTS
  extern __shared__ uint4 shared16[];
  const std::uint32_t skip = (1024 - shared_address(shared16) % 1024) % 1024;
  Room& room = *reinterpret_cast<Room*>(reinterpret_cast<std::byte*>(shared16) + skip);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (group >= 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
    read_rows(task, room);
  } else if (group == 0) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    multiply<true>(task, room);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 176;");
    multiply<false>(task, room);
  }
#endif
}

}  // namespace

void attend_whole(Context& c, const SparseAttention& op, const Around& around) {
  const DeviceRing ring(op.ring);
  const std::int64_t tokens = op.batch.tokens;
  const int head_blocks = ceil_div(op.heads, kHeads);
  Pieces pieces;
  const std::size_t encoded = pieces.add<std::byte>(tokens * ring.codec.bytes);
  const PartialsPlan plan(op, kSpanRows, head_blocks * kHeads, pieces);
  std::byte* memory = c.scratch->take(pieces.bytes(), c.fault);
  if (memory == nullptr) return;
  launch(c, "sparse_attention_encode", encode_window, dim3(static_cast<unsigned>(tokens)), kEncodeThreads, 0, op.kv,
         ring.codec, memory + encoded);
  for (std::int32_t t0 = 0; t0 < op.batch.tokens; t0 += plan.tokens()) {
    const std::int32_t n = std::min(plan.tokens(), op.batch.tokens - t0);
    const Task task{.op = op,
                    .around = around,
                    .ring = ring,
                    .pages = DevicePages(op.entries),
                    .encoded = memory + encoded,
                    .scale = exponent_scale(),
                    .head_blocks = head_blocks,
                    .items = n * head_blocks * plan.units(),
                    .partials = plan.at(memory, t0)};
    launch(c, "sparse_attention", attend_whole_tokens,
           dim3(static_cast<unsigned>(std::min(task.items, c.multiprocessors))), kThreads, kRoomBytes, task);
    if (plan.units() > 1) merge(c, op, task.partials, n, around.planes);
  }
}

}  // namespace fathom::ops::cuda
