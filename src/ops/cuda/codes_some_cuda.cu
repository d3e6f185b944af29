#include "ops/cuda/codes_some.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr int kFar = 4;   // blocks of W under way, of a warpgroup
constexpr int kNear = 2;  // where there is no room for more

constexpr std::size_t kMostShared = std::size_t{227} << 10;

// Shared memory of a launch.
template <int kN>
std::size_t shared_of(int blocks, int segments) {
  const std::size_t far = SomeShared<kN, kFar>(blocks, segments).bytes;
  return far <= kMostShared ? far : SomeShared<kN, kNear>(blocks, segments).bytes;
}

template <int kN>
void launch_some(Context& c, const char* name, const SomeList& list) {
  // Not all multiprocessors are where clusters fit.
  const int fit = list.segments > 1 ? c.multiprocessors * 10 / 11 : c.multiprocessors;
  const int clusters = std::min(list.tiles, std::max(fit / list.segments, 1));
  const int blocks = ceil_div(list.blocks, list.segments);
  const bool far = SomeShared<kN, kFar>(blocks, list.segments).bytes <= kMostShared;
  launch_clusters(c, name, far ? codes_some<kN, kFar> : codes_some<kN, kNear>,
                  dim3(static_cast<unsigned>(clusters * list.segments)), list.segments, kSomeThreads,
                  shared_of<kN>(blocks, list.segments), list);
}

// Tokens of a launch, as many as a segment's codes leave room for; 0 where there is none.
int tokens_at_once(std::int64_t rows, std::int64_t cols, int segments) {
  const int blocks = ceil_div(cols / kBlock, segments);
  if (blocks > kSomeBlocks) return 0;
  const int tokens = some_tokens(rows);
  if (tokens == 64 && shared_of<64>(blocks, segments) <= kMostShared) return 64;
  if (tokens >= 32 && shared_of<32>(blocks, segments) <= kMostShared) return 32;
  return shared_of<16>(blocks, segments) <= kMostShared ? 16 : 0;
}

}  // namespace

bool takes_codes_some(const Weight& w, std::int64_t rows) {
  return format_of(w) == Format::kFp8 && rows > kFewRows && rows <= kSomeRows &&
         tokens_at_once(rows, w.cols, code_segments(w, /*expert=*/false)) > 0;
}

void run_codes_some(Context& c, const char* name, std::span<const CodesProduct> products) {
  FATHOM_CHECK(!products.empty() && products.size() <= kSomeJobs, "a list that fits");
  const CodesProduct& first = products[0];
  SomeList list{.jobs = {},
                .n = static_cast<int>(products.size()),
                .tiles = 0,
                .segments = codes_job_of(first).job.segments,
                .blocks = first.x.blocks,
                .rows = 0,
                .x = first.x};
  for (std::size_t i = 0; i < products.size(); ++i) {
    const Matmul& m = products[i].m;
    const Job job = codes_job_of(products[i]).job;
    FATHOM_CHECK(m.items == nullptr && m.part == Part::kDown && m.groups == 1 && takes_codes_some(m.w, m.rows) &&
                     m.rows == first.m.rows && products[i].x.data == first.x.data && job.segments == list.segments,
                 "what the kernel takes at once");
    list.jobs[i] = {.job = job, .first_tile = list.tiles};
    list.tiles += static_cast<int>(m.w.rows / kTileRows);
  }
  const int tokens = tokens_at_once(first.m.rows, first.m.w.cols, list.segments);
  for (std::int64_t row = 0; row < first.m.rows; row += tokens) {
    list.rows = static_cast<int>(std::min<std::int64_t>(tokens, first.m.rows - row));
    list.x.data = first.x.data + row * list.blocks * kCodeRow;
    list.x.scales = first.x.scales + row * list.blocks;
    for (std::size_t i = 0; i < products.size(); ++i) list.jobs[i].job.y = products[i].m.y.data + row * products[i].m.y.ld;
    switch (tokens) {
      case 16: launch_some<16>(c, name, list); break;
      case 32: launch_some<32>(c, name, list); break;
      default: launch_some<64>(c, name, list);
    }
  }
}

}  // namespace fathom::ops::cuda
