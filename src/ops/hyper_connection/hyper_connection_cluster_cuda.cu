// HcPre, and HcPost before it, for few tokens in one launch: 16 blocks of a cluster share a token and send each other
// their sums. A block reads its part of fn once, before it waits for the kernel in front.
#include "ops/cuda/cluster.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/hyper_connection/streams.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr int kStreams = 4;
constexpr int kMixes = kStreams * (2 + kStreams);
constexpr int kRanks = 16;  // blocks of a cluster
constexpr int kTeam = 8;    // warps that share a slice; each has kRows rows of fn
constexpr int kRows = kMixes / kTeam;
constexpr int kBlockSlices = 2;
constexpr int kMostSlices = kRanks * kBlockSlices;
constexpr int kTeamThreads = kTeam * kWarp;
constexpr int kThreads = kBlockSlices * kTeamThreads;

// What the blocks of a cluster have sent each other of kTokens tokens, one turn of the loop after another.
template <int kTokens>
struct Sent {
  // Of every warp: its rows of fn times v, and v v, which the k-th warp of a team has right of token k.
  float4 mixes[kTokens][kMostSlices][kTeam];
  float squares[kTokens][kMostSlices];  // of the weighed streams
};
template <int kTokens>
struct Shared {
  Sent<kTokens> sent[2];  // turns alternate: a block may be one ahead of another
  float4 tile[kBlockSlices][kTokens][kStreams][kWarp];
};
static_assert(kRows + 1 == 4);

// Sum of what a lane gets for each slice; those that there are not give 0.
template <class Of>
__device__ float over_slices(const Of& of) {
  float part[4] = {0, 0, 0, 0};
#pragma unroll
  for (int s = 0; s < kMostSlices; ++s) part[s % 4] += of(s);
  return (part[0] + part[1]) + (part[2] + part[3]);
}

// Lane i < kMixes gets the i-th mixing number of token k.
[[maybe_unused]] __device__ float mix_of_lane(const float4 (&part)[kMostSlices][kTeam], int k, std::int64_t width,
                                              float eps) {
  const int lane = threadIdx.x % kWarp;
  const int at = lane < kMixes ? lane / kRows * 4 + lane % kRows : k * 4 + kRows;
  const float sum = over_slices([&](int s) { return reinterpret_cast<const float*>(part[s])[at]; });
  return __shfl_sync(kAll, rms_scale(sum, static_cast<int>(width), eps), kMixes) * sum;
}

[[maybe_unused]] __device__ void barrier(int which, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(which), "r"(threads) : "memory");
}

// A team has one slice of every stream. Two columns of one stream are a thread's to put back; then every warp sees the
// whole slice.
template <int kTokens, bool kPutBack>
__global__ void __launch_bounds__(kThreads, 1) pre_by_clusters(HcPre op, HcPost put) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ float4 memory[];
  auto& sent = reinterpret_cast<Shared<kTokens>*>(memory)->sent;
  auto& tile = reinterpret_cast<Shared<kTokens>*>(memory)->tile;
  __shared__ Arrivals mixes_came[2];
  __shared__ Arrivals squares_came[2];
  allow_next();
  const int rank = static_cast<int>(blockIdx.x) % kRanks;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int team = warp % kTeam;
  const int side = warp / kTeam;
  const int slice = rank * kBlockSlices + side;
  const std::int64_t d = op.x.cols;
  const std::int64_t width = op.streams.cols;
  const std::int64_t rows = op.streams.rows;
  const auto slices = static_cast<int>((d + kSlice - 1) / kSlice);
  const std::int64_t column = static_cast<std::int64_t>(slice) * kSlice + lane * 4;
  const bool mine = column < d;
  const bool sends = slice < slices;

  float4 f[kRows][kStreams];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kStreams; ++c) {
      f[r][c] = mine ? load4(op.site.fn + (team * kRows + r) * width + c * d + column) : float4{0, 0, 0, 0};
    }
  }
  const float4 norm = op.norm_weight != nullptr && mine ? load4(op.norm_weight + column) : float4{1, 1, 1, 1};
  const float base = op.site.base[min(lane, kMixes - 1)];
  const float scale = op.site.scale[lane < kStreams ? 0 : lane < 2 * kStreams ? 1 : 2];
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      mixes_came[i].make();
      squares_came[i].make();
    }
  }
  if (slices < kMostSlices) {
    for (int i = threadIdx.x; i < static_cast<int>(sizeof(sent) / sizeof(float)); i += kThreads)
      reinterpret_cast<float*>(sent)[i] = 0;
  }
  arrive_at_cluster();
  await_cluster();
  await_results();

  const std::int64_t step = gridDim.x / kRanks * kTokens;
  std::uint32_t turn = 0;
  for (std::int64_t t0 = blockIdx.x / kRanks * kTokens; t0 < rows; t0 += step, ++turn) {
    Sent<kTokens>& now = sent[turn % 2];
    Arrivals& mixes = mixes_came[turn % 2];
    Arrivals& squares = squares_came[turn % 2];
    if (threadIdx.x == 0) {
      mixes.expect(sizeof(float) * static_cast<unsigned>(kTokens * slices * kTeam * 4));
      if (op.norm_weight != nullptr) squares.expect(sizeof(float) * static_cast<unsigned>(kTokens * slices));
    }
    // Two columns of stream j.
    const int j = team % kStreams;
    const int in_slice = team / kStreams * (kSlice / 2) + lane * 2;
    const std::int64_t at = static_cast<std::int64_t>(slice) * kSlice + in_slice;
    const bool has = at < d;
    const auto two = [&](const float* p) { return has ? *reinterpret_cast<const float2*>(p) : float2{0, 0}; };
    float2 out[kTokens];
    if constexpr (kPutBack) {
      float2 v[kTokens][kStreams];
      float2 y[kTokens];
      float post[kTokens];
      float comb[kTokens][kStreams];
#pragma unroll
      for (int k = 0; k < kTokens; ++k) {
        const std::int64_t t = min(t0 + k, rows - 1);
        y[k] = two(put.y.data + t * put.y.ld + at);
        post[k] = put.post.data[t * put.post.ld + j];
#pragma unroll
        for (int c = 0; c < kStreams; ++c) {
          v[k][c] = two(put.streams.data + t * put.streams.ld + c * d + at);
          comb[k][c] = put.comb.data[t * put.comb.ld + c * kStreams + j];
        }
      }
#pragma unroll
      for (int k = 0; k < kTokens; ++k) {
        float2 sum = {post[k] * y[k].x, post[k] * y[k].y};
#pragma unroll
        for (int c = 0; c < kStreams; ++c) {
          sum = {fmaf(comb[k][c], v[k][c].x, sum.x), fmaf(comb[k][c], v[k][c].y, sum.y)};
        }
        out[k] = {carry_to(sum.x, put.carrier), carry_to(sum.y, put.carrier)};
      }
    } else {
#pragma unroll
      for (int k = 0; k < kTokens; ++k) {
        out[k] = two(op.streams.data + min(t0 + k, rows - 1) * op.streams.ld + j * d + at);
      }
    }
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
      *reinterpret_cast<float2*>(reinterpret_cast<float*>(tile[side][k][j]) + in_slice) = out[k];
    }
    barrier(1 + side, kTeamThreads);  // from here on nobody reads the streams that are put back
    if constexpr (kPutBack) {
#pragma unroll
      for (int k = 0; k < kTokens; ++k) {
        if (has && t0 + k < rows)
          *reinterpret_cast<float2*>(put.out.data + (t0 + k) * put.out.ld + j * d + at) = out[k];
      }
    }
    constexpr int kEach = kRows + 1;  // sums of a token in a warp, squares last
    float sum[kTokens * kEach] = {};
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
      float4 v[kStreams];
#pragma unroll
      for (int c = 0; c < kStreams; ++c) v[c] = tile[side][k][c][lane];
#pragma unroll
      for (int c = 0; c < kStreams; ++c) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) sum[k * kEach + r] = dot4(f[r][c], v[c], sum[k * kEach + r]);
      }
      if (team == k) {
#pragma unroll
        for (int c = 0; c < kStreams; ++c) sum[k * kEach + kRows] = dot4(v[c], v[c], sum[k * kEach + kRows]);
      }
    }
    const float total = warp_sums(sum);
    constexpr int kCopies = kWarp / (kTokens * kEach);  // lanes that have the same sum
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
      const auto of = [&](int r) { return __shfl_sync(kAll, total, (k * kEach + r) * kCopies); };
      const float4 four = {of(0), of(1), of(2), of(3)};
      if (sends && lane < kRanks) mixes.send(&now.mixes[k][slice][team], four, lane);
    }
    if (team < kTokens) {
      mixes.await(turn / 2);
      const float mix = mix_of_lane(now.mixes[team], team, width, op.norm_eps);
      const float weight = weight_of(mix, scale, base, op.hc_eps);
      float4 u = {0, 0, 0, 0};
#pragma unroll
      for (int c = 0; c < kStreams; ++c) u = fma4(__shfl_sync(kAll, weight, c), tile[side][team][c][lane], u);
      u = carry4(u, op.carrier);
      if (op.norm_weight != nullptr) {
        const float square = warp_sum(dot4(u, u, 0.0F));
        if (sends && lane < kRanks) squares.send(&now.squares[team][slice], square, lane);
        squares.await(turn / 2);
        const float all = over_slices([&](int s) { return now.squares[team][s]; });
        u = norm4(u, norm, rms_scale(all, static_cast<int>(d), op.norm_eps), op.carrier);
      }
      if (mine && t0 + team < rows) store4(op.x.data + (t0 + team) * op.x.ld + column, u);
    }
    // By the last warp of a block for one token: how its next output will be put back.
    if (warp == kThreads / kWarp - 1 && rank < kTokens && t0 + rank < rows) {
      const std::int64_t t = t0 + rank;
      mixes.await(turn / 2);
      const float mix = mix_of_lane(now.mixes[rank], rank, width, op.norm_eps);
      const int from = 2 * kStreams + min(lane, kStreams * kStreams - 1);
      const float logit = __shfl_sync(kAll, mix * scale + base, from);
      if (kStreams <= lane && lane < 2 * kStreams) {
        op.post.data[t * op.post.ld + lane - kStreams] = post_of(mix, scale, base);
      }
      const float comb = sinkhorn<kStreams>(logit, op.sinkhorn_iters, op.hc_eps);
      if (lane < kStreams * kStreams) op.comb.data[t * op.comb.ld + lane] = comb;
    }
    if (t0 + step < rows) __syncthreads();  // the next turn but one writes where this one reads
  }
#endif
}

template <int kTokens>
void go(Context& c, const HcPre& op, const HcPost* put, int clusters) {
  const int wanted = ceil_div(op.streams.rows, kTokens);
  const auto kernel = put != nullptr ? pre_by_clusters<kTokens, true> : pre_by_clusters<kTokens, false>;
  launch_clusters(c, put != nullptr ? "hc_post_pre" : "hc_pre", kernel,
                  dim3(static_cast<unsigned>(kRanks * (wanted < clusters ? wanted : clusters))), kRanks, kThreads,
                  sizeof(Shared<kTokens>), op, put != nullptr ? *put : HcPost{});
}

}  // namespace

bool run_pre_by_clusters(Context& c, const HcPre& op, const HcPost* post) {
  // More tokens than the table says take the tiles of the other way less time.
  if (!c.kernels.takes(Leaf::kHyperConnectionCluster, op.streams.rows)) return false;
  if (op.post.cols != kStreams || op.x.cols > kMostSlices * kSlice) return false;
  if (c.hc_clusters < 0) {
    c.hc_clusters = clusters_that_fit(c, pre_by_clusters<4, true>, kRanks, kThreads, sizeof(Shared<4>));
  }
  const int clusters = c.hc_clusters;
  if (clusters == 0) return false;
  const std::int64_t each = ceil_div(op.streams.rows, clusters);
  if (each <= 1) go<1>(c, op, post, clusters);
  else if (each <= 2) go<2>(c, op, post, clusters);
  else go<4>(c, op, post, clusters);
  return true;
}

}  // namespace fathom::ops::cuda
