#include "ops/moe/experts_few_cuda.h"

#include "ops/cuda/launch.cuh"
#include "ops/cuda/matmul.h"
#include "ops/moe/experts_down.cuh"
#include "ops/moe/experts_plan.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr std::int64_t kFewRows = 16;  // of z, up to which every block of the last launch makes planes of them all

bool formats_meet(const Weight& shared, const Weight& routed) {
  const Format s = format_of(shared);
  const Format r = format_of(routed);
  return s != Format::kWide && (s == r || (s == Format::kFp8 && r == Format::kFp4));
}

bool aligned(Mat<const float> x) { return x.ld % 4 == 0 && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0; }

bool takes(const Experts& op) {
  const std::int64_t tokens = op.x.rows;
  if (op.carrier != Carrier::kBf16 || tokens > kListTokens || tokens * op.experts.cols > kFewChoices) return false;
  const auto fits = [&](const Weight& w) {
    return list_takes(w, kListTokens, 1, values_for(w, op.quantise, op.carrier));
  };
  const ExpertWeights& r = op.routed_like;
  const ExpertWeights& s = op.shared;
  return aligned(op.x) && fits(r.w1) && fits(r.w2) && fits(s.w1) && fits(s.w2) && formats_meet(s.w1, r.w1) &&
         formats_meet(s.w2, r.w2) && format_of(s.w1) != Format::kBf16;
}

// z = silu(a) * b of all choices, in order of the plan, and of the shared expert after them.
void gate(Context& c, const Experts& op, const Choices& choices, std::byte* planes_memory, Mat<float> z) {
  const std::int64_t n = std::int64_t{choices.tokens} * choices.k;
  const bool planes_first = op.x.rows * op.x.cols > 16384;
  const auto product = [&](const ExpertWeights& e, bool routed) {
    Product p{.m = {.w = e.w1,
                    .w3 = e.w3,
                    .table = routed ? op.routed : nullptr,
                    .part = Part::kGate,
                    .x = {},
                    .most_items = n,
                    .rows = op.x.rows,
                    .swiglu_limit = op.swiglu_limit,
                    .y = routed ? z.slice(0, n) : z.slice(n, op.x.rows),
                    .carrier = op.carrier},
              .values = values_for(e.w1, op.quantise, op.carrier),
              .order = order_for(e.w1),
              .by_token = routed};
    if (!planes_first) p.x = op.x;
    return p;
  };
  Product both[2] = {product(op.shared, false), product(op.routed_like, true)};
  if (planes_first) {
    const std::size_t bytes = planes_bytes(op.x.rows, op.x.cols, Values::kBf16);
    for (Product& p : both) {
      p.m.x = make_planes(
          c, {.x = op.x, .values = p.values, .order = p.order, .memory = planes_memory + (&p - both) * bytes});
    }
  }
  run_list(c, "experts_gate", both, choices);
}

// What down_sum adds up, for so many rows of z that they go through planes.
__global__ void sum_few(Choices choices, const float* results, Mat<float> y, Carrier carrier) {
  await_previous();
  __shared__ SmallPlan plan;
  make_small_plan<Part::kDown>(choices, plan);
  const std::int64_t t = blockIdx.y;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= y.cols) return;
  float sum = 0;
  for (int j = 0; j < choices.k; ++j) sum += results[plan.place[t * choices.k + j] * y.cols + i];
  sum += results[(static_cast<std::int64_t>(choices.tokens) * choices.k + t) * y.cols + i];
  y.data[t * y.ld + i] = carry_to(sum, carrier);
}

void down_through_planes(Context& c, const Experts& op, const Choices& choices, std::byte* planes_memory, Mat<float> z,
                         Mat<float> results) {
  const std::int64_t n = std::int64_t{choices.tokens} * choices.k;
  const Values routed = values_for(op.routed_like.w2, op.quantise, op.carrier);
  const Values shared = values_for(op.shared.w2, op.quantise, op.carrier);
  const Order routed_order = order_for(op.routed_like.w2);
  const Order shared_order = order_for(op.shared.w2);
  Planes of_routed;
  Planes of_shared;
  if (routed == shared) {
    of_routed = make_planes(c, {.x = z,
                                .values = routed,
                                .order = routed_order,
                                .memory = planes_memory,
                                .other_order = shared_order,
                                .other_from = n});
    of_shared = from_row(of_routed, n, shared_order);
  } else {
    of_routed = make_planes(c, {.x = z.slice(0, n), .values = routed, .order = routed_order, .memory = planes_memory});
    of_shared = make_planes(c, {.x = z.slice(n, op.x.rows),
                                .values = shared,
                                .order = shared_order,
                                .memory = planes_memory + planes_bytes(n, z.cols, routed)});
  }
  const Product both[2] = {{.m = {.w = op.shared.w2,
                                  .x = of_shared,
                                  .rows = op.x.rows,
                                  .y = results.slice(n, op.x.rows),
                                  .carrier = op.carrier},
                            .order = shared_order},
                           {.m = {.w = op.routed_like.w2,
                                  .table = op.routed,
                                  .x = of_routed,
                                  .most_items = n,
                                  .y = results.slice(0, n),
                                  .carrier = op.carrier},
                            .order = routed_order}};
  run_list(c, "experts_down", both, choices);
  constexpr int kThreads = 256;
  launch(c, "experts_sum", sum_few,
         dim3(static_cast<unsigned>(ceil_div(op.y.cols, kThreads)), static_cast<unsigned>(choices.tokens)), kThreads, 0,
         choices, static_cast<const float*>(results.data), op.y, op.carrier);
}

void down(Context& c, const Experts& op, const Choices& choices, Mat<float> z) {
  const ExpertWeights& r = op.routed_like;
  const Matmul routed{.w = r.w2, .table = op.routed, .x = {}, .y = {}, .carrier = op.carrier};
  const Matmul shared{.w = op.shared.w2, .x = {}, .rows = op.x.rows, .y = {}, .carrier = op.carrier};
  const DownJob job{.routed = job_of(routed),
                    .shared = job_of(shared),
                    .choices = choices,
                    .z = z,
                    .values = values_for(r.w2, op.quantise, op.carrier),
                    .routed_order = order_for(r.w2),
                    .shared_order = order_for(op.shared.w2),
                    .pitch = static_cast<int>(Planes::padded(z.cols)) + 8,
                    .y = op.y,
                    .carrier = op.carrier};
  const std::int64_t matrices = 1 + std::int64_t{choices.tokens} * choices.k;
  const std::size_t shared_bytes = sizeof(std::uint16_t) * static_cast<std::size_t>(z.rows * job.pitch) +
                                   sizeof(float) * static_cast<std::size_t>(matrices * job.routed.segments * 4 * kWarp);
  const auto go = [&](auto kernel) {
    launch(c, "experts_down", kernel, dim3(static_cast<unsigned>(ceil_div(op.y.cols, 16))), kMatmulThreads,
           shared_bytes, job);
  };
  using enum Format;
  const Format s = format_of(op.shared.w2);
  const Format f = format_of(r.w2);
  if (f == kFp4 && s == kFp8) go(down_sum<kFp4, kFp8>);
  else if (f == kFp8) go(down_sum<kFp8, kFp8>);
  else if (f == kFp4) go(down_sum<kFp4, kFp4>);
  else go(down_sum<kBf16, kBf16>);
}

}  // namespace

bool run_few(Context& c, const Experts& op) {
  if (!takes(op)) return false;
  const Choices choices{.table = op.routed,
                        .experts = op.experts.data,
                        .weights = op.weights.data,
                        .experts_ld = op.experts.ld,
                        .weights_ld = op.weights.ld,
                        .tokens = static_cast<int>(op.x.rows),
                        .k = static_cast<int>(op.experts.cols)};
  const std::int64_t rows = op.x.rows * (op.experts.cols + 1);
  const std::int64_t inner = op.routed_like.w1.rows;
  const bool sum_in_block =
      rows <= kFewRows && values_for(op.routed_like.w2, op.quantise, op.carrier) ==
                              values_for(op.shared.w2, op.quantise, op.carrier);
  Pieces pieces;
  const std::size_t z = pieces.add<float>(rows * inner);
  const std::size_t x_planes = pieces.add<std::uint16_t>(2 * op.x.rows * Planes::padded(op.x.cols));
  const std::size_t z_planes = pieces.add<std::uint16_t>(rows * Planes::padded(inner));
  const std::size_t results = pieces.add<float>(rows * op.y.cols);
  std::byte* const base = c.scratch->take(pieces.bytes(), c.fault);
  const Mat<float> of_z = mat(reinterpret_cast<float*>(base + z), rows, inner);
  gate(c, op, choices, base + x_planes, of_z);
  if (sum_in_block) {
    down(c, op, choices, of_z);
  } else {
    down_through_planes(c, op, choices, base + z_planes, of_z,
                        mat(reinterpret_cast<float*>(base + results), rows, op.y.cols));
  }
  return true;
}

}  // namespace fathom::ops::cuda
