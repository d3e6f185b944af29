#include "ops/attention/attend.h"

#include "ops/attention/attention_mma.cuh"
#include "ops/cuda/matmul.h"
#include "ops/cuda/ops.h"

namespace fathom::ops::cuda {
namespace {

// Whether attention does it all: it has a group of warps for queries, and the projection reads planes of bf16 numbers
// with whole heads in every group.
bool does_all(const Context& c, const Attend& op) {
  const SparseAttention& a = op.attention;
  const Linear& p = op.project;
  return takes_whole(c, a) && worth_expanding(a) && a.heads % p.groups == 0 && a.out.ld == a.out.cols &&
         !p.quantise_x && p.x_carrier == Carrier::kBf16 &&
         order_for(c, p.w, Values::kBf16, p.x.rows, p.groups) == Order::kHalvesShared;
}

}  // namespace

void run(Context& c, const Attend& op) {
  const SparseAttention& attention = op.attention;
  const QueryHeads& heads = op.queries.heads;
  const Linear& project = op.project;
  FATHOM_CHECK(heads.q.data == attention.q.data && heads.cos.data == attention.cos.data &&
                   heads.sin.data == attention.sin.data && project.x.data == attention.out.data,
               "attention of these queries, a projection of its output");
  if (!does_all(c, op)) {
    run(c, op.queries);
    if (op.select) run(c, *op.select);
    run(c, attention);
    run(c, project);
    return;
  }
  check(project);
  if (op.queries.index) run(c, *op.queries.index);
  if (op.select) run(c, *op.select);
  const Planes x = planes_in({.x = project.x,
                              .groups = project.groups,
                              .values = Values::kBf16,
                              .order = Order::kHalvesShared,
                              .memory = reinterpret_cast<std::byte*>(attention.out.data)});
  attend_whole(c, attention,
               {.raw_queries = true,
                .query_eps = heads.eps,
                .planes = reinterpret_cast<std::uint16_t*>(attention.out.data)});
  run_matmul(c, "linear",
             {.w = project.w,
              .groups = project.groups,
              .x = x,
              .rows = project.x.rows,
              .y = project.y,
              .carrier = project.carrier});
}

}  // namespace fathom::ops::cuda
