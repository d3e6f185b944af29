#include "ops/cuda/matmul_resident.cuh"

namespace fathom::ops::cuda {
namespace {

// The tiles of a launch.
std::int64_t tiles_at_once(std::int64_t group_rows, std::int64_t groups) {
  return std::min<std::int64_t>(ceil_div(group_rows, kResidentRows), std::max<std::int64_t>(kResidentTiles / groups, 1));
}

template <Format F, int kN>
void launch_pieces(Context& c, const char* name, const Job& job, bool gate, float4* sums) {
  const int parts = (gate ? 2 : 1) * job.groups * job.segments;
  const int tiles = ceil_div(job.group_rows, kResidentRows);
  const int piece = static_cast<int>(tiles_at_once(job.group_rows, job.groups));
  const int most_blocks = ceil_div(job.blocks, job.segments);
  const std::size_t shared = static_cast<std::size_t>(most_blocks) * kBlock * 2 * kN + 1024;  // to be aligned to 1,024
  for (int first = 0; first < tiles; first += piece) {
    const ResidentTiles of{first, std::min(piece, tiles - first)};
    const int units = parts * ceil_div(of.count, kResidentGroups);
    const int blocks = std::max(parts, std::min(units, c.multiprocessors));
    launch(c, name, resident<F, kN>, dim3(static_cast<unsigned>(blocks)), kResidentThreads, shared, job, parts, of,
           sums);
    const dim3 grid(static_cast<unsigned>(of.count * (kN / 8)), static_cast<unsigned>(job.groups));
    launch(c, name, gate ? add_segments<true> : add_segments<false>, grid, 128, 0, job, kN / 8, of,
           static_cast<const float4*>(sums));
  }
}

template <Format F>
void launch_tokens(Context& c, const char* name, const Job& job, bool gate, float4* sums) {
  switch (resident_tokens(job.rows)) {
    case 16: launch_pieces<F, 16>(c, name, job, gate, sums); return;
    case 32: launch_pieces<F, 32>(c, name, job, gate, sums); return;
    default: launch_pieces<F, 64>(c, name, job, gate, sums); return;
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
  const std::int64_t parts = (part == Part::kGate ? 2 : 1) * groups * segments_of(w.cols);
  return sizeof(float) *
         static_cast<std::size_t>(parts * tiles_at_once(w.rows / groups, groups) * kResidentRows * resident_tokens(rows));
}

void run_resident(Context& c, const char* name, const Matmul& m, std::byte* memory) {
  const Job job = job_of(m);
  FATHOM_CHECK(m.items == nullptr && m.x.planes == 1 && m.x.order == Order::kHalves, "what the kernel takes");
  auto* const sums = reinterpret_cast<float4*>(memory);
  const bool gate = m.part == Part::kGate;
  if (format_of(m.w) == Format::kFp8) launch_tokens<Format::kFp8>(c, name, job, gate, sums);
  else launch_tokens<Format::kBf16>(c, name, job, gate, sums);
}

}  // namespace fathom::ops::cuda
