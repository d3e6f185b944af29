#include <algorithm>
#include <array>
#include <vector>

#include "ops/cuda/codes.h"
#include "ops/cuda/codes_few.h"
#include "ops/cuda/codes_many.h"
#include "ops/cuda/codes_some.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/linear_cuda.h"

namespace fathom::ops::cuda {
namespace {

// The first of the operations with the inputs of the i-th: codes are made once.
std::size_t first_like(std::span<const Linear> ops, std::size_t i) {
  std::size_t j = 0;
  while (ops[j].x.data != ops[i].x.data || ops[j].x.cols != ops[i].x.cols) ++j;
  return j;
}

bool has_many(const Linear& op) { return op.x.rows >= kManyRows && op.groups == 1; }

// Many tokens.
void run_many(Context& c, std::span<const Linear> ops) {
  std::vector<std::size_t> places(ops.size());
  Pieces pieces;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Mat<const float>& x = ops[i].x;
    if (first_like(ops, i) == i) {
      places[i] = pieces.add<std::byte>(static_cast<std::int64_t>(code_tiles_bytes({.rows = x.rows}, x.cols)));
    }
  }
  std::byte* const base = c.scratch->take(pieces.bytes(), c.fault);
  std::vector<CodeTiles> tiles(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Linear& op = ops[i];
    FATHOM_CHECK(op.quantise_x, "a weight packed for quantised inputs gets them");
    const std::size_t j = first_like(ops, i);
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

// Others: 9 to 64 tokens, and what no other kernel takes.
void run_others(Context& c, std::span<const Linear> ops) {
  std::vector<std::size_t> places(ops.size());
  Pieces pieces;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const std::size_t j = first_like(ops, i);
    const Mat<const float>& x = ops[i].x;
    places[i] = j < i ? places[j] : pieces.add<std::byte>(static_cast<std::int64_t>(codes_bytes(x.rows, x.cols)));
  }
  std::byte* const base = c.scratch->take(pieces.bytes(), c.fault);
  std::vector<CodesProduct> products(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Linear& op = ops[i];
    FATHOM_CHECK(op.quantise_x, "a weight packed for quantised inputs gets them");
    const std::size_t j = first_like(ops, i);
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

bool few_codes(const Linear& op) { return op.groups == 1 && takes_codes_few(op.w, op.x); }

// Few tokens: those that meet in one launch, and with the first of them the others, of BF16.
void run_few(Context& c, std::vector<Linear> ops, std::span<const Linear> others) {
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

bool all_few(std::span<const Linear> ops) { return std::all_of(ops.begin(), ops.end(), few_codes); }

}  // namespace

void run_packed(Context& c, std::span<const Linear> ops) {
  if (all_few(ops)) run_few(c, {ops.begin(), ops.end()}, {});
  else if (std::all_of(ops.begin(), ops.end(), has_many)) run_many(c, ops);
  else run_others(c, ops);
}

bool run_packed_with(Context& c, std::span<const Linear> ops, std::span<const Linear> others) {
  const bool bf16 = std::all_of(others.begin(), others.end(), [](const Linear& op) { return op.w.dtype == DType::kBf16; });
  if (ops.empty() || !bf16 || !all_few(ops)) return false;
  run_few(c, {ops.begin(), ops.end()}, others);
  return true;
}

}  // namespace fathom::ops::cuda
