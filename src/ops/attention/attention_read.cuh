// How attention of many tokens (attention_whole_cuda.cu) shares its work out over blocks and groups of warps, and the
// groups that read queries and rows into shared memory.
#pragma once

#include "ops/attention/attention_mma.cuh"
#include "ops/cuda/row.cuh"
#include "ops/cuda/tensor_async.cuh"

namespace fathom::ops::cuda::whole {

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

struct Task {
  SparseAttention op;
  Around around;
  DeviceRing ring;
  DevicePages pages;
  const std::byte* encoded;  // the step's own rows, or none where
  ExpandedRows expanded;     // there are these
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
__device__ inline void copy_piece(const std::byte* to, std::uintptr_t from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
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

// ---- The reading groups where rows are read as they are stored.

// The rows of one warp: every eighth of a part. Lane i knows of the i-th which entry it is, and then where it lies.
// Behind the end the last row is read again: its probabilities there are 0, and loads without a condition can be under
// way together.
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

// Where number `dim` of a row goes; the row 8 further lies 1,024 bytes further.
__device__ inline std::byte* place_of_row(Tile* tiles, int row, int dim) {
  return reinterpret_cast<std::byte*>(place(tiles[dim / 64], row, dim % 64));
}

// Brings the queries of a block's next item nearer, by kThreads threads.
template <int kThreads>
__device__ void expect_queries(const Task& task, int i) {
  if (i >= task.items) return;
  constexpr int kLine = 32;  // floats
  const std::int64_t t = task.partials.t0 + i / (task.head_blocks * task.partials.units);
  const int h0 = i / task.partials.units % task.head_blocks * kHeads;
  const int n = min(kHeads, task.op.heads - h0) * kMmaDim;
  const float* q = task.op.q.data + t * task.op.q.ld + static_cast<std::int64_t>(h0) * kMmaDim;
  for (int at = static_cast<int>(threadIdx.x) % kThreads * kLine; at < n; at += kThreads * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(q + at));
  }
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
  std::byte* const first = place_of_row(room.rows[0], warp, 8 * lane);
  std::byte* const second = place_of_row(room.rows[0], warp, StoredRow::second_dim(lane));
  std::byte* const third = place_of_row(room.rows[0], warp, StoredRow::third_dim(lane));
  int count = 0;  // parts so far
  for (int i = static_cast<int>(blockIdx.x); i < task.items; i += static_cast<int>(gridDim.x)) {
    const Item item(task, i);
    if (item.first_part() >= item.end_part()) continue;
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
    expect_queries<2 * kGroupThreads>(task, i + static_cast<int>(gridDim.x));
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

// ---- The reading groups where rows have been expanded.

// The queries of an item, each head by one warp; two of its heads are under way. `first`: of the block's items.
__device__ void read_queries(const Task& task, Room& room, const Item& item, bool first) {
  constexpr int kLoaded = 4 * kWarp;  // dims that a warp reads at once
  constexpr int kQuads = kMmaDim / kLoaded;
  constexpr int kWarps = kGroupThreads / kWarp;
  constexpr int kHeadsOfWarp = kHeads / kWarps;
  const SparseAttention& op = task.op;
  const int warp = static_cast<int>(threadIdx.x) / kWarp % kWarps;
  const int dim = 4 * (static_cast<int>(threadIdx.x) % kWarp);
  constexpr int kRotatedQuad = kMmaPlain / kLoaded;
  const bool rotated = dim >= kMmaPlain % kLoaded;  // in the last block
  float4 v[2][kQuads];
  const auto load = [&](float4(&to)[kQuads], int i) {
    const int head = min(item.h0 + warp + kWarps * i, op.heads - 1);  // what comes of others is not looked at
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
  if (!first) wait_at(kQueriesDone, 2 * kGroupThreads);
  std::byte* to[2] = {place_of_row(room.q, warp, dim), place_of_row(room.q, warp + kWarps, dim)};
#pragma unroll 1
  for (int i = 0; i < kHeadsOfWarp; i += 2) {
    float squares[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < kQuads; ++k) {
      for (int j = 0; j < 2; ++j) squares[j] = dot4(v[j][k], v[j][k], squares[j]);
    }
    const float rho_of_half = rms_scale(warp_sums(squares), kMmaDim, task.around.query_eps);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float4(&x)[kQuads] = v[j];
      if (task.around.raw_queries) {
        const float rho = __shfl_sync(kAll, rho_of_half, j * kWarp / 2);
#pragma unroll
        for (int k = 0; k < kQuads; ++k) x[k] = carry4(scaled(rho, x[k]), Carrier::kBf16);
        if (rotated) rotate4(x[kRotatedQuad], cos, sin, Carrier::kBf16);
      }
#pragma unroll
      for (int k = 0; k < kQuads; ++k) {
        *reinterpret_cast<uint2*>(to[j] + k * (kLoaded / 64) * sizeof(Tile)) =
            k == kRotatedQuad && rotated ? pack_rotated(x[k]) : pack_plain(x[k]);
      }
      to[j] += 2 * kWarps * 128;
      if (i + 2 < kHeadsOfWarp) load(x, i + j + 2);
    }
  }
  publish();
  tell(kQueries, 2 * kGroupThreads);
}

// The queries of all items.
__device__ void read_all_queries(const Task& task, Room& room) {
  bool first = true;
  for (int i = static_cast<int>(blockIdx.x); i < task.items; i += static_cast<int>(gridDim.x)) {
    const Item item(task, i);
    if (item.first_part() >= item.end_part()) continue;
    read_queries(task, room, item, first);
    expect_queries<kGroupThreads>(task, i + static_cast<int>(gridDim.x));
    first = false;
  }
}

// Expanded rows, a warp every fourth of a part; lane i knows where the i-th lies. Behind the end as above.
__device__ void copy_rows(const Task& task, Room& room) {
  constexpr int kWarps = kGroupThreads / kWarp;
  constexpr int kRows = kPartRows / kWarps;
  const int warp = static_cast<int>(threadIdx.x) / kWarp % kWarps;
  const int lane = threadIdx.x % kWarp;
  const ExpandedRows& rows = task.expanded;
  int count = 0;  // parts so far
  for (int i = static_cast<int>(blockIdx.x); i < task.items; i += static_cast<int>(gridDim.x)) {
    const Item item(task, i);
    const int s = task.op.batch.segment_of[item.t];
    const Segment& segment = task.op.batch.segments[s];
    const Visible visible(task.op, segment, item.t);
    const int own = segment.first_row - segment.start;
    const auto address = [&](int part) {
      const int r = min(part * kPartRows + warp + kWarps * (lane % kRows), item.end - 1);
      if (r >= visible.n_window) {
        const int entry = r - visible.n_window;
        return rows.entry(s, visible.selected != nullptr ? visible.selected[entry] : entry);
      }
      const int position = visible.first + r;
      return position < segment.start ? rows.before(s, segment.start, position) : rows.own(own + position);
    };
    if (item.first_part() >= item.end_part()) continue;
    const std::uint16_t* next = address(item.first_part());
    for (int part = item.first_part(); part < item.end_part(); ++part, ++count) {
      const std::uint16_t* const now = next;
      const int buffer = count % kBuffers;
      if (count >= kBuffers) wait_at(kEmpty + buffer, 3 * kGroupThreads);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const auto from = __shfl_sync(kAll, reinterpret_cast<std::uintptr_t>(now), r) + 16 * lane;
        const std::byte* to = place_of_row(room.rows[buffer], warp + kWarps * r, 8 * lane);
        constexpr int kHalfRow = kMmaDim / 2;
        copy_piece(to, from);
        copy_piece(to + kHalfRow / 64 * sizeof(Tile), from + 2 * kHalfRow);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
      if (part + 1 < item.end_part()) next = address(part + 1);
      asm volatile("cp.async.wait_group 0;" ::: "memory");
      publish();
      tell(kFull + buffer, 2 * kGroupThreads);
    }
  }
}

#endif  // FATHOM_ASYNC_PRODUCTS

}  // namespace fathom::ops::cuda::whole
