#include <algorithm>

#include "ops/cuda/matmul_list.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr std::size_t kMostShared = std::size_t{160} << 10;  // for inputs
constexpr std::size_t kTwoBlocks = std::size_t{70} << 10;    // with which two blocks share a multiprocessor

// Numbers from token to token of inputs in shared memory: 16 bytes more than they are, against bank conflicts.
int pitch_of(std::int64_t cols) { return static_cast<int>(Planes::padded(cols)) + 8; }

bool same_inputs(const Product& a, const Product& b) {
  if (a.m.table != nullptr || b.m.table != nullptr || a.order != b.order || a.m.w.cols != b.m.w.cols) return false;
  if (a.x.data == nullptr || b.x.data == nullptr) return a.x.data == b.x.data && a.m.x.data == b.m.x.data;
  return a.x.data == b.x.data && a.x.ld == b.x.ld && a.values == b.values;
}

ListJob list_job(const Product& p, Format first) {
  ListJob l{.job = job_of(p.m),
            .x = p.x,
            .values = p.values,
            .order = p.order,
            .second = format_of(p.m.w) != first,
            .by_token = p.by_token};
  l.tiles = ceil_div(ceil_div(l.job.group_rows, 16), kMatmulWarps / l.job.segments);
  const std::int64_t rows = 16 * (kMatmulWarps / l.job.segments) * (p.m.part == Part::kGate ? 2 : 1);
  l.cost = std::max(1, ceil_div(rows * l.job.row_bytes, 1024));
  return l;
}

}  // namespace

bool list_takes(const Weight& w, std::int64_t rows, std::int64_t groups, Values values) {
  const std::size_t shared = sizeof(std::uint16_t) * static_cast<std::size_t>(rows * pitch_of(w.cols));
  return 0 < rows && rows <= kListTokens && values != Values::kF32 && format_of(w) != Format::kWide &&
         shared <= kMostShared && w.cols % kBlock == 0 && w.rows % (16 * groups) == 0;
}

void run_list(Context& c, const char* name, std::span<const Product> products, const Choices& choices) {
  FATHOM_CHECK(!products.empty() && products.size() <= kListJobs, "a list that fits");
  JobList list{.n = static_cast<int>(products.size()), .jobs = {}, .choices = choices};
  const Format a = format_of(products[0].m.w);
  Format b = a;
  const bool gate = products[0].m.part == Part::kGate;
  std::size_t shared = 0;
  int pitch = 0;
  std::int64_t units = 0;  // no fewer than there will be
  for (std::size_t i = 0; i < products.size(); ++i) {
    const Product& p = products[i];
    list.jobs[i] = list_job(p, a);
    ListJob& l = list.jobs[i];
    if (l.second) b = format_of(p.m.w);
    l.inputs = static_cast<int>(i);
    for (std::size_t j = 0; j < i; ++j) {
      if (same_inputs(products[j], p)) l.inputs = list.jobs[j].inputs;
    }
    pitch = std::max(pitch, pitch_of(p.m.w.cols));
    const bool one = p.m.table == nullptr;
    units += std::int64_t{l.tiles} * l.job.groups * (one ? 1 : p.m.most_items);
    FATHOM_CHECK(one || (choices.tokens > 0 && p.m.items == nullptr), "experts of a list follow the choices' plan");
    const std::int64_t tokens = one ? p.m.rows : choices.tokens;
    shared = std::max(shared, static_cast<std::size_t>(tokens));
  }
  shared *= sizeof(std::uint16_t) * static_cast<std::size_t>(pitch);
  const std::int64_t most = std::int64_t{c.multiprocessors} * (shared <= kTwoBlocks ? 2 : 1);
  const dim3 grid(static_cast<unsigned>(std::min(units, most)));
  const auto go = [&](auto kernel) { launch(c, name, kernel, grid, kMatmulThreads, shared, list, pitch); };
  using enum Format;
  if (gate) {
    if (a == kFp8 && b == kFp4) go(list_products<true, kFp8, kFp4>);
    else if (a == kFp8 && b == kFp8) go(list_products<true, kFp8, kFp8>);
    else if (a == kFp4 && b == kFp4) go(list_products<true, kFp4, kFp4>);
    else FATHOM_CHECK(false, "formats that meet in a list");
  } else {
    if (a == kFp8 && b == kBf16) go(list_products<false, kFp8, kBf16>);
    else if (a == kFp8 && b == kFp8) go(list_products<false, kFp8, kFp8>);
    else if (a == kFp8 && b == kFp4) go(list_products<false, kFp8, kFp4>);
    else if (a == kBf16 && b == kBf16) go(list_products<false, kBf16, kBf16>);
    else if (a == kFp4 && b == kFp4) go(list_products<false, kFp4, kFp4>);
    else FATHOM_CHECK(false, "formats that meet in a list");
  }
}

}  // namespace fathom::ops::cuda
