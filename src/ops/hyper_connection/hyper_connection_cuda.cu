#include "ops/cuda/launch.cuh"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ops.h"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kSlice = 4 * kWarp;  // columns of every stream in a block of `mix`; sums are cut there whatever the batch
constexpr int kMostStreams = 4;
constexpr int kMostMixes = kMostStreams * (2 + kMostStreams);
constexpr int kTokenThreads = 512;  // of the blocks that have one token

__device__ float dot4(float4 a, float4 b, float sum) {
  sum = fmaf(a.x, b.x, sum);
  sum = fmaf(a.y, b.y, sum);
  sum = fmaf(a.z, b.z, sum);
  return fmaf(a.w, b.w, sum);
}

// What HcPost makes of four columns of all streams of token t; v holds them, and gets the result.
__device__ void put_back(const HcPost& op, int n, std::int64_t t, std::int64_t i, float4 (&v)[kMostStreams]) {
  const float* post = op.post.data + t * op.post.ld;
  const float* comb = op.comb.data + t * op.comb.ld;
  const auto y = *reinterpret_cast<const float4*>(op.y.data + t * op.y.ld + i);
  float4 out[kMostStreams];
#pragma unroll
  for (int j = 0; j < kMostStreams; ++j) {
    out[j] = {0, 0, 0, 0};
    if (j >= n) continue;
    float4 sum = {post[j] * y.x, post[j] * y.y, post[j] * y.z, post[j] * y.w};
#pragma unroll
    for (int c = 0; c < kMostStreams; ++c) {
      if (c >= n) continue;
      const float m = comb[c * n + j];
      sum = {fmaf(m, v[c].x, sum.x), fmaf(m, v[c].y, sum.y), fmaf(m, v[c].z, sum.z), fmaf(m, v[c].w, sum.w)};
    }
    out[j] = {carry_to(sum.x, op.carrier), carry_to(sum.y, op.carrier), carry_to(sum.z, op.carrier),
              carry_to(sum.w, op.carrier)};
  }
#pragma unroll
  for (int j = 0; j < kMostStreams; ++j) v[j] = out[j];
}

// Sums over one slice of the streams: fn v for each of n rows of fn, and v v after them. partial [T, slices, n + 1].
// A warp has every kWarps-th row; kTokens tokens share what it reads of fn. kPutBack: the streams are first what `put`
// makes of them, and are left so.
template <int kTokens, bool kPutBack>
__global__ void __launch_bounds__(kThreads)
    mix(Mat<const float> streams, int n_streams, const float* fn, int n, HcPost put, float* partial) {
  await_previous();
  const std::int64_t width = streams.cols;
  const std::int64_t d = width / n_streams;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSlice + threadIdx.x % kWarp * 4;
  const std::int64_t t0 = static_cast<std::int64_t>(blockIdx.y) * kTokens;
  const Mat<const float>& before = kPutBack ? put.streams : streams;
  float4 v[kTokens][kMostStreams];
#pragma unroll
  for (int k = 0; k < kTokens; ++k) {
#pragma unroll
    for (int c = 0; c < kMostStreams; ++c) {
      v[k][c] = {0, 0, 0, 0};
      if (i < d && c < n_streams && t0 + k < streams.rows)
        v[k][c] = *reinterpret_cast<const float4*>(before.data + (t0 + k) * before.ld + c * d + i);
    }
  }
  if constexpr (kPutBack) {
    __syncthreads();  // every warp has read what the first now writes
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
      if (i >= d || t0 + k >= streams.rows) continue;
      put_back(put, n_streams, t0 + k, i, v[k]);
#pragma unroll
      for (int c = 0; c < kMostStreams; ++c) {
        if (c < n_streams && threadIdx.x < kWarp)
          *reinterpret_cast<float4*>(put.out.data + (t0 + k) * put.out.ld + c * d + i) = v[k][c];
      }
    }
  }
#pragma unroll
  for (int turn = 0; turn < (kMostMixes + kWarps) / kWarps; ++turn) {
    const int row = static_cast<int>(threadIdx.x) / kWarp + turn * kWarps;
    if (row > n) break;
    float4 f[kMostStreams];
#pragma unroll
    for (int c = 0; c < kMostStreams; ++c) {
      f[c] = {0, 0, 0, 0};
      if (i < d && c < n_streams && row < n) f[c] = *reinterpret_cast<const float4*>(fn + row * width + c * d + i);
    }
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
      float sum = 0;
#pragma unroll
      for (int c = 0; c < kMostStreams; ++c) sum = dot4(row < n ? f[c] : v[k][c], v[k][c], sum);
      sum = warp_sum(sum);
      if (threadIdx.x % kWarp == 0 && t0 + k < streams.rows) {
        partial[((t0 + k) * gridDim.x + blockIdx.x) * (n + 1) + row] = sum;
      }
    }
  }
}

// rho * fn v into m[0, n) of shared memory, by the first threads of a block.
__device__ void gather_mixes(const float* partial, int slices, int n, std::int64_t width, float eps, float* m) {
  const float* mine = partial + static_cast<std::int64_t>(blockIdx.x) * slices * (n + 1);
  __shared__ float rho;
  float sum = 0;
  if (threadIdx.x <= n) {
#pragma unroll 8
    for (int s = 0; s < slices; ++s) sum += mine[s * (n + 1) + threadIdx.x];
  }
  if (threadIdx.x == n) rho = 1.0F / sqrtf(sum / static_cast<float>(width) + eps);
  __syncthreads();
  if (threadIdx.x < n) m[threadIdx.x] = rho * sum;
  __syncthreads();
}

__device__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

// x[t] = sum of weights[c] * stream c, normalised where there is a norm. Rounded as it is written. row: room for d
// values.
__device__ void weigh(Mat<const float> streams, const float* weights, int n_streams, const float* norm, float eps,
                      Carrier carrier, Mat<float> x, float* row) {
  const float* v = streams.data + blockIdx.x * streams.ld;
  float* out = x.data + blockIdx.x * x.ld;
  const int d = static_cast<int>(x.cols);
  float squares = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < d; i += kTokenThreads) {
    float sum = 0;
    for (int c = 0; c < n_streams; ++c) sum = fmaf(weights[c], v[static_cast<std::int64_t>(c) * d + i], sum);
    const float u = carry_to(sum, carrier);
    row[i] = u;
    squares = fmaf(u, u, squares);
  }
  const float rho =
      norm != nullptr ? 1.0F / sqrtf(block_sum<kTokenThreads>(squares) / static_cast<float>(d) + eps) : 0.0F;
#pragma unroll 4
  for (int i = threadIdx.x; i < d; i += kTokenThreads) {
    out[i] = norm != nullptr ? carry_to(norm[i] * (row[i] * rho), carrier) : row[i];
  }
}

// Sinkhorn by one warp: lane i*n + j holds element i, j; sums run in the order of the reference.
template <int n>
__device__ float sinkhorn(float logit, int iters, float eps) {
  const int lane = threadIdx.x % kWarp;
  const int i = min(lane / n, n - 1);
  const int j = lane % n;
  float top = logit;
  for (int k = 0; k < n; ++k) top = fmaxf(top, __shfl_sync(kAll, logit, i * n + k));
  float m = expf(logit - top);
  // The sum over the elements that differ in their second index (rows) or first (columns).
  const auto sum_over = [&](bool rows) {
    float part[n];
    for (int k = 0; k < n; ++k) part[k] = __shfl_sync(kAll, m, rows ? i * n + k : k * n + j);
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += part[k];
    return sum;
  };
  m = m / sum_over(true) + eps;
  m /= sum_over(false) + eps;
  for (int turn = 1; turn < iters; ++turn) {
    m /= sum_over(true) + eps;
    m /= sum_over(false) + eps;
  }
  return m;
}

// One block a token: the mixing numbers made into weights, the streams weighed into x.
template <int n>
__global__ void __launch_bounds__(kTokenThreads) pre(HcPre op, const float* partial, int slices) {
  await_previous();
  extern __shared__ float row[];
  constexpr int kMixes = n * (2 + n);
  __shared__ float m[kMixes];
  __shared__ float weights[n];
  gather_mixes(partial, slices, kMixes, op.streams.cols, op.norm_eps, m);
  const int lane = threadIdx.x % kWarp;
  if (threadIdx.x < n) {
    weights[lane] = sigmoid(m[lane] * op.site.scale[0] + op.site.base[lane]) + op.hc_eps;
    op.post.data[blockIdx.x * op.post.ld + lane] =
        2.0F * sigmoid(m[n + lane] * op.site.scale[1] + op.site.base[n + lane]);
  }
  if (threadIdx.x / kWarp == 1) {  // beside the others: nothing in this block waits for it
    const int at = min(lane, n * n - 1);
    const float comb =
        sinkhorn<n>(m[2 * n + at] * op.site.scale[2] + op.site.base[2 * n + at], op.sinkhorn_iters, op.hc_eps);
    if (lane < n * n) op.comb.data[blockIdx.x * op.comb.ld + lane] = comb;
  }
  __syncthreads();
  weigh(op.streams, weights, n, op.norm_weight, op.norm_eps, op.carrier, op.x, row);
}

__global__ void __launch_bounds__(kTokenThreads) head(HcHead op, const float* partial, int slices, int n) {
  await_previous();
  extern __shared__ float row[];
  __shared__ float m[kMostMixes];
  __shared__ float weights[kMostStreams];
  gather_mixes(partial, slices, n, op.streams.cols, op.norm_eps, m);
  if (threadIdx.x < n) {
    weights[threadIdx.x] = sigmoid(m[threadIdx.x] * op.site.scale[0] + op.site.base[threadIdx.x]) + op.hc_eps;
  }
  __syncthreads();
  weigh(op.streams, weights, n, op.norm_weight, op.norm_eps, op.carrier, op.y, row);
}

// A thread owns one column of all streams, so out may be streams.
__global__ void post(HcPost op) {
  await_previous();
  const int n = static_cast<int>(op.post.cols);
  const std::int64_t t = blockIdx.y;
  const std::int64_t d = op.y.cols;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= d) return;
  const float* v = op.streams.data + t * op.streams.ld;
  const float* comb = op.comb.data + t * op.comb.ld;
  float in[kMostStreams];
  for (int c = 0; c < n; ++c) in[c] = v[c * d + i];
  const float y = op.y.data[t * op.y.ld + i];
  for (int j = 0; j < n; ++j) {
    float sum = op.post.data[t * op.post.ld + j] * y;
    for (int c = 0; c < n; ++c) sum = fmaf(comb[c * n + j], in[c], sum);
    op.out.data[t * op.out.ld + j * d + i] = carry_to(sum, op.carrier);
  }
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
Mixed run_mix(Context& c, Mat<const float> streams, int n_streams, const float* fn, int n, const HcPost* put) {
  FATHOM_CHECK(1 <= n_streams && n_streams <= kMostStreams && streams.cols % (4 * n_streams) == 0 &&
                   streams.ld % 4 == 0,
               "up to 4 streams in pieces of 4 columns");
  const int slices = ceil_div(streams.cols / n_streams, kSlice);
  auto* partial = reinterpret_cast<float*>(
      c.scratch->take(sizeof(float) * static_cast<std::size_t>(streams.rows * slices * (n + 1)), c.fault));
  constexpr int kMany = 4;
  const int tokens = streams.rows < 2 * kMany ? 1 : kMany;
  const auto go = [&](auto kernel) {
    launch(c, put == nullptr ? "hc_mix" : "hc_post_mix", kernel,
           dim3(static_cast<unsigned>(slices), static_cast<unsigned>(ceil_div(streams.rows, tokens))), kThreads, 0,
           streams, n_streams, fn, n, put == nullptr ? HcPost{} : *put, partial);
  };
  if (put == nullptr) tokens == 1 ? go(mix<1, false>) : go(mix<kMany, false>);
  else tokens == 1 ? go(mix<1, true>) : go(mix<kMany, true>);
  return {partial, slices};
}

void run_pre(Context& c, const HcPre& op, const HcPost* put) {
  const auto streams = static_cast<int>(op.post.cols);
  FATHOM_CHECK(op.streams.cols == streams * op.x.cols && op.comb.cols == streams * streams, "C streams of d");
  const Mixed mixed = run_mix(c, op.streams, streams, op.site.fn, streams * (2 + streams), put);
  const auto go = [&](auto kernel) {
    launch(c, "hc_pre", kernel, dim3(static_cast<unsigned>(op.streams.rows)), kTokenThreads,
           sizeof(float) * static_cast<std::size_t>(op.x.cols), op, mixed.partial, mixed.slices);
  };
  switch (streams) {
    case 1: go(pre<1>); return;
    case 2: go(pre<2>); return;
    case 4: go(pre<4>); return;
    default: FATHOM_CHECK(false, "1, 2 or 4 streams");
  }
}

}  // namespace

void run(Context& c, const HcPre& op) { run_pre(c, op, nullptr); }

void run(Context& c, const HcPostPre& op) {
  const HcPost& post = op.post;
  FATHOM_CHECK(post.out.data == op.pre.streams.data && post.out.ld == op.pre.streams.ld, "the streams put back");
  FATHOM_CHECK(post.y.ld % 4 == 0 && post.streams.ld % 4 == 0, "rows in pieces of 4 columns");
  const auto streams = static_cast<int>(post.post.cols);
  FATHOM_CHECK(post.out.cols == streams * post.y.cols && post.streams.cols == post.out.cols, "C streams of d");
  run_pre(c, op.pre, &post);
}

void run(Context& c, const HcHead& op) {
  const auto streams = static_cast<int>(op.streams.cols / op.y.cols);
  FATHOM_CHECK(op.streams.cols == streams * op.y.cols, "C streams of d");
  const Mixed mixed = run_mix(c, op.streams, streams, op.site.fn, streams, nullptr);
  launch(c, "hc_head", head, dim3(static_cast<unsigned>(op.streams.rows)), kTokenThreads,
         sizeof(float) * static_cast<std::size_t>(op.y.cols), op, mixed.partial, mixed.slices, streams);
}

void run(Context& c, const StreamMean& op) {
  const auto streams = static_cast<int>(op.streams.cols / op.y.cols);
  FATHOM_CHECK(op.streams.cols == streams * op.y.cols && op.streams.rows == op.y.rows, "C streams of d");
  launch(c, "stream_mean", stream_mean, dim3(static_cast<unsigned>(op.y.rows)), kThreads, 0, op.streams, op.y, streams,
         op.carrier);
}

void run(Context& c, const HcPost& op) {
  const auto streams = static_cast<int>(op.post.cols);
  FATHOM_CHECK(op.streams.cols == streams * op.y.cols && op.out.cols == op.streams.cols, "C streams of d");
  FATHOM_CHECK(1 <= streams && streams <= kMostStreams, "up to 4 streams");
  launch(c, "hc_post", post,
         dim3(static_cast<unsigned>(ceil_div(op.y.cols, kThreads)), static_cast<unsigned>(op.y.rows)), kThreads, 0, op);
}

}  // namespace fathom::ops::cuda
