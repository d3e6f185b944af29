// Attention of many tokens on Hopper: a block does a span of the rows of 64 heads of a token, which mostly is all of
// them, then another.
//
// Four groups of four warps: two read, two parts ahead of the others; one has the logits, their probabilities, and the
// sum over the first half of the dims; one has the sum over the second half. Rows that many tokens see have been
// expanded before: then one reading group copies them and the other has the queries. Otherwise both read rows and
// expand them.
#include <algorithm>

#include "ops/attention/attention_read.cuh"

namespace fathom::ops::cuda {
namespace {

using namespace whole;

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

#if FATHOM_ASYNC_PRODUCTS

// ---- The multiplying groups.

// The queries of an item, by both, where no group reads them: a thread has 4 dims of every second head.
__device__ void load_queries(const Task& task, Room& room, const Item& item) {
  const int dim = threadIdx.x % kGroupThreads * 4;
  constexpr int kAtOnce = 32;
  for (int h = static_cast<int>(threadIdx.x) / kGroupThreads; h < kHeads; h += 2 * kAtOnce) {
    float4 v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int head = min(item.h0 + h + 2 * i, task.op.heads - 1);  // what comes of others is not looked at
      v[i] = load4(task.op.q.data + item.t * task.op.q.ld + static_cast<std::int64_t>(head) * kMmaDim + dim);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      *reinterpret_cast<uint2*>(place(room.q[dim / 64], h + 2 * i, dim % 64)) =
          dim < kMmaPlain ? pack_plain(v[i]) : pack_rotated(v[i]);
    }
  }
  publish();
  wait_at(kBoth, 2 * kGroupThreads);
}

// s = queries times the rows of a buffer; four sums over quarters of the dims, two of them under way.
__device__ void multiply_queries(Room& room, const Tile* rows, float (&s)[32]) {
  constexpr int kTilesOfQuarter = kTiles / 4;
  const auto begin = [&](float(&d)[32], int quarter) {
    begin_products();
#pragma unroll
    for (int i = 0; i < kTilesOfQuarter; ++i) {
      const std::uint64_t a = tile_at(&room.q[quarter * kTilesOfQuarter + i]);
      const std::uint64_t b = tile_at(&rows[quarter * kTilesOfQuarter + i]);
#pragma unroll
      for (int k = 0; k < 4; ++k) multiply_shared<0>(d, a + k * kAlongStep, b + k * kAlongStep, i + k);
    }
    end_products();
  };
  const auto add = [&](const float(&c)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] += c[i];
  };
  float c[32];
  begin(s, 0);
  begin(c, 1);
  await_products<1>(s);
  await_products(c);
  add(c);
  begin(c, 2);
  await_products(c);
  add(c);
  begin(c, 3);
  await_products(c);
  add(c);
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
  float* to = task.partials.sums + task.partials.at(item.t, item.span, item.h0 + head) * kMmaDim + dim0 +
              threadIdx.x % 4 * 2;
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
template <bool kExpanded, bool kFirst>
__device__ void multiply(const Task& task, Room& room) {
  constexpr int kHalf = kTiles / 2;
  constexpr int kRowReaders = kExpanded ? kGroupThreads : 2 * kGroupThreads;
  const int lane = threadIdx.x % kWarp;
  const int head = static_cast<int>(threadIdx.x) % kGroupThreads / kWarp * 16 + lane / 4;  // and head + 8
  int count = 0;
  int turn = 0;
  for (int i = static_cast<int>(blockIdx.x); i < task.items; i += static_cast<int>(gridDim.x)) {
    const Item item(task, i);
    if (item.first_part() >= item.end_part()) continue;
    if (!kExpanded) load_queries(task, room, item);
    else if (kFirst) wait_at(kQueries, 2 * kGroupThreads);
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
        wait_at(kFull + buffer, kRowReaders + kGroupThreads);
        multiply_queries(room, rows, c);
        if (kExpanded && part + 1 == item.end_part()) tell(kQueriesDone, 2 * kGroupThreads);
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
      const auto begin = [&](float(&d)[32], int j) {
        const std::uint64_t b = tile_at(&rows[(kFirst ? 0 : kHalf) + j]);
        begin_products();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (kFirst) multiply_registers<1>(d, p[k], b + k * kAcrossStep, k);
          else multiply_shared<1>(d, tile_at(&room.p) + k * kAlongStep, b + k * kAcrossStep, k);
        }
        end_products();
      };
      constexpr bool kAhead = kExpanded && kFirst;  // registers for two tiles under way
      float e[32];
      begin(c, 0);
#pragma unroll
      for (int j = 0; j < kHalf; ++j) {
        float(&now)[32] = kAhead && j % 2 == 1 ? e : c;
        if (kAhead && j + 1 < kHalf) {
          begin(j % 2 == 0 ? e : c, j + 1);
          await_products<1>(now);
        } else {
          await_products(now);
        }
        add_part(o[j], now, heads.factor);
        if (!kAhead && j + 1 < kHalf) begin(c, j + 1);
      }
      if (!kFirst) tell(kSummed, 2 * kGroupThreads);
      tell(kEmpty + buffer, kRowReaders + 2 * kGroupThreads);
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

template <bool kExpanded>
__global__ void __launch_bounds__(kThreads, 1) attend_whole_tokens(Task task) {
  await_previous();
#if FATHOM_ASYNC_PRODUCTS
  extern __shared__ uint4 shared16[];
  const std::uint32_t skip = (1024 - shared_address(shared16) % 1024) % 1024;
  Room& room = *reinterpret_cast<Room*>(reinterpret_cast<std::byte*>(shared16) + skip);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (kExpanded && group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    copy_rows(task, room);
  } else if (group >= 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
    if (kExpanded) read_all_queries(task, room);
    else read_rows(task, room);
  } else if (group == 0) {
    if (kExpanded) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    multiply<kExpanded, true>(task, room);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 176;");
    multiply<kExpanded, false>(task, room);
  }
#endif
}

}  // namespace

void attend_whole(Context& c, const SparseAttention& op, const Around& around) {
  const DeviceRing ring(op.ring);
  const std::int64_t tokens = op.batch.tokens;
  const int head_blocks = ceil_div(op.heads, kHeads);
  const bool expands = worth_expanding(op);
  Pieces pieces;
  const std::size_t rows =
      pieces.add<std::byte>(expands ? rows_to_expand(op) * kMmaDim * 2 : tokens * ring.codec.bytes);
  const PartialsPlan plan(op, kSpanRows, head_blocks * kHeads, pieces);
  std::byte* memory = c.scratch->take(pieces.bytes(), c.fault);
  if (memory == nullptr) return;
  ExpandedRows expanded;
  if (expands) {
    expanded = expand_rows(c, op, memory + rows);
  } else {
    launch(c, "sparse_attention_encode", encode_window, dim3(static_cast<unsigned>(tokens)), kEncodeThreads, 0, op.kv,
           ring.codec, memory + rows);
  }
  for (std::int32_t t0 = 0; t0 < op.batch.tokens; t0 += plan.tokens()) {
    const std::int32_t n = std::min(plan.tokens(), op.batch.tokens - t0);
    const Task task{.op = op,
                    .around = around,
                    .ring = ring,
                    .pages = DevicePages(op.entries),
                    .encoded = memory + rows,
                    .expanded = expanded,
                    .scale = exponent_scale(),
                    .head_blocks = head_blocks,
                    .items = n * head_blocks * plan.units(),
                    .partials = plan.at(memory, t0)};
    launch(c, "sparse_attention", expands ? attend_whole_tokens<true> : attend_whole_tokens<false>,
           dim3(static_cast<unsigned>(std::min(task.items, c.multiprocessors))), kThreads, kRoomBytes, task);
    if (plan.units() > 1) merge(c, op, task.partials, n, around.planes);
  }
}

}  // namespace fathom::ops::cuda
