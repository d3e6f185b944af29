#include "ops/cuda/matmul_resident.cuh"

namespace fathom::ops::cuda {
namespace {

int parts_of(const Weight& w, std::int64_t groups, Part part) {
  return (part == Part::kGate ? 2 : 1) * static_cast<int>(groups) * segments_of(w.cols);
}
// Tiles of a launch, of every group.
int tiles_at_once(const Weight& w, std::int64_t groups, Part part) {
  const auto most = static_cast<int>(std::max<std::int64_t>(kResidentUnits / parts_of(w, groups, part), 1));
  return std::min(ceil_div(w.rows / groups, kResidentRows), most);
}

// Shares the blocks out by units, and lays the launches out. Returns the blocks of both.
struct Grids {
  int multiply = 0;
  int add = 0;
};
Grids lay_out(const Context& c, ResidentList& list, int token_groups) {
  int units = 0;
  for (int j = 0; j < list.n; ++j) units += list.jobs[j].parts * list.jobs[j].tiles;
  Grids grids;
  for (int j = 0; j < list.n; ++j) {
    ResidentJob& of = list.jobs[j];
    const int fair = of.tiles * c.multiprocessors / units;
    of.members = std::clamp(fair, 1, ceil_div(of.tiles, kResidentGroups));
    of.first_block = grids.multiply;
    of.first_adder = grids.add;
    grids.multiply += of.parts * of.members;
    grids.add += of.tiles * of.job.groups * token_groups;
  }
  return grids;
}

template <Format F, int kN>
void launch_list(Context& c, const char* name, ResidentList& list, bool gate) {
  int most_blocks = 0;
  for (int j = 0; j < list.n; ++j)
    most_blocks = std::max(most_blocks, ceil_div(list.jobs[j].job.blocks, list.jobs[j].job.segments));
  const std::size_t shared = static_cast<std::size_t>(most_blocks) * kBlock * 2 * kN + 1024;  // to be aligned to 1,024
  const Grids grids = lay_out(c, list, kN / 8);
  launch(c, name, resident<F, kN>, dim3(static_cast<unsigned>(grids.multiply)), kResidentThreads, shared, list);
  launch(c, name, gate ? add_segments<true> : add_segments<false>, dim3(static_cast<unsigned>(grids.add)), 128, 0, list,
         kN / 8);
}

template <Format F>
void launch_tokens(Context& c, const char* name, ResidentList& list, bool gate) {
  switch (resident_tokens(list.jobs[0].job.rows)) {
    case 16: launch_list<F, 16>(c, name, list, gate); return;
    case 32: launch_list<F, 32>(c, name, list, gate); return;
    default: launch_list<F, 64>(c, name, list, gate); return;
  }
}

}  // namespace

bool takes_resident(const Context& c, const Weight& w, Values values, std::int64_t rows) {
  const Format format = format_of(w);
  const Leaf leaf = format == Format::kFp8    ? Leaf::kLinearFp8Resident
                    : format == Format::kBf16 ? Leaf::kLinearBf16Resident
                                              : Leaf::kNone;
  constexpr std::int64_t kMostInputs = 1024;  // of a segment
  return leaf != Leaf::kNone && values != Values::kF32 && w.cols % kBlock == 0 &&
         ceil_div(w.cols / kBlock, segments_of(w.cols)) * kBlock <= kMostInputs && c.kernels.takes(leaf, rows);
}

std::size_t resident_bytes(const Weight& w, std::int64_t rows, std::int64_t groups, Part part) {
  return sizeof(float) * static_cast<std::size_t>(std::int64_t{parts_of(w, groups, part)} *
                                                  tiles_at_once(w, groups, part) * kResidentRows * resident_tokens(rows));
}

void run_resident(Context& c, const char* name, std::span<const Matmul> products, std::byte* memory) {
  FATHOM_CHECK(!products.empty() && products.size() <= kResidentJobs, "a list that fits");
  const Format format = format_of(products[0].w);
  const bool gate = products[0].part == Part::kGate;
  ResidentList list{.n = static_cast<int>(products.size()), .jobs = {}};
  int left = 0;  // tiles of a single product that has too many for one launch
  for (std::size_t i = 0; i < products.size(); ++i) {
    const Matmul& m = products[i];
    FATHOM_CHECK(m.items == nullptr && m.x.planes == 1 && m.x.order == Order::kHalves && format_of(m.w) == format &&
                     (m.part == Part::kGate) == gate && m.rows == products[0].rows,
                 "what the kernel takes at once");
    const int tiles = tiles_at_once(m.w, m.groups, m.part);
    left = ceil_div(m.w.rows / m.groups, kResidentRows) - tiles;
    FATHOM_CHECK(left == 0 || products.size() == 1, "products of one launch each");
    list.jobs[i] = {.job = job_of(m),
                    .parts = parts_of(m.w, m.groups, m.part),
                    .first_tile = 0,
                    .tiles = tiles,
                    .members = 1,
                    .first_block = 0,
                    .first_adder = 0,
                    .sums = reinterpret_cast<float4*>(memory)};
    memory += resident_bytes(m.w, m.rows, m.groups, m.part);
  }
  const auto go = [&] {
    if (format == Format::kFp8) launch_tokens<Format::kFp8>(c, name, list, gate);
    else launch_tokens<Format::kBf16>(c, name, list, gate);
  };
  go();
  ResidentJob& of = list.jobs[0];
  while (left > 0) {
    of.first_tile += of.tiles;
    of.tiles = std::min(of.tiles, left);
    left -= of.tiles;
    go();
  }
}

bool resident_at_once(const Weight& w, std::int64_t groups) {
  return tiles_at_once(w, groups, Part::kDown) == ceil_div(w.rows / groups, kResidentRows);
}

}  // namespace fathom::ops::cuda
