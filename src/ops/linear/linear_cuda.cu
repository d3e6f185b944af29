#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "ops/cuda/codes.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/matmul.h"
#include "ops/cuda/ops.h"
#include "ops/linear/linear_cuda.h"

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

}  // namespace

std::size_t list_bytes(std::span<const Linear> ops) {
  Pieces pieces;
  for (const Linear& op : ops) {
    const std::size_t bytes = planes_bytes(op.x.rows * op.groups, op.w.cols, values_of(op));
    if (makes_planes_first(op)) pieces.add<std::byte>(static_cast<std::int64_t>(bytes));
  }
  return pieces.bytes();
}

std::span<const Product> list_of(Context& c, std::span<const Linear> ops, std::byte* base,
                                 std::array<Product, kListJobs>& products) {
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
  return std::span(products).first(n);
}

namespace {

void run_listed(Context& c, std::span<const Linear> ops) {
  std::array<Product, kListJobs> products;
  run_list(c, "linears", list_of(c, ops, c.scratch->take(list_bytes(ops), c.fault), products));
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

// Many tokens: a launch each, beside one another; planes are made once for all that read the same.
void run_apart(Context& c, std::span<const Linear> ops) {
  const auto order = [&](const Linear& op) { return order_for(c, op.w, values_of(op), op.x.rows, op.groups); };
  std::vector<std::size_t> first_like(ops.size());
  std::vector<std::size_t> places(ops.size());
  Pieces pieces;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Linear& op = ops[i];
    std::size_t& j = first_like[i];
    while (ops[j].x.data != op.x.data || ops[j].x.cols != op.x.cols || ops[j].groups != op.groups ||
           values_of(ops[j]) != values_of(op) || order(ops[j]) != order(op)) {
      ++j;
    }
    places[i] = j < i ? places[j]
                      : pieces.add<std::byte>(static_cast<std::int64_t>(
                            planes_bytes(op.x.rows * op.groups, op.w.cols, values_of(op))));
  }
  std::byte* const base = c.scratch->take(pieces.bytes(), c.fault);
  std::vector<Matmul> products;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Linear& op = ops[i];
    const PlanesOf of{.x = op.x,
                      .groups = op.groups,
                      .values = values_of(op),
                      .order = order(op),
                      .memory = base + places[i]};
    products.push_back({.w = op.w,
                        .groups = op.groups,
                        .x = first_like[i] < i ? planes_in(of) : make_planes(c, of),
                        .rows = op.x.rows,
                        .y = op.y,
                        .carrier = op.carrier});
  }
  for (std::size_t i = 1; i < products.size(); ++i) {
    c.beside([&] { run_matmul(c, "linear", products[i]); });
  }
  run_matmul(c, "linear", products[0]);
  if (products.size() > 1) c.meet();
}

}  // namespace

void run(Context& c, const Linear& op) {
  check_here(op);
  if (op.x.rows == 0) return;
  if (takes_codes(c, op.w)) {
    run_packed(c, {&op, 1});
    return;
  }
  if (listed(op)) {
    run_listed(c, {&op, 1});
    return;
  }
  const Values values = values_of(op);
  if (takes_resident(c, op.w, values, op.x.rows)) {
    run_residents(c, {&op, 1});
    return;
  }
  run_apart(c, {&op, 1});
}

namespace {

bool all_listed(std::span<const Linear> ops) {
  return ops.size() <= kListJobs && std::all_of(ops.begin(), ops.end(), listed);
}

bool all_resident(const Context& c, std::span<const Linear> ops) {
  return ops.size() <= kListJobs && std::all_of(ops.begin(), ops.end(), [&](const Linear& op) {
           return op.x.rows == ops[0].x.rows && takes_resident(c, op.w, values_of(op), op.x.rows) &&
                  resident_at_once(op.w, op.groups);
         });
}

// None is packed. They are on branches.
void run_beside(Context& c, std::span<const Linear> ops) {
  if (all_listed(ops)) {
    c.beside([&] { run_listed(c, ops); });
    return;
  }
  if (all_resident(c, ops)) {
    for (const bool fp8 : {false, true}) {
      std::vector<Linear> alike;
      std::copy_if(ops.begin(), ops.end(), std::back_inserter(alike),
                   [&](const Linear& op) { return (op.w.dtype == DType::kF8E4M3) == fp8; });
      if (!alike.empty()) c.beside([&] { run_residents(c, alike); });
    }
    return;
  }
  for (const Linear& op : ops) c.beside([&] { run(c, op); });
}

}  // namespace

void run(Context& c, std::span<const Linear> ops) {
  for (const Linear& op : ops) check_here(op);
  std::vector<Linear> packed;
  std::vector<Linear> others;
  for (const Linear& op : ops) {
    if (op.x.rows > 0) (takes_codes(c, op.w) ? packed : others).push_back(op);
  }
  if (packed.empty() && all_listed(others)) {
    if (!others.empty()) run_listed(c, others);
    return;
  }
  if (all_listed(others) && run_packed_with(c, packed, others)) return;
  const bool many_others = std::none_of(others.begin(), others.end(), [&](const Linear& op) {
    return listed(op) || takes_resident(c, op.w, values_of(op), op.x.rows);
  });
  if (!others.empty()) many_others ? run_apart(c, others) : run_beside(c, others);
  if (!packed.empty()) run_packed(c, packed);
  c.meet();
}

}  // namespace fathom::ops::cuda
