#include <algorithm>

#include "ops/cuda/matmul_common.cuh"
#include "ops/cuda/planes.cuh"

namespace fathom::ops::cuda {
namespace {

// One warp kMakeBlocks blocks of 128 values of a row; a lane has 4 of each.
constexpr int kMakeBlocks = 4;
__global__ void make(PlanesOf op, Planes to, unsigned pieces) {
  await_previous();
  const unsigned i = blockIdx.x * kMatmulWarps + threadIdx.x / kWarp;
  const std::int64_t row = i / pieces;  // t * groups + group
  if (row >= op.x.rows * op.groups) return;
  const int lane = threadIdx.x % kWarp;
  const std::int64_t cols = op.x.cols / op.groups;
  const std::int64_t begin = static_cast<std::int64_t>(i % pieces) * kMakeBlocks * kBlock;
  const float* from = op.x.data + row / op.groups * op.x.ld + row % op.groups * cols;
  const bool aligned = reinterpret_cast<std::uintptr_t>(from) % sizeof(float4) == 0;
  float v[kMakeBlocks][4];
#pragma unroll
  for (int b = 0; b < kMakeBlocks; ++b) {
    const std::int64_t at = begin + b * kBlock + 4 * lane;
    if (at + 4 <= cols && aligned) {
      const float4 all = *reinterpret_cast<const float4*>(from + at);
      v[b][0] = all.x;
      v[b][1] = all.y;
      v[b][2] = all.z;
      v[b][3] = all.w;
    } else {
      for (int j = 0; j < 4; ++j) v[b][j] = at + j < cols ? from[at + j] : 0.0F;
    }
  }
#pragma unroll
  for (int b = 0; b < kMakeBlocks; ++b) {
    const std::int64_t block = begin + b * kBlock;
    if (block >= to.row_stride) return;
    if (op.values == Values::kQuantise) quantise_block(v[b]);
    const std::int64_t first = row * to.row_stride + block;
    for (int p = 0; p < to.planes; ++p) {
      std::uint32_t bits[4];
      for (int j = 0; j < 4; ++j) {
        bits[j] = bf16_bits(v[b][j]);
        v[b][j] = isfinite(v[b][j]) ? v[b][j] - bf16_value(bits[j]) : 0.0F;
      }
      const uint2 pairs = plane_pair(bits, lane);
      const std::int64_t at_plane = first + p * to.plane_stride;
      store_pairs(reinterpret_cast<std::uint16_t*>(op.memory) + at_plane,
                  row < op.other_from ? op.order : op.other_order, lane, pairs);
      if (op.other_memory == nullptr) continue;
      store_pairs(reinterpret_cast<std::uint16_t*>(op.other_memory) + at_plane, op.other_order, lane, pairs);
    }
  }
}

int planes_of(Values values) { return values == Values::kF32 ? 3 : 1; }

// Rows in whole pieces of 16 bytes, of FP4 each of them: some rows of a matrix are of its format.
bool is_aligned(const Weight& w) {
  const auto address = reinterpret_cast<std::uintptr_t>(w.data);
  return w.cols % (w.dtype == DType::kFp4x2 ? 32 : 16) == 0 && address % 16 == 0;
}

__global__ void reorder_fp4(uint4* data, std::int64_t n) {
  await_previous();
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kMatmulThreads + threadIdx.x; i < n;
       i += static_cast<std::int64_t>(gridDim.x) * kMatmulThreads) {
    using Codes = Loader<Format::kFp4>;
    const uint4 v = data[i];
    data[i] = {Codes::reordered(v.x), Codes::reordered(v.y), Codes::reordered(v.z), Codes::reordered(v.w)};
  }
}

}  // namespace

Format format_of(const Weight& w) {
  if (!is_aligned(w)) return Format::kWide;
  switch (w.dtype) {
    case DType::kBf16: return Format::kBf16;
    case DType::kF8E4M3: return Format::kFp8;
    case DType::kFp4x2: return w.scale_dtype == DType::kF32 ? Format::kWide : Format::kFp4;
    default: return Format::kWide;
  }
}

namespace {

// Tokens of one item where there is one matrix: large enough that W goes past seldom.
int tokens_of(std::int64_t rows, Format f) {
  if (f == Format::kWide || rows <= kFewRows) return 8;
  return rows <= kSomeRows ? 32 : kTileTokens;
}

Leaf wgmma_of(Format f, bool experts) {
  switch (f) {
    case Format::kBf16: return experts ? Leaf::kExpertsBf16Wgmma : Leaf::kLinearBf16Wgmma;
    case Format::kFp8: return experts ? Leaf::kExpertsFp8Wgmma : Leaf::kLinearFp8Wgmma;
    case Format::kFp4: return experts ? Leaf::kExpertsFp4Wgmma : Leaf::kLinearFp4Wgmma;
    case Format::kWide: return Leaf::kNone;
  }
  return Leaf::kNone;
}

// Whether the kernel for Hopper takes it. Its tiles of 128 tokens are many rows of W high: of one matrix and few tokens
// there would not be enough of them.
bool takes_wgmma(const Context& c, const Weight& w, Values values, std::int64_t rows_each, std::int64_t matrices) {
  const Leaf leaf = wgmma_of(format_of(w), matrices > 1);
  return leaf != Leaf::kNone && values != Values::kF32 && c.kernels.takes(leaf, rows_each);
}

}  // namespace

void prepare_fp4(Context& c, const Weight& w) {
  if (w.data == nullptr || format_of(w) != Format::kFp4) return;
  const std::int64_t n = w.rows * w.row_bytes() / static_cast<std::int64_t>(sizeof(uint4));
  const std::int64_t blocks = std::min<std::int64_t>(ceil_div(n, kMatmulThreads), 8 * c.multiprocessors);
  auto* data = reinterpret_cast<uint4*>(const_cast<std::byte*>(w.data));
  launch(c, "prepare_fp4", reorder_fp4, dim3(static_cast<unsigned>(blocks)), kMatmulThreads, 0, data, n);
}

std::size_t planes_bytes(std::int64_t rows, std::int64_t cols, Values values) {
  return sizeof(std::uint16_t) * static_cast<std::size_t>(rows * Planes::padded(cols) * planes_of(values));
}

Order order_for(const Weight& w) { return format_of(w) == Format::kFp4 ? Order::kRow : Order::kHalves; }

Order order_for(const Context& c, const Weight& w, Values values, std::int64_t rows_each, std::int64_t matrices) {
  const Order order = order_for(w);
  if (!takes_wgmma(c, w, values, rows_each, matrices)) return order;
  return order == Order::kRow ? Order::kRowShared : Order::kHalvesShared;
}

Planes planes_in(const PlanesOf& p) {
  const std::int64_t row_stride = Planes::padded(p.x.cols / p.groups);
  return {.data = reinterpret_cast<std::uint16_t*>(p.memory),
          .row_stride = row_stride,
          .plane_stride = p.x.rows * p.groups * row_stride,
          .planes = planes_of(p.values),
          .order = p.order};
}

Planes make_planes(Context& c, const PlanesOf& p) {
  const Planes to = planes_in(p);
  const std::int64_t pieces = ceil_div(to.row_stride, kMakeBlocks * kBlock);  // of a row, a warp each
  launch(c, "make_planes", make, dim3(static_cast<unsigned>(ceil_div(p.x.rows * p.groups * pieces, kMatmulWarps))),
         kMatmulThreads, 0, p, to, static_cast<unsigned>(pieces));
  return to;
}

int tokens_an_item(const Context& c, const Weight& w, Values values, std::int64_t rows_each, std::int64_t matrices) {
  if (takes_wgmma(c, w, values, rows_each, matrices)) return kWgmmaTokens;
  if (format_of(w) == Format::kWide || rows_each <= kFewRowsEach) return 8;
  return rows_each <= kSomeRowsEach ? 32 : kTileTokens;
}

Job job_of(const Matmul& m) {
  const std::int64_t scale_block = m.w.dtype == DType::kFp4x2 ? quant::kFp4Block : quant::kWeightBlock;
  return {.w = {{m.w.data, m.w.scales}, {m.w3.data, m.w3.scales}},
          .table = m.table,
          .part = m.part,
          .dtype = m.w.dtype,
          .scales_f32 = m.w.scale_dtype == DType::kF32,
          .cols = static_cast<int>(m.w.cols),
          .blocks = ceil_div(m.w.cols, kBlock),
          .segments = segments_of(m.w.cols),
          .group_rows = static_cast<int>(m.w.rows / m.groups),
          .groups = static_cast<int>(m.groups),
          .row_bytes = m.w.row_bytes(),
          .scale_stride = ceil_div(m.w.cols, scale_block),
          .x = m.x,
          .list = m.list,
          .items = m.items,
          .n_items = m.n_items,
          .rows = static_cast<int>(m.rows),
          .weights = m.weights,
          .limit = m.swiglu_limit,
          .y = m.y.data,
          .ldy = m.y.ld,
          .carrier = m.carrier};
}

void run_matmul(Context& c, const char* name, const Matmul& m) {
  const bool gate = m.part == Part::kGate;
  const Format format = format_of(m.w);
  const Job job = job_of(m);
  int tokens = m.tokens_an_item;
  std::int64_t items = m.most_items;
  if (m.items == nullptr) {
    tokens = is_shared(m.x.order) ? kWgmmaTokens : tokens_of(m.rows, format);
    items = ceil_div(m.rows, tokens);
  }
  switch (format) {
    case Format::kBf16: launch_format<Format::kBf16>(c, name, job, gate, tokens, items); return;
    case Format::kFp8: launch_format<Format::kFp8>(c, name, job, gate, tokens, items); return;
    case Format::kFp4: launch_format<Format::kFp4>(c, name, job, gate, tokens, items); return;
    case Format::kWide: launch_format<Format::kWide>(c, name, job, gate, tokens, items); return;
  }
}

}  // namespace fathom::ops::cuda
