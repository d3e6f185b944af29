// Rows that many tokens see, expanded once for all of them (attention_mma.cuh).
#include "ops/attention/attention_mma.cuh"

namespace fathom::ops::cuda {
namespace {

// A warp a row.
constexpr int kThreads = 256;
__global__ void __launch_bounds__(kThreads)
    expand(SparseAttention op, DeviceRing ring, DevicePages pages, ExpandedRows to, std::int64_t rows) {
  await_previous();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= rows) return;
  std::uint16_t* const out = to.data + row * kMmaDim;
  if (row < to.tokens) {
#pragma unroll
    for (int dim = 4 * lane; dim < kMmaDim; dim += 4 * kWarp) {
      const float4 v = *reinterpret_cast<const float4*>(op.kv.data + row * op.kv.ld + dim);
      *reinterpret_cast<uint2*>(out + dim) = dim < kMmaPlain ? pack_plain(v) : pack_rotated(v);
    }
    return;
  }
  const std::int64_t of_segment = to.window + to.entries;
  const Segment& segment = op.batch.segments[(row - to.tokens) / of_segment];
  const auto i = static_cast<int>((row - to.tokens) % of_segment);
  const std::byte* from = nullptr;
  if (i < to.window) {
    const int position = segment.start - to.window + i;
    if (position < 0) return;
    from = ring.at(segment.slot, position);
  } else {
    if (i - to.window >= (segment.start + segment.tokens) / pages.ratio) return;
    from = pages.at(segment, i - to.window);
  }
  StoredRow stored;
  stored.load(from, lane);
  stored.store(lane, out + 8 * lane, out + StoredRow::second_dim(lane), out + StoredRow::third_dim(lane));
}

int entries_of(const SparseAttention& op) {
  return op.entries.ratio == 0 ? 0 : static_cast<int>(op.batch.longest / op.entries.ratio);
}

}  // namespace

std::int64_t rows_to_expand(const SparseAttention& op) {
  return op.batch.tokens + std::int64_t{op.batch.n_segments} * (op.window + entries_of(op));
}

bool worth_expanding(const SparseAttention& op) {
  constexpr std::int64_t kMost = std::int64_t{1} << 19;  // half a GiB
  constexpr std::int64_t kRowsAToken = 64;               // of some hundred that a token reads
  return rows_to_expand(op) <= std::min(kMost, kRowsAToken * op.batch.tokens);
}

ExpandedRows expand_rows(Context& c, const SparseAttention& op, std::byte* memory) {
  const ExpandedRows to{.data = reinterpret_cast<std::uint16_t*>(memory),
                        .tokens = op.batch.tokens,
                        .window = op.window,
                        .entries = entries_of(op)};
  const std::int64_t rows = rows_to_expand(op);
  launch(c, "sparse_attention_expand", expand, dim3(static_cast<unsigned>(ceil_div(rows, kThreads / kWarp))), kThreads,
         0, op, DeviceRing(op.ring), DevicePages(op.entries), to, rows);
  return to;
}

}  // namespace fathom::ops::cuda
