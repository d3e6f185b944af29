#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "ops/cuda/codes.h"
#include "ops/cuda/codes_few.h"
#include "ops/cuda/codes_many.h"
#include "ops/cuda/codes_some.h"
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

// Bytes that list_of takes.
std::size_t list_bytes(std::span<const Linear> ops) {
  Pieces pieces;
  for (const Linear& op : ops) {
    const std::size_t bytes = planes_bytes(op.x.rows * op.groups, op.w.cols, values_of(op));
    if (makes_planes_first(op)) pieces.add<std::byte>(static_cast<std::int64_t>(bytes));
  }
  return pieces.bytes();
}

// Products of few tokens for one launch, FP8 weights first; inputs that are made into planes before go to `base`.
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

bool has_many(const Linear& op) { return op.x.rows >= kManyRows && op.groups == 1; }

// Products of packed weights with many tokens.
void run_many(Context& c, std::span<const Linear> ops) {
  const auto first_like = [&](std::size_t i) {
    std::size_t j = 0;
    while (ops[j].x.data != ops[i].x.data || ops[j].x.cols != ops[i].x.cols) ++j;
    return j;
  };
  std::vector<std::size_t> places(ops.size());
  Pieces pieces;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Mat<const float>& x = ops[i].x;
    if (first_like(i) == i) {
      places[i] = pieces.add<std::byte>(static_cast<std::int64_t>(code_tiles_bytes({.rows = x.rows}, x.cols)));
    }
  }
  std::byte* const base = c.scratch->take(pieces.bytes(), c.fault);
  std::vector<CodeTiles> tiles(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Linear& op = ops[i];
    FATHOM_CHECK(op.quantise_x, "a weight packed for quantised inputs gets them");
    const std::size_t j = first_like(i);
    tiles[i] = j < i ? tiles[j] : make_code_tiles(c, op.x, {.rows = op.x.rows}, base + places[i]);
    run_codes_many(c, "linear",
                   {.m = {.w = op.w, .x = {}, .rows = op.x.rows, .y = op.y, .carrier = op.carrier}, .x = {}}, tiles[i]);
  }
}

// 9 to 64 tokens: products[i] and those after it of the same codes that go into its launch, which are marked done.
void run_some(Context& c, std::span<const CodesProduct> products, std::size_t i, std::vector<bool>& done) {
  std::vector<CodesProduct> alike;
  for (std::size_t j = i; j < products.size() && alike.size() < kSomeJobs; ++j) {
    const CodesProduct& p = products[j];
    if (done[j] || p.m.groups != 1 || p.x.data != products[i].x.data || !takes_codes_some(p.m.w, p.m.rows) ||
        code_segments(p.m.w, p.expert) != code_segments(products[i].m.w, products[i].expert))
      continue;
    alike.push_back(p);
    done[j] = true;
  }
  run_codes_some(c, "linears", alike);
}

// Products of packed weights.
void run_codes(Context& c, std::span<const Linear> ops) {
  const auto first_like = [&](std::size_t i) {
    std::size_t j = 0;
    while (ops[j].x.data != ops[i].x.data || ops[j].x.cols != ops[i].x.cols) ++j;
    return j;
  };
  std::vector<std::size_t> places(ops.size());
  Pieces pieces;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const std::size_t j = first_like(i);
    const Mat<const float>& x = ops[i].x;
    places[i] = j < i ? places[j] : pieces.add<std::byte>(static_cast<std::int64_t>(codes_bytes(x.rows, x.cols)));
  }
  std::byte* const base = c.scratch->take(pieces.bytes(), c.fault);
  std::vector<CodesProduct> products(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Linear& op = ops[i];
    FATHOM_CHECK(op.quantise_x, "a weight packed for quantised inputs gets them");
    const std::size_t j = first_like(i);
    products[i] = {
        .m = {.w = op.w, .groups = op.groups, .x = {}, .rows = op.x.rows, .y = op.y, .carrier = op.carrier},
        .x = j < i ? products[j].x : make_codes(c, op.x, base + places[i])};
  }
  std::vector<bool> done(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (done[i]) continue;
    if (products[i].m.groups == 1 && takes_codes_some(ops[i].w, ops[i].x.rows)) run_some(c, products, i, done);
    else run_codes_plain(c, "linear", products[i]);
  }
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

bool few_codes(const Linear& op) { return op.groups == 1 && takes_codes_few(op.w, op.x); }

// Products of packed weights for few tokens, those that meet in one launch, and with the first of them the others, of BF16.
void run_codes_of_few(Context& c, std::vector<Linear> ops, std::span<const Linear> others) {
  std::array<Product, kListJobs> products;
  std::span<const Product> beside;
  if (!others.empty()) beside = list_of(c, others, c.scratch->take(list_bytes(others), c.fault), products);
  while (!ops.empty()) {
    const Linear first = ops[0];
    std::vector<Matmul> now;
    std::vector<Linear> later;
    for (const Linear& op : ops) {
      FATHOM_CHECK(op.quantise_x, "a weight packed for quantised inputs gets them");
      const bool meets = op.x.data == first.x.data && op.x.ld == first.x.ld && meet_in_codes_few(op.w, first.w);
      if (!meets || now.size() == kFewJobs) later.push_back(op);
      else now.push_back({.w = op.w, .x = {}, .rows = op.x.rows, .y = op.y, .carrier = op.carrier});
    }
    run_codes_few(c, "linears", now, first.x, beside);
    beside = {};
    ops = later;
  }
}

}  // namespace

void run(Context& c, const Linear& op) {
  check_here(op);
  if (op.x.rows == 0) return;
  if (takes_codes(c, op.w) && few_codes(op)) {
    run_codes_of_few(c, {op}, {});
    return;
  }
  if (takes_codes(c, op.w)) {
    has_many(op) ? run_many(c, {&op, 1}) : run_codes(c, {&op, 1});
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

// None is packed. The last meets the others, which are on branches.
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
  if (!packed.empty() && std::all_of(packed.begin(), packed.end(), few_codes) && all_listed(others) &&
      std::all_of(others.begin(), others.end(), [](const Linear& op) { return op.w.dtype == DType::kBf16; })) {
    run_codes_of_few(c, packed, others);
    return;
  }
  const bool many_others = std::none_of(others.begin(), others.end(), [&](const Linear& op) {
    return listed(op) || takes_resident(c, op.w, values_of(op), op.x.rows);
  });
  if (!others.empty()) many_others ? run_apart(c, others) : run_beside(c, others);
  const bool many = std::all_of(packed.begin(), packed.end(), has_many);
  if (!packed.empty()) many ? run_many(c, packed) : run_codes(c, packed);
  c.meet();
}

}  // namespace fathom::ops::cuda
