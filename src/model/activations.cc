#include "model/activations.h"

#include <algorithm>

namespace fathom::model {
namespace {

constexpr std::size_t kAlignment = 64;

// The one list of values and their widths.
template <class Views, class Visit>
void for_each_value(Views& v, const checkpoint::ModelConfig& c, const Visit& visit) {
  const std::int64_t d = c.hidden;
  const std::int64_t streams = std::int64_t{c.streams} * d;
  const std::int64_t heads = std::int64_t{c.heads} * c.head_dim;
  const std::int64_t mtp = c.draft.kind == checkpoint::DraftKind::kMtp ? 1 : 0;
  const std::int64_t dspark = c.draft.kind == checkpoint::DraftKind::kDspark ? 1 : 0;
  visit(v.streams, streams);
  visit(v.draft_streams, (mtp + dspark) * streams);
  visit(v.x, d);
  visit(v.y, d);
  visit(v.post, c.streams);
  visit(v.comb, std::int64_t{c.streams} * c.streams);
  visit(v.cos, c.rope_dim / 2);
  visit(v.sin, c.rope_dim / 2);
  visit(v.ccos, c.rope_dim / 2);
  visit(v.csin, c.rope_dim / 2);
  visit(v.qr, c.q_rank);
  visit(v.q, heads);
  visit(v.kv, c.head_dim);
  visit(v.o, heads);
  visit(v.z, std::int64_t{c.o_groups} * c.o_rank);
  visit(v.ckv, 2 * std::int64_t{c.head_dim});
  visit(v.cscore, 2 * std::int64_t{c.head_dim});
  visit(v.ikv, 2 * std::int64_t{c.index_dim});
  visit(v.iscore, 2 * std::int64_t{c.index_dim});
  visit(v.iq, std::int64_t{c.index_heads} * c.index_dim);
  visit(v.iweights, c.index_heads);
  visit(v.selected, c.index_topk);
  visit(v.gate, c.routed_experts);
  visit(v.experts, c.active_experts);
  visit(v.expert_weights, c.active_experts);
  visit(v.e, mtp * d);
  visit(v.e_proj, mtp * d);
  visit(v.h, mtp * streams);
  visit(v.h_proj, mtp * streams);
  visit(v.taps, dspark * static_cast<std::int64_t>(c.draft.target_layers.size()) * d);
  visit(v.main, dspark * d);
}

std::size_t aligned_bytes(std::int64_t elements) {
  static_assert(sizeof(float) == sizeof(std::int32_t));
  return (static_cast<std::size_t>(elements) * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

ActivationViews ActivationViews::first(std::int64_t tokens) const {
  ActivationViews v = *this;
  const auto cut = [tokens](auto& m) { m.rows = tokens; };
  for (Mat<float>* m : {&v.streams,
                        &v.draft_streams,
                        &v.x,
                        &v.y,
                        &v.post,
                        &v.comb,
                        &v.cos,
                        &v.sin,
                        &v.ccos,
                        &v.csin,
                        &v.qr,
                        &v.q,
                        &v.kv,
                        &v.o,
                        &v.z,
                        &v.ckv,
                        &v.cscore,
                        &v.ikv,
                        &v.iscore,
                        &v.iq,
                        &v.iweights,
                        &v.gate,
                        &v.expert_weights,
                        &v.e,
                        &v.e_proj,
                        &v.h,
                        &v.h_proj,
                        &v.taps,
                        &v.main}) {
    cut(*m);
  }
  for (Mat<std::int32_t>* m : {&v.selected, &v.experts}) cut(*m);
  return v;
}

Result<Activations> Activations::allocate(const checkpoint::ModelConfig& config, std::int32_t max_tokens,
                                          ops::Backend& backend) {
  Activations a;
  for_each_value(a.views_, config, [&](auto&, std::int64_t width) { a.bytes_ += aligned_bytes(max_tokens * width); });
  FATHOM_ASSIGN(a.memory_, backend.allocate(a.bytes_));
  std::byte* next = a.memory_.get();
  for_each_value(a.views_, config, [&](auto& m, std::int64_t width) {
    m = {reinterpret_cast<decltype(m.data)>(next), max_tokens, width, width};
    next += aligned_bytes(max_tokens * width);
  });
  return a;
}

}  // namespace fathom::model
