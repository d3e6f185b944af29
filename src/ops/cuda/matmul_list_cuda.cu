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

ListLaunch plan_list(std::span<const Product> products, const Choices& choices) {
  FATHOM_CHECK(!products.empty() && products.size() <= kListJobs, "a list that fits");
  const Format first = format_of(products[0].m.w);
  ListLaunch l{.list = {.n = static_cast<int>(products.size()), .jobs = {}, .choices = choices},
               .first = first,
               .second = first,
               .pitch = 0,
               .shared = 0,
               .units = 0,
               .cost = 0};
  for (std::size_t i = 0; i < products.size(); ++i) {
    const Product& p = products[i];
    l.list.jobs[i] = list_job(p, first);
    ListJob& job = l.list.jobs[i];
    if (job.second) l.second = format_of(p.m.w);
    job.inputs = static_cast<int>(i);
    for (std::size_t j = 0; j < i; ++j) {
      if (same_inputs(products[j], p)) job.inputs = l.list.jobs[j].inputs;
    }
    l.pitch = std::max(l.pitch, pitch_of(p.m.w.cols));
    const bool one = p.m.table == nullptr;
    const std::int64_t units = std::int64_t{job.tiles} * job.job.groups * (one ? 1 : p.m.most_items);
    l.units += units;
    l.cost += units * job.cost;
    FATHOM_CHECK(one || (choices.tokens > 0 && p.m.items == nullptr), "experts of a list follow the choices' plan");
    const std::int64_t tokens = one ? p.m.rows : choices.tokens;
    l.shared = std::max(l.shared, static_cast<std::size_t>(tokens));
  }
  l.shared *= sizeof(std::uint16_t) * static_cast<std::size_t>(l.pitch);
  return l;
}

void run_list(Context& c, const char* name, std::span<const Product> products, const Choices& choices) {
  const ListLaunch l = plan_list(products, choices);
  const bool gate = products[0].m.part == Part::kGate;
  const Format a = l.first;
  const Format b = l.second;
  const std::int64_t most = std::int64_t{c.multiprocessors} * (l.shared <= kTwoBlocks ? 2 : 1);
  const dim3 grid(static_cast<unsigned>(std::min(l.units, most)));
  const auto go = [&](auto kernel) { launch(c, name, kernel, grid, kMatmulThreads, l.shared, l.list, l.pitch); };
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
