#include "ops/cuda/entry.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ops.h"
#include "ops/cuda/row.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kMostAngles = 128;  // pairs that are rotated

__device__ float* ring_row(const CompressorRing& r, std::byte* slot, int position) {
  return reinterpret_cast<float*>(slot + r.offset) + static_cast<std::int64_t>(position % r.capacity) * 2 * r.width;
}

// The projections of one token, of this step or kept in the ring, from the columns that the entry takes of it. The
// ring's scores have their position bias.
struct Row {
  const float* kv;
  const float* score;
  const float* bias;  // or null
};

// The rows of a window into shared memory: up to 128.
constexpr int kMostRows = 128;
__device__ int list_rows(const Compress& op, const Segment& s, int first, int dim, Row* rows) {
  const int ratio = op.entries.ratio;
  const bool overlap = op.ring.width == 2 * dim;
  const int from = overlap && first > 0 ? first - ratio : first;
  const int n = first + ratio - from;
  for (int r = threadIdx.x; r < n; r += kThreads) {
    const int position = from + r;
    const int column = overlap && position >= first ? dim : 0;
    if (position < s.start) {
      const float* row = ring_row(op.ring, s.slot, position) + column;
      rows[r] = {row, row + op.ring.width, nullptr};
    } else {
      const std::int64_t t = s.first_row + position - s.start;
      rows[r] = {op.kv.data + t * op.kv.ld + column, op.score.data + t * op.score.ld + column,
                 op.ape + static_cast<std::int64_t>(position % ratio) * op.score.cols + column};
    }
  }
  __syncthreads();
  return n;
}

// Softmax over n rows of channel c, applied to their values; a few rows under way at a time.
__device__ float pool(const Row* rows, int n, int c) {
  constexpr int kAhead = 8;
  float top = -INFINITY;
  for (int begin = 0; begin < n; begin += kAhead) {
    float score[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const Row& r = rows[min(begin + k, n - 1)];
      score[k] = r.bias != nullptr ? r.score[c] + r.bias[c] : r.score[c];
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) top = fmaxf(top, score[k]);
  }
  float weights = 0;
  float sum = 0;
  for (int begin = 0; begin < n; begin += kAhead) {
    float score[kAhead];
    float value[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const Row& r = rows[min(begin + k, n - 1)];
      score[k] = r.bias != nullptr ? r.score[c] + r.bias[c] : r.score[c];
      value[k] = r.kv[c];
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (begin + k >= n) continue;
      const float w = expf(score[k] - top);
      weights += w;
      sum = fmaf(w, value[k], sum);
    }
  }
  return sum / weights;
}

// One block a token; those that end a window make its entry.
__global__ void make_entries(Compress op, DevicePages pages) {
  await_previous();
  extern __shared__ float entry[];
  __shared__ float cos[kMostAngles];
  __shared__ float sin[kMostAngles];
  __shared__ Row rows[kMostRows];
  const int ratio = op.entries.ratio;
  const int position = op.batch.positions[blockIdx.x];
  if ((position + 1) % ratio != 0) return;
  const Segment s = op.batch.segments[op.batch.segment_of[blockIdx.x]];
  const int dim = pages.codec.dim;
  const int first = position + 1 - ratio;
  const int n = op.rope_dim / 2;
  const int n_rows = list_rows(op, s, first, dim, rows);
  for (int c = threadIdx.x; c < dim; c += kThreads) entry[c] = carry_to(pool(rows, n_rows, c), op.carrier);
  for (int j = threadIdx.x; j < n; j += kThreads) {
    double sine = 0;
    double cosine = 0;
    ::sincos(double{__fmul_rn(static_cast<float>(first), op.frequencies[j])}, &sine, &cosine);
    cos[j] = static_cast<float>(cosine);
    sin[j] = static_cast<float>(sine);
  }
  __syncthreads();
  norm_row<kThreads>(entry, dim, op.norm_weight, op.eps, op.carrier);
  rotate_row<kThreads>(entry, dim, cos, sin, n, op.carrier);
  if (threadIdx.x >= kWarp) return;
  if (op.kind == EntryKind::kIndex) {
    hadamard_warp(entry, dim);
    for (int i = threadIdx.x; i < dim; i += kWarp) entry[i] = carry_to(entry[i], op.carrier);
    __syncwarp();
    if (op.quantise) fp4_round_trip_warp(entry, dim);
  } else if (op.quantise) {
    fp8_round_trip_warp(entry, dim - op.rope_dim);
  }
  encode_warp(pages.codec, entry, pages.at(s, first / ratio));
}

// One block a token: the bias goes into the scores, and the rows that later entries need into the ring. After
// make_entries, which may still read the ring's older rows.
__global__ void keep_rows(Compress op) {
  await_previous();
  const std::int64_t t = blockIdx.x;
  const int position = op.batch.positions[t];
  const Segment s = op.batch.segments[op.batch.segment_of[t]];
  float* r = ring_row(op.ring, s.slot, position);
  const bool keep = s.tokens - (position - s.start) <= op.ring.capacity;
  const float* kv = op.kv.data + t * op.kv.ld;
  float* score = op.score.data + t * op.score.ld;
  const float* bias = op.ape + static_cast<std::int64_t>(position % op.entries.ratio) * op.score.cols;
  for (int i = threadIdx.x; i < op.ring.width; i += kThreads) {
    const float v = score[i] + bias[i];
    score[i] = v;
    if (!keep) continue;
    r[i] = kv[i];
    r[op.ring.width + i] = v;
  }
}

}  // namespace

void run(Context& c, const Compress& op) {
  FATHOM_CHECK(op.kv.cols == op.ring.width && op.score.cols == op.ring.width, "projections of the ring's width");
  FATHOM_CHECK(op.rope_dim <= 2 * kMostAngles, "entries of a few rotated dims");
  FATHOM_CHECK(op.entries.ratio > 0 && op.ring.width / op.entries.codec.dim * op.entries.ratio <= kMostRows,
               "windows of up to 128 rows");
  const auto tokens = static_cast<unsigned>(op.batch.tokens);
  launch(c, "compress", make_entries, dim3(tokens), kThreads,
         sizeof(float) * static_cast<std::size_t>(op.entries.codec.dim), op, DevicePages(op.entries));
  launch(c, "compress_keep", keep_rows, dim3(tokens), kThreads, 0, op);
}

}  // namespace fathom::ops::cuda
