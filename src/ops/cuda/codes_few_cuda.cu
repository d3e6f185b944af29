#include <algorithm>

#include "ops/cuda/codes_few.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr std::size_t kMostShared = std::size_t{220} << 10;  // of a block

int segments_in_few(const Weight& w) { return code_segments(w, /*expert=*/false); }

std::size_t shared_of(const Weight& w, int slots, std::int64_t tokens) {
  const int blocks = few_blocks(static_cast<int>(w.cols / kBlock), segments_in_few(w));
  return few_shared(slots, blocks, static_cast<int>(tokens));
}

FewList list_of(std::span<const Matmul> products, Mat<const float> x) {
  FATHOM_CHECK(!products.empty() && products.size() <= kFewJobs, "a list that fits");
  const Weight& w = products[0].w;
  FewList list{.jobs = {},
               .n = static_cast<int>(products.size()),
               .tiles = 0,
               .segments = segments_in_few(w),
               .blocks = static_cast<int>(w.cols / kBlock),
               .tokens = static_cast<int>(x.rows),
               .scales_f32 = w.scale_dtype == DType::kF32,
               .slots = kFewSlots,
               .x = x};
  for (std::size_t i = 0; i < products.size(); ++i) {
    const Matmul& m = products[i];
    FATHOM_CHECK(m.groups == 1 && meet_in_codes_few(m.w, w), "products that meet");
    list.jobs[i] = {.data = m.w.data,
                    .scales = m.w.scales,
                    .y = m.y.data,
                    .ldy = m.y.ld,
                    .carrier = m.carrier,
                    .first_tile = list.tiles};
    list.tiles += static_cast<int>(m.w.rows / kTileRows);
  }
  return list;
}

// Blocks shared out by the bytes that they read.
void run_beside(Context& c, const char* name, FewList few, std::size_t few_shared, std::span<const Product> others) {
  const ListLaunch l = plan_list(others, {});
  FATHOM_CHECK(l.first == Format::kBf16 && l.second == Format::kBf16, "BF16 beside codes");
  const bool split = few.segments > 1;
  const int cluster = split ? kFewCluster : 1;
  few.slots = kFewSlotsBeside;
  const std::int64_t cost = std::int64_t{few.tiles} * few.blocks * (kFewTile / 1024);
  const std::int64_t most = std::int64_t{2} * c.multiprocessors / cluster;
  const std::int64_t share = most * cost / (cost + l.cost);
  const auto few_blocks = static_cast<int>(std::clamp<std::int64_t>(share, 1, few.tiles)) * cluster;
  const std::int64_t list_blocks = std::min(l.units, most * cluster - few_blocks);
  const dim3 grid(static_cast<unsigned>(few_blocks + ceil_div(list_blocks, cluster) * cluster));
  const auto go = [&](auto kernel) {
    launch_clusters(c, name, kernel, grid, cluster, kFewThreads, std::max(few_shared, l.shared), few, l.list, l.pitch,
                    few_blocks);
  };
  if (split) go(codes_few_and_list<true>);
  else go(codes_few_and_list<false>);
}

}  // namespace

bool takes_codes_few(const Weight& w, Mat<const float> x) {
  return w.dtype == DType::kF8E4M3 && x.rows <= kFewTokens && x.ld % 4 == 0 &&
         reinterpret_cast<std::uintptr_t>(x.data) % sizeof(float4) == 0 && shared_of(w, kFewSlots, x.rows) <= kMostShared;
}

bool meet_in_codes_few(const Weight& a, const Weight& b) {
  return a.cols == b.cols && segments_in_few(a) == segments_in_few(b) && a.scale_dtype == b.scale_dtype;
}

void run_codes_few(Context& c, const char* name, std::span<const Matmul> products, Mat<const float> x,
                   std::span<const Product> others) {
  const FewList list = list_of(products, x);
  const Weight& w = products[0].w;
  if (!others.empty()) {
    run_beside(c, name, list, shared_of(w, kFewSlotsBeside, x.rows), others);
    return;
  }
  const bool split = list.segments > 1;
  const int cluster = split ? kFewCluster : 1;
  const auto n = static_cast<unsigned>(std::min(list.tiles, c.multiprocessors / cluster) * cluster);
  const auto go = [&](auto kernel) {
    launch_clusters(c, name, kernel, dim3(n), cluster, kFewThreads, shared_of(w, kFewSlots, x.rows), list);
  };
  if (split) go(codes_few<true>);
  else go(codes_few<false>);
}

}  // namespace fathom::ops::cuda
