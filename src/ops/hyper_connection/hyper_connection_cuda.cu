#include <algorithm>
#include <type_traits>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/ops.h"
#include "ops/hyper_connection/streams.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTokenThreads = 512;  // of the blocks that have one token
constexpr int kMostSlices = 64;

// Sums over one slice of the streams: fn v for each of n rows of fn, and v v after them. partial [T, slices, n + 1].
// A warp has every kWarps-th row; kTokens tokens share what it reads of fn. kPutBack: the streams are first what `put`
// makes of them, and are left so.
template <int C, int kTokens, bool kPutBack>
__global__ void __launch_bounds__(kThreads)
    mix(Mat<const float> streams, const float* fn, int n, HcPost put, float* partial) {
  await_previous();
  const std::int64_t width = streams.cols;
  const std::int64_t d = width / C;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSlice + threadIdx.x % kWarp * 4;
  const std::int64_t t0 = static_cast<std::int64_t>(blockIdx.y) * kTokens;
  const Mat<const float>& before = kPutBack ? put.streams : streams;
  float4 v[kTokens][C];
#pragma unroll
  for (int k = 0; k < kTokens; ++k) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      v[k][c] = {0, 0, 0, 0};
      if (i < d && t0 + k < streams.rows) v[k][c] = load4(before.data + (t0 + k) * before.ld + c * d + i);
    }
  }
  if constexpr (kPutBack) {
    __syncthreads();  // every warp has read what the first now writes
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
      if (i >= d || t0 + k >= streams.rows) continue;
      PutBack<C> back;
      back.load(put, t0 + k);
      back.apply(load4(put.y.data + (t0 + k) * put.y.ld + i), v[k], put.carrier);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        if (threadIdx.x < kWarp) store4(put.out.data + (t0 + k) * put.out.ld + c * d + i, v[k][c]);
      }
    }
  }
  constexpr int kMixes = C * (2 + C);
#pragma unroll
  for (int turn = 0; turn < (kMixes + kWarps) / kWarps; ++turn) {
    const int row = static_cast<int>(threadIdx.x) / kWarp + turn * kWarps;
    if (row > n) break;
    float4 f[C];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      f[c] = i < d && row < n ? load4(fn + row * width + c * d + i) : float4{0, 0, 0, 0};
    }
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
      float sum = 0;
#pragma unroll
      for (int c = 0; c < C; ++c) sum = dot4(row < n ? f[c] : v[k][c], v[k][c], sum);
      sum = warp_sum(sum);
      if (threadIdx.x % kWarp == 0 && t0 + k < streams.rows) {
        partial[((t0 + k) * gridDim.x + blockIdx.x) * (n + 1) + row] = sum;
      }
    }
  }
}

// The same for many tokens of 4 streams, all 24 rows of fn. A block keeps its slice of fn in registers, three rows a
// warp, and goes through tokens, eight at a time: each warp puts back and squares one of them, then all see all eight.
constexpr int kTile = kWarps;
constexpr int kTileRows = kMostMixes / kWarps;
template <bool kPutBack>
__global__ void __launch_bounds__(kThreads, 2)
    mix_tiles(Mat<const float> streams, const float* fn, HcPost put, float* partial, std::int64_t tokens_a_block) {
  constexpr int C = kMostStreams;
  allow_next();
  __shared__ float4 shared[2][kTile][C][kWarp];
  const std::int64_t width = streams.cols;
  const std::int64_t d = width / C;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSlice + lane * 4;
  const bool mine = i < d;
  float4 f[kTileRows][C];
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      f[r][c] = mine ? load4(fn + (warp * kTileRows + r) * width + c * d + i) : float4{0, 0, 0, 0};
    }
  }
  await_results();
  const Mat<const float>& before = kPutBack ? put.streams : streams;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * tokens_a_block;
  const std::int64_t end = min(begin + tokens_a_block, streams.rows);
  float4 v[C];
  float4 y = {0, 0, 0, 0};
  const auto read = [&](std::int64_t t) {
    const bool live = mine && t < end;
#pragma unroll
    for (int c = 0; c < C; ++c) v[c] = live ? load4(before.data + t * before.ld + c * d + i) : float4{0, 0, 0, 0};
    if (kPutBack && live) y = load4(put.y.data + t * put.y.ld + i);
  };
  read(begin + warp);
  for (std::int64_t t0 = begin, turn = 0; t0 < end; t0 += kTile, ++turn) {
    auto& tile = shared[turn % 2];
    const std::int64_t t = t0 + warp;
    if (t < end) {
      if constexpr (kPutBack) {
        PutBack<C> back;
        back.load(put, t);
        back.apply(y, v, put.carrier);
      }
      float squares = 0;
#pragma unroll
      for (int c = 0; c < C; ++c) {
        if (kPutBack && mine) store4(put.out.data + t * put.out.ld + c * d + i, v[c]);
        squares = dot4(v[c], v[c], squares);
      }
      squares = warp_sum(squares);
      if (lane == 0) partial[(t * gridDim.x + blockIdx.x) * (kMostMixes + 1) + kMostMixes] = squares;
    }
#pragma unroll
    for (int c = 0; c < C; ++c) tile[warp][c][lane] = v[c];
    __syncthreads();
    read(t + kTile);
    float sum[kWarp] = {};  // of token k, row r at k * kTileRows + r
#pragma unroll
    for (int k = 0; k < kTile; ++k) {
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const float4 w = tile[k][c][lane];
#pragma unroll
        for (int r = 0; r < kTileRows; ++r) sum[k * kTileRows + r] = dot4(f[r][c], w, sum[k * kTileRows + r]);
      }
    }
    const float total = warp_sums(sum);
    const std::int64_t of = t0 + lane / kTileRows;
    if (lane < kTile * kTileRows && of < end) {
      partial[(of * gridDim.x + blockIdx.x) * (kMostMixes + 1) + warp * kTileRows + lane % kTileRows] = total;
    }
  }
}

template <class Of>
__device__ float over_slices(int slices, const Of& of) {
  float part[4] = {0, 0, 0, 0};
#pragma unroll 2
  for (int s = 0; s < slices; s += 4) {
#pragma unroll
    for (int k = 0; k < 4; ++k) part[k] += s + k < slices ? of(s + k) : 0.0F;
  }
  return (part[0] + part[1]) + (part[2] + part[3]);
}

// rho * fn v of the block's token: lane i < n of the first warp gets the i-th. all: room for the sums of all slices.
// Has a barrier.
__device__ float mix_of_lane(const float* partial, int slices, int n, std::int64_t width, float eps, float* all) {
  const int count = slices * (n + 1);
  const float* mine = partial + static_cast<std::int64_t>(blockIdx.x) * count;
#pragma unroll 2
  for (int i = threadIdx.x; i < count; i += kTokenThreads) all[i] = mine[i];
  __syncthreads();
  if (threadIdx.x >= kWarp) return 0;
  const int at = min(static_cast<int>(threadIdx.x), n);
  const float sum = over_slices(slices, [&](int s) { return all[s * (n + 1) + at]; });
  return __shfl_sync(kAll, rms_scale(sum, static_cast<int>(width), eps), n) * sum;
}

// Slices of a token's streams by a block of kTokenThreads; each warp has every kTokenWarps-th and holds the first two
// in registers.
constexpr int kTokenWarps = kTokenThreads / kWarp;
constexpr int kHeld = 2;
template <int C>
struct Token {
  float4 v[kHeld][C];
  float4 norm[kHeld];

  // Columns of a lane in its warp's k-th slice.
  static __device__ int column(int k) {
    return (static_cast<int>(threadIdx.x) / kWarp + k * kTokenWarps) * kSlice +
           static_cast<int>(threadIdx.x) % kWarp * 4;
  }
  __device__ void load_norm(const float* weights, int d) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (weights != nullptr && column(k) < d) norm[k] = load4(weights + column(k));
    }
  }
  __device__ void load(Mat<const float> streams, int d) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
#pragma unroll
      for (int c = 0; c < C; ++c) {
        v[k][c] =
            column(k) < d ? load4(streams.data + blockIdx.x * streams.ld + c * d + column(k)) : float4{0, 0, 0, 0};
      }
    }
  }
};

// x[t] = sum of weights[c] * stream c, normalised where there is a norm. Rounded as it is written. row: room for d
// values.
template <int C>
__device__ void weigh(const Token<C>& token, Mat<const float> streams, const float* weights, const float* norm,
                      float eps, Carrier carrier, Mat<float> x, float* row) {
  __shared__ float squares[kMostSlices];
  const float* v = streams.data + blockIdx.x * streams.ld;
  float* out = x.data + blockIdx.x * x.ld;
  const auto d = static_cast<int>(x.cols);
  const int slices = (d + kSlice - 1) / kSlice;
  const auto slice = [&](int k, const float4(&in)[C]) {
    float4 u = {0, 0, 0, 0};
#pragma unroll
    for (int c = 0; c < C; ++c) u = fma4(weights[c], in[c], u);
    u = carry4(u, carrier);
    const float sum = warp_sum(dot4(u, u, 0.0F));
    if (threadIdx.x % kWarp == 0) squares[threadIdx.x / kWarp + k * kTokenWarps] = sum;
    return u;
  };
  float4 held[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) held[k] = slice(k, token.v[k]);
  for (int k = kHeld; static_cast<int>(threadIdx.x) / kWarp + k * kTokenWarps < slices; ++k) {
    const int i = Token<C>::column(k);
    float4 in[C] = {};
#pragma unroll
    for (int c = 0; c < C; ++c) {
      if (i < d) in[c] = load4(v + static_cast<std::int64_t>(c) * d + i);
    }
    const float4 u = slice(k, in);
    if (i < d) store4(row + i, u);
  }
  __syncthreads();
  const float rho = rms_scale(over_slices(slices, [&](int s) { return squares[s]; }), d, eps);
  const auto put = [&](int i, float4 u, float4 w) { store4(out + i, norm != nullptr ? norm4(u, w, rho, carrier) : u); };
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int i = Token<C>::column(k);
    if (i < d) put(i, held[k], token.norm[k]);
  }
  for (int k = kHeld; Token<C>::column(k) < d; ++k) {
    const int i = Token<C>::column(k);
    put(i, load4(row + i), norm != nullptr ? load4(norm + i) : float4{});
  }
}

// One block a token: the mixing numbers made into weights, the streams weighed into x.
template <int n>
__global__ void __launch_bounds__(kTokenThreads, 2) pre(HcPre op, const float* partial, int slices) {
  allow_next();
  extern __shared__ float row[];
  constexpr int kMixes = n * (2 + n);
  __shared__ float all[kMostSlices * (kMixes + 1)];
  __shared__ float weights[n];
  const auto d = static_cast<int>(op.x.cols);
  const int lane = threadIdx.x % kWarp;
  Token<n> token;
  token.load_norm(op.norm_weight, d);
  const float base = op.site.base[min(lane, kMixes - 1)];
  const float scale = op.site.scale[lane < n ? 0 : lane < 2 * n ? 1 : 2];
  await_results();
  token.load(op.streams, d);
  const float mix = mix_of_lane(partial, slices, kMixes, op.streams.cols, op.norm_eps, all);
  if (threadIdx.x < n) weights[lane] = weight_of(mix, scale, base, op.hc_eps);
  __syncthreads();
  weigh<n>(token, op.streams, weights, op.norm_weight, op.norm_eps, op.carrier, op.x, row);
  if (threadIdx.x >= kWarp) return;
  if (n <= lane && lane < 2 * n) op.post.data[blockIdx.x * op.post.ld + lane - n] = post_of(mix, scale, base);
  const float logit = __shfl_sync(kAll, mix * scale + base, 2 * n + min(lane, n * n - 1));
  const float comb = sinkhorn<n>(logit, op.sinkhorn_iters, op.hc_eps);
  if (lane < n * n) op.comb.data[blockIdx.x * op.comb.ld + lane] = comb;
}

template <int n>
__global__ void __launch_bounds__(kTokenThreads, 2) head(HcHead op, const float* partial, int slices) {
  allow_next();
  extern __shared__ float row[];
  __shared__ float all[kMostSlices * (n + 1)];
  __shared__ float weights[n];
  const auto d = static_cast<int>(op.y.cols);
  Token<n> token;
  token.load_norm(op.norm_weight, d);
  const float base = op.site.base[min(static_cast<int>(threadIdx.x), n - 1)];
  await_results();
  token.load(op.streams, d);
  const float mix = mix_of_lane(partial, slices, n, op.streams.cols, op.norm_eps, all);
  if (threadIdx.x < n) weights[threadIdx.x] = weight_of(mix, op.site.scale[0], base, op.hc_eps);
  __syncthreads();
  weigh<n>(token, op.streams, weights, op.norm_weight, op.norm_eps, op.carrier, op.y, row);
}

// A thread owns four columns of all streams, so out may be streams.
template <int C>
__global__ void __launch_bounds__(kThreads) post(HcPost op) {
  await_previous();
  const std::int64_t t = blockIdx.y;
  const std::int64_t d = op.y.cols;
  const std::int64_t i = 4 * (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x);
  if (i >= d) return;
  const float* in = op.streams.data + t * op.streams.ld + i;
  float* out = op.out.data + t * op.out.ld + i;
  float4 v[C];
#pragma unroll
  for (int c = 0; c < C; ++c) v[c] = load4(in + c * d);
  const float4 y = load4(op.y.data + t * op.y.ld + i);
  PutBack<C> back;
  back.load(op, t);
  back.apply(y, v, op.carrier);
#pragma unroll
  for (int c = 0; c < C; ++c) store4(out + c * d, v[c]);
}

__global__ void stream_mean(Mat<const float> streams, Mat<float> y, int n, Carrier carrier) {
  await_previous();
  const std::int64_t t = blockIdx.x;
  for (std::int64_t i = threadIdx.x; i < y.cols; i += kThreads) {
    float sum = 0;
    for (int c = 0; c < n; ++c) sum += streams.data[t * streams.ld + c * y.cols + i];
    y.data[t * y.ld + i] = carry_to(sum / static_cast<float>(n), carrier);
  }
}

// The sums over slices, in scratch memory.
struct Mixed {
  const float* partial;
  int slices;
};

// Launches them. put: what is done to the streams first, or null.
template <int C>
Mixed run_mix(Context& c, Mat<const float> streams, const float* fn, int n, const HcPost* put) {
  const int slices = ceil_div(streams.cols / C, kSlice);
  auto* partial = reinterpret_cast<float*>(
      c.scratch->take(sizeof(float) * static_cast<std::size_t>(streams.rows * slices * (n + 1)), c.fault));
  if constexpr (C == kMostStreams) {
    constexpr int kMany = 16;
    if (streams.rows >= kMany && n == kMostMixes) {
      // Two blocks a multiprocessor, whole tiles a block.
      const int tiles = ceil_div(streams.rows, kTile);
      const int runs = std::clamp(2 * c.multiprocessors / slices, 1, tiles);
      const std::int64_t tokens = std::int64_t{kTile} * ceil_div(tiles, runs);
      launch(c, put == nullptr ? "hc_mix" : "hc_post_mix", put == nullptr ? mix_tiles<false> : mix_tiles<true>,
             dim3(static_cast<unsigned>(slices), static_cast<unsigned>(ceil_div(streams.rows, tokens))), kThreads, 0,
             streams, fn, put == nullptr ? HcPost{} : *put, partial, tokens);
      return {partial, slices};
    }
  }
  constexpr int kSome = 4;
  const int tokens = streams.rows < 2 * kSome ? 1 : kSome;
  const auto go = [&](auto kernel) {
    launch(c, put == nullptr ? "hc_mix" : "hc_post_mix", kernel,
           dim3(static_cast<unsigned>(slices), static_cast<unsigned>(ceil_div(streams.rows, tokens))), kThreads, 0,
           streams, fn, n, put == nullptr ? HcPost{} : *put, partial);
  };
  if (put == nullptr) tokens == 1 ? go(mix<C, 1, false>) : go(mix<C, kSome, false>);
  else tokens == 1 ? go(mix<C, 1, true>) : go(mix<C, kSome, true>);
  return {partial, slices};
}

// Calls `work` with the number of streams as a constant.
template <class Work>
void by_streams(std::int64_t streams, const Work& work) {
  switch (streams) {
    case 1: work(std::integral_constant<int, 1>()); return;
    case 2: work(std::integral_constant<int, 2>()); return;
    case 4: work(std::integral_constant<int, 4>()); return;
    default: FATHOM_CHECK(false, "1, 2 or 4 streams");
  }
}

void check_pieces(Mat<const float> streams, Mat<const float> x) {
  FATHOM_CHECK(x.cols <= kMostSlices * kSlice, "streams of up to 8192 columns");
  FATHOM_CHECK(x.cols % 4 == 0 && x.ld % 4 == 0 && streams.ld % 4 == 0, "rows in pieces of 4 columns");
}

void check(const HcPost& op) {
  const std::int64_t streams = op.post.cols;
  check_pieces(op.streams, op.y);
  FATHOM_CHECK(streams < 4 || (op.post.ld % 4 == 0 && op.comb.ld % 4 == 0), "whole pieces of 4 numbers");
  FATHOM_CHECK(op.out.cols == streams * op.y.cols && op.streams.cols == op.out.cols && op.out.ld % 4 == 0,
               "C streams of d");
}

void run_pre(Context& c, const HcPre& op, const HcPost* put) {
  const std::int64_t streams = op.post.cols;
  FATHOM_CHECK(op.streams.cols == streams * op.x.cols && op.comb.cols == streams * streams, "C streams of d");
  check_pieces(op.streams, op.x);
  if (run_pre_by_clusters(c, op, put)) return;
  by_streams(streams, [&](auto n) {
    const Mixed mixed = run_mix<n>(c, op.streams, op.site.fn, n * (2 + n), put);
    launch(c, "hc_pre", pre<n>, dim3(static_cast<unsigned>(op.streams.rows)), kTokenThreads,
           sizeof(float) * static_cast<std::size_t>(op.x.cols), op, mixed.partial, mixed.slices);
  });
}

}  // namespace

void run(Context& c, const HcPre& op) { run_pre(c, op, nullptr); }

void run(Context& c, const HcPostPre& op) {
  const HcPost& post = op.post;
  FATHOM_CHECK(post.out.data == op.pre.streams.data && post.out.ld == op.pre.streams.ld, "the streams put back");
  check(post);
  run_pre(c, op.pre, &post);
}

void run(Context& c, const HcHead& op) {
  const std::int64_t streams = op.streams.cols / op.y.cols;
  FATHOM_CHECK(op.streams.cols == streams * op.y.cols, "C streams of d");
  check_pieces(op.streams, op.y);
  by_streams(streams, [&](auto n) {
    const Mixed mixed = run_mix<n>(c, op.streams, op.site.fn, n, nullptr);
    launch(c, "hc_head", head<n>, dim3(static_cast<unsigned>(op.streams.rows)), kTokenThreads,
           sizeof(float) * static_cast<std::size_t>(op.y.cols), op, mixed.partial, mixed.slices);
  });
}

void run(Context& c, const StreamMean& op) {
  const auto streams = static_cast<int>(op.streams.cols / op.y.cols);
  FATHOM_CHECK(op.streams.cols == streams * op.y.cols && op.streams.rows == op.y.rows, "C streams of d");
  launch(c, "stream_mean", stream_mean, dim3(static_cast<unsigned>(op.y.rows)), kThreads, 0, op.streams, op.y, streams,
         op.carrier);
}

void run(Context& c, const HcPost& op) {
  check(op);
  by_streams(op.post.cols, [&](auto n) {
    launch(c, "hc_post", post<n>,
           dim3(static_cast<unsigned>(ceil_div(op.y.cols, 4 * kThreads)), static_cast<unsigned>(op.y.rows)), kThreads,
           0, op);
  });
}

}  // namespace fathom::ops::cuda
