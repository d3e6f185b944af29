#include <algorithm>
#include <array>
#include <vector>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/matmul.h"
#include "ops/cuda/ops.h"

namespace fathom::ops::cuda {
namespace {

Values values_of(const Linear& op) {
  if (op.quantise_x) return Values::kQuantise;
  return op.x_carrier == Carrier::kBf16 ? Values::kBf16 : Values::kF32;
}

void check_here(const Linear& op) {
  check(op);
  FATHOM_CHECK(!op.quantise_x || op.groups == 1 || op.w.cols % kBlock == 0, "blocks of activations inside a group");
}

bool listed(const Linear& op) {
  return op.w.dtype != DType::kFp4x2 && op.x.ld % 4 == 0 && reinterpret_cast<std::uintptr_t>(op.x.data) % 16 == 0 &&
         list_takes(op.w, op.x.rows, op.groups, values_of(op));
}

// Inputs so long that every block of the launch would take long to make planes of them.
bool makes_planes_first(const Linear& op) { return op.x.rows * op.w.cols > 16384; }

bool same_planes(const Linear& a, const Linear& b) {
  return a.x.data == b.x.data && a.groups == b.groups && values_of(a) == values_of(b) &&
         order_for(a.w) == order_for(b.w);
}

// Few tokens: all in one launch, FP8 weights first.
void run_listed(Context& c, std::span<const Linear> ops) {
  std::array<Product, kListJobs> products;
  std::array<std::size_t, kListJobs> planes{};  // where an operation's planes are
  Pieces pieces;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const auto known = std::find_if(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(i),
                                    [&](const Linear& other) { return same_planes(other, ops[i]); });
    const auto j = static_cast<std::size_t>(known - ops.begin());
    if (j < i) planes[i] = planes[j];
    else if (makes_planes_first(ops[i]))
      planes[i] = pieces.add<std::byte>(
          static_cast<std::int64_t>(planes_bytes(ops[i].x.rows * ops[i].groups, ops[i].w.cols, values_of(ops[i]))));
  }
  std::byte* const base = pieces.bytes() > 0 ? c.scratch->take(pieces.bytes(), c.fault) : nullptr;
  std::size_t n = 0;
  for (const bool fp8 : {true, false}) {
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const Linear& op = ops[i];
      if ((op.w.dtype == DType::kF8E4M3) != fp8) continue;
      Product& p = products[n++];
      p = {.m = {.w = op.w, .groups = op.groups, .x = {}, .rows = op.x.rows, .y = op.y, .carrier = op.carrier},
           .values = values_of(op),
           .order = order_for(op.w)};
      if (!makes_planes_first(op)) {
        p.x = op.x;
        continue;
      }
      const PlanesOf of{
          .x = op.x, .groups = op.groups, .values = p.values, .order = p.order, .memory = base + planes[i]};
      const bool made = std::any_of(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(i),
                                    [&](const Linear& other) { return same_planes(other, op); });
      p.m.x = made ? planes_in(of) : make_planes(c, of);
    }
  }
  run_list(c, "linears", std::span(products).first(n));
}

// 9 to 64 tokens: all of one format in one launch.
void run_residents(Context& c, std::span<const Linear> ops) {
  std::array<std::size_t, kListJobs> planes{};
  Pieces pieces;
  const auto first_like = [&](std::size_t i) {
    std::size_t j = 0;
    while (!same_planes(ops[j], ops[i])) ++j;
    return j;
  };
  std::int64_t sums_bytes = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Linear& op = ops[i];
    const std::size_t j = first_like(i);
    planes[i] = j < i ? planes[j]
                      : pieces.add<std::byte>(static_cast<std::int64_t>(
                            planes_bytes(op.x.rows * op.groups, op.w.cols, values_of(op))));
    sums_bytes += static_cast<std::int64_t>(resident_bytes(op.w, op.x.rows, op.groups, Part::kDown));
  }
  const std::size_t sums = pieces.add<std::byte>(sums_bytes);
  std::byte* const base = c.scratch->take(pieces.bytes(), c.fault);
  std::array<Matmul, kListJobs> products;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Linear& op = ops[i];
    const PlanesOf of{.x = op.x,
                      .groups = op.groups,
                      .values = values_of(op),
                      .order = order_for(op.w),
                      .memory = base + planes[i]};
    products[i] = {.w = op.w,
                   .groups = op.groups,
                   .x = first_like(i) < i ? planes_in(of) : make_planes(c, of),
                   .rows = op.x.rows,
                   .y = op.y,
                   .carrier = op.carrier};
  }
  run_resident(c, "linears", std::span(products).first(ops.size()), base + sums);
}

}  // namespace

void run(Context& c, const Linear& op) {
  check_here(op);
  if (op.x.rows == 0) return;
  if (listed(op)) {
    run_listed(c, {&op, 1});
    return;
  }
  const Values values = values_of(op);
  if (takes_resident(c, op.w, values, op.x.rows)) {
    run_residents(c, {&op, 1});
    return;
  }
  std::byte* memory = c.scratch->take(planes_bytes(op.x.rows * op.groups, op.w.cols, values), c.fault);
  const Planes x = make_planes(c, {.x = op.x,
                                   .groups = op.groups,
                                   .values = values,
                                   .order = order_for(c, op.w, values, op.x.rows, op.groups),
                                   .memory = memory});
  run_matmul(c, "linear",
             {.w = op.w, .groups = op.groups, .x = x, .rows = op.x.rows, .y = op.y, .carrier = op.carrier});
}

void run(Context& c, std::span<const Linear> ops) {
  for (const Linear& op : ops) check_here(op);
  if (ops.size() <= kListJobs && std::all_of(ops.begin(), ops.end(), listed)) {
    if (!ops.empty()) run_listed(c, ops);
    return;
  }
  if (ops.size() <= kListJobs && std::all_of(ops.begin(), ops.end(), [&](const Linear& op) {
        return op.x.rows == ops[0].x.rows && takes_resident(c, op.w, values_of(op), op.x.rows) &&
               resident_at_once(op.w, op.groups);
      })) {
    std::vector<Linear> fp8;
    std::vector<Linear> others;
    for (const Linear& op : ops) (op.w.dtype == DType::kF8E4M3 ? fp8 : others).push_back(op);
    if (!others.empty() && !fp8.empty()) c.beside([&] { run_residents(c, others); });
    run_residents(c, fp8.empty() ? others : fp8);
    c.meet();
    return;
  }
  for (std::size_t i = 1; i < ops.size(); ++i) {
    c.beside([&] { run(c, ops[i]); });
  }
  if (!ops.empty()) run(c, ops[0]);
  c.meet();
}

}  // namespace fathom::ops::cuda
