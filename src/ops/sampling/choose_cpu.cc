// Rows are cut into parts for the threads: first every part's largest logit, then every part's race. A part's race
// begins with the row's likeliest token in front, which few others can beat.
#include <algorithm>

#include "ops/cpu.h"
#include "ops/sampling/choose.h"
#include "ops/sampling/noise.h"
#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sampling/choose_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "ops/simd/lanes-inl.h"

#ifndef FATHOM_OPS_CHOOSE_PART_
#define FATHOM_OPS_CHOOSE_PART_
namespace fathom::ops::cpu {
constexpr std::int64_t kPart = 8192;
struct Part {
  float max;
  bool bad;  // holds NaN or +inf
};
}  // namespace fathom::ops::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
namespace {

cpu::Part Scan(const float* x, std::int64_t n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const D d;
  V max = hn::Set(d, -kInfinity);
  auto good = hn::Eq(max, max);
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const V v = hn::LoadU(d, x + i);
    good = hn::And(good, hn::Lt(v, hn::Set(d, kInfinity)));
    max = hn::Max(max, v);
  }
  cpu::Part part{.max = hn::GetLane(hn::MaxOfLanes(d, max)), .bad = !hn::AllTrue(d, good)};
  for (; i < n; ++i) {
    part.bad = part.bad || !(x[i] < kInfinity);
    part.max = std::max(part.max, x[i]);
  }
  return part;
}

}  // namespace
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops::cpu {
namespace {
HWY_EXPORT(Scan);

// The best of ids [begin, end) and the one in front.
Leader race(const float* x, std::int64_t begin, std::int64_t end, float max, const ChoiceRule& rule, Leader leader) {
  for (auto id = static_cast<std::int32_t>(begin); id < end; ++id) {
    const double without = tempered(x[id], max, rule.temperature);
    const std::uint64_t bits = noise::bits(rule.key, id);
    if (without + noise::bound(bits) < leader.worth) continue;
    const double worth = without + noise::value(bits);
    if (leader.beaten_by(worth, id)) leader = {worth, id};
  }
  return leader;
}

}  // namespace

void run(const Choose& op, Context& ctx) {
  const std::int64_t rows = op.logits.rows;
  const std::int64_t vocab = op.logits.cols;
  const std::int64_t n_parts = (vocab + kPart - 1) / kPart;
  Part* parts = ctx.scratch.take<Part>(rows * n_parts);
  Leader* leaders = ctx.scratch.take<Leader>(rows * n_parts);
  const std::int64_t scans = grain(rows * n_parts, kPart, 1, ctx);
  ctx.pool.parallel_for(rows * n_parts, scans, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % n_parts * kPart;
      if (op.rules[i / n_parts].temperature < 0) continue;
      parts[i] = HWY_DYNAMIC_DISPATCH(Scan)(op.logits.row(i / n_parts) + first, std::min(kPart, vocab - first));
    }
  });

  bool races = false;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* x = op.logits.row(r);
    const Part* mine = parts + r * n_parts;
    op.chosen[r] = kNoChoice;
    if (op.rules[r].temperature < 0 || std::any_of(mine, mine + n_parts, [](const Part& p) { return p.bad; })) continue;
    const Part* best = std::max_element(mine, mine + n_parts, [](auto& a, auto& b) { return a.max < b.max; });
    if (n_parts == 0 || !(best->max > -std::numeric_limits<float>::infinity())) continue;
    op.chosen[r] = static_cast<std::int32_t>(std::find(x + (best - mine) * kPart, x + vocab, best->max) - x);
    races = races || op.rules[r].temperature > 0;
  }
  if (!races) return;

  const auto is_race = [&](std::int64_t r) { return op.rules[r].temperature > 0 && op.chosen[r] != kNoChoice; };
  ctx.pool.parallel_for(rows * n_parts, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t r = i / n_parts;
      if (!is_race(r)) continue;
      const float* x = op.logits.row(r);
      const std::int32_t likeliest = op.chosen[r];
      const std::int64_t first = i % n_parts * kPart;
      leaders[i] = race(x, first, std::min(first + kPart, vocab), x[likeliest], op.rules[r],
                        {noise::value(noise::bits(op.rules[r].key, likeliest)), likeliest});
    }
  });
  for (std::int64_t r = 0; r < rows; ++r) {
    if (!is_race(r)) continue;
    Leader leader = leaders[r * n_parts];
    for (const Leader& l : std::span(leaders + r * n_parts, static_cast<std::size_t>(n_parts))) {
      if (leader.beaten_by(l.worth, l.id)) leader = l;
    }
    op.chosen[r] = leader.id;
  }
}

}  // namespace fathom::ops::cpu
#endif
