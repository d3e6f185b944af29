#include <cmath>

#include "ops/sampling/choose.h"
#include "ops/sampling/noise.h"

namespace fathom::ops::ref {
namespace {

std::int32_t choose(const float* x, std::int64_t vocab, const ChoiceRule& rule) {
  if (rule.temperature < 0) return kNoChoice;
  std::int32_t likeliest = kNoChoice;
  for (std::int32_t id = 0; id < vocab; ++id) {
    if (std::isnan(x[id]) || x[id] == HUGE_VALF) return kNoChoice;
    if (x[id] > (likeliest < 0 ? -HUGE_VALF : x[likeliest])) likeliest = id;
  }
  if (likeliest < 0 || rule.temperature == 0) return likeliest;
  Leader leader{-HUGE_VAL, kNoChoice};
  for (std::int32_t id = 0; id < vocab; ++id) {
    if (x[id] == -HUGE_VALF) continue;
    const double worth = tempered(x[id], x[likeliest], rule.temperature) + noise::value(noise::bits(rule.key, id));
    if (leader.beaten_by(worth, id)) leader = {worth, id};
  }
  return leader.id;
}

}  // namespace

void run(const Choose& op) {
  for (std::int64_t r = 0; r < op.logits.rows; ++r)
    op.chosen[r] = choose(op.logits.row(r), op.logits.cols, op.rules[r]);
}

}  // namespace fathom::ops::ref
