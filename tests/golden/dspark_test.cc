// The DSpark module against an independent implementation, written straight from model.md 2, 3, 4, 8 and 10.2 in double
// precision over explicit lists of keys; no published vectors exist. A small synthetic checkpoint, `float` numerics.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/thread_pool.h"
#include "checkpoint/synthetic.h"
#include "support/golden.h"

namespace fathom::testing {
namespace {

using Vec = std::vector<double>;

// The plain implementation: one token's vectors at a time, weights widened whole.
class Plain {
 public:
  Plain(const checkpoint::ModelConfig& config, const model::Weights& weights) : c(config), w(weights) {}

  Vec linear(const ops::Weight& m, const Vec& x, std::int64_t first_row = 0, std::int64_t n_rows = -1) const {
    if (n_rows < 0) n_rows = m.rows;
    Vec y(static_cast<std::size_t>(n_rows));
    std::vector<float> row(static_cast<std::size_t>(m.cols));
    for (std::int64_t r = 0; r < n_rows; ++r) {
      ops::dequantise_row(m, first_row + r, row.data());
      y[static_cast<std::size_t>(r)] = std::inner_product(x.begin(), x.end(), row.begin(), 0.0);
    }
    return y;
  }
  Vec norm(Vec x, const float* weight) const {
    const double rho =
        1 / std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / static_cast<double>(x.size()) +
                      double{c.norm_eps});
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= rho * (weight != nullptr ? double{weight[i]} : 1.0);
    return x;
  }
  // Rotates adjacent pairs of the last R dims at x[at, at + D) by position * theta^(-2j/R); sign -1 turns back.
  void rope(Vec& x, std::size_t at, std::int32_t position, int sign) const {
    const auto r = static_cast<std::size_t>(c.rope_dim);
    const std::size_t begin = at + static_cast<std::size_t>(c.head_dim) - r;
    for (std::size_t j = 0; j < r / 2; ++j) {
      const double angle =
          sign * position * std::pow(c.rope_theta, -2.0 * static_cast<double>(j) / static_cast<double>(r));
      const double a = x[begin + 2 * j];
      const double b = x[begin + 2 * j + 1];
      x[begin + 2 * j] = a * std::cos(angle) - b * std::sin(angle);
      x[begin + 2 * j + 1] = a * std::sin(angle) + b * std::cos(angle);
    }
  }
  Vec key(const model::AttentionWeights& a, const Vec& x, std::int32_t position) const {
    Vec kv = norm(linear(a.wkv, x), a.kv_norm);
    rope(kv, 0, position, 1);
    return kv;
  }
  Vec attention(const model::AttentionWeights& a, const Vec& x, std::int32_t position,
                const std::vector<Vec>& keys) const {
    const auto d = static_cast<std::size_t>(c.head_dim);
    const Vec q_all = linear(a.wq_b, norm(linear(a.wq_a, x), a.q_norm));
    Vec o_all(q_all.size());
    for (std::size_t h = 0; h < static_cast<std::size_t>(c.heads); ++h) {
      Vec q = norm(Vec(q_all.begin() + static_cast<std::ptrdiff_t>(h * d),
                       q_all.begin() + static_cast<std::ptrdiff_t>((h + 1) * d)),
                   nullptr);
      rope(q, 0, position, 1);
      double den = std::exp(double{a.sink[h]});
      Vec o(d, 0.0);
      for (const Vec& k : keys) {
        const double p =
            std::exp(std::inner_product(q.begin(), q.end(), k.begin(), 0.0) / std::sqrt(static_cast<double>(d)));
        den += p;
        for (std::size_t i = 0; i < d; ++i) o[i] += p * k[i];
      }
      for (std::size_t i = 0; i < d; ++i) o_all[h * d + i] = o[i] / den;
      rope(o_all, h * d, position, -1);
    }
    Vec z;
    const std::int64_t per_group = static_cast<std::int64_t>(o_all.size()) / c.o_groups;
    for (std::int64_t g = 0; g < c.o_groups; ++g) {
      const Vec part(o_all.begin() + g * per_group, o_all.begin() + (g + 1) * per_group);
      const Vec out = linear(a.wo_a, part, g * c.o_rank, c.o_rank);
      z.insert(z.end(), out.begin(), out.end());
    }
    return linear(a.wo_b, z);
  }
  Vec expert(const ops::ExpertWeights& e, const Vec& x, double weight) const {
    Vec a = linear(e.w1, x);
    const Vec b = linear(e.w3, x);
    const double limit = c.swiglu_limit;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double gate = std::min(a[i], limit);
      a[i] = weight * gate / (1 + std::exp(-gate)) * std::clamp(b[i], -limit, limit);
    }
    return linear(e.w2, a);
  }
  Vec moe(const model::MoeWeights& m, const Vec& x) const {
    Vec sigma = linear(m.gate, x);
    for (double& g : sigma) g = std::sqrt(std::log1p(std::exp(g)));
    std::vector<std::size_t> order(sigma.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) {
      return sigma[i] + double{m.bias[i]} > sigma[j] + double{m.bias[j]};
    });
    order.resize(static_cast<std::size_t>(c.active_experts));
    double sum = 0;
    for (const std::size_t e : order) sum += sigma[e];
    Vec y = expert(m.shared, x, 1);
    for (const std::size_t e : order) {
      const Vec part = expert(m.routed[e], x, sigma[e] / sum * double{c.route_scale});
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += part[i];
    }
    return y;
  }
  // Mixing numbers of a site, normed: rho * fn v.
  Vec mix(const Vec& streams, const ops::HyperConnection& site, std::size_t n) const {
    const double rho = 1 / std::sqrt(std::inner_product(streams.begin(), streams.end(), streams.begin(), 0.0) /
                                         static_cast<double>(streams.size()) +
                                     double{c.norm_eps});
    Vec m(n);
    for (std::size_t j = 0; j < n; ++j)
      m[j] = rho * std::inner_product(streams.begin(), streams.end(), site.fn + j * streams.size(), 0.0);
    return m;
  }
  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  Vec weigh(const Vec& streams, const Vec& weights) const {
    const auto d = static_cast<std::size_t>(c.hidden);
    Vec u(d, 0.0);
    for (std::size_t s = 0; s < weights.size(); ++s) {
      for (std::size_t i = 0; i < d; ++i) u[i] += weights[s] * streams[s * d + i];
    }
    return u;
  }
  // One sub-layer with its hyper-connections; f maps the normalised input to the output.
  template <class F>
  void sub_layer(std::vector<Vec>& streams, const ops::HyperConnection& site, const float* norm_weight,
                 const F& f) const {
    const auto n = static_cast<std::size_t>(c.streams);
    const auto d = static_cast<std::size_t>(c.hidden);
    std::vector<Vec> inputs;
    std::vector<Vec> mixes;
    for (const Vec& x : streams) {
      mixes.push_back(mix(x, site, 2 * n + n * n));
      Vec pre(n);
      for (std::size_t s = 0; s < n; ++s)
        pre[s] = sigmoid(mixes.back()[s] * double{site.scale[0]} + double{site.base[s]}) + double{c.hc_eps};
      inputs.push_back(norm(weigh(x, pre), norm_weight));
    }
    const std::vector<Vec> outputs = f(inputs);
    for (std::size_t t = 0; t < streams.size(); ++t) {
      std::vector<Vec> b(n, Vec(n));
      for (std::size_t i = 0; i < n; ++i) {
        double sum = 0;
        for (std::size_t j = 0; j < n; ++j) {
          const std::size_t at = 2 * n + i * n + j;
          sum += b[i][j] = std::exp(mixes[t][at] * double{site.scale[2]} + double{site.base[at]});
        }
        for (double& v : b[i]) v = v / sum + double{c.hc_eps};
      }
      for (std::int32_t pass = 1; pass < 2 * c.sinkhorn_iters; ++pass) {
        for (std::size_t i = 0; i < n; ++i) {
          double sum = double{c.hc_eps};
          for (std::size_t j = 0; j < n; ++j) sum += pass % 2 == 1 ? b[j][i] : b[i][j];
          for (std::size_t j = 0; j < n; ++j) (pass % 2 == 1 ? b[j][i] : b[i][j]) /= sum;
        }
      }
      Vec out(n * d);
      for (std::size_t j = 0; j < n; ++j) {
        const double post = 2 * sigmoid(mixes[t][n + j] * double{site.scale[1]} + double{site.base[n + j]});
        for (std::size_t i = 0; i < d; ++i) {
          out[j * d + i] = post * outputs[t][i];
          for (std::size_t s = 0; s < n; ++s) out[j * d + i] += b[s][j] * streams[t][s * d + i];
        }
      }
      streams[t] = std::move(out);
    }
  }

  const checkpoint::ModelConfig& c;
  const model::Weights& w;
};

Vec widen(const float* x, std::int64_t n) { return {x, x + n}; }

double max_relative(const float* got, const Vec& want) {
  double scale = 0;
  double worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    scale = std::max(scale, std::fabs(want[i]));
    worst = std::max(worst, std::fabs(double{got[i]} - want[i]));
  }
  return worst / std::max(scale, 1.0);
}

class DsparkModel : public ::testing::TestWithParam<std::string> {
 protected:
  static const checkpoint::Checkpoint& checkpoint() {
    static const checkpoint::Checkpoint made = [] {
      ThreadPool pool(1);
      return std::move(checkpoint::synthesize(small_dspark(), pool)).value();
    }();
    return made;
  }
};

TEST_P(DsparkModel, BlocksMarkovLogitsAndConfidenceFollowTheSpecification) {
  const auto backend = make_backend(GetParam());
  const auto& ckpt = checkpoint();
  const auto& c = ckpt.config();
  ASSERT_EQ(c.draft.kind, checkpoint::DraftKind::kDspark);
  ASSERT_EQ(c.draft.stages, 3);
  auto loaded =
      model::Model::load(ckpt, *backend, {.numerics = ops::kFloat, .max_step_tokens = 64, .max_logit_rows = 64});
  ASSERT_TRUE(loaded) << loaded.error().what;
  model::Model& m = **loaded;
  ASSERT_EQ(m.block_size(), 5);
  auto weights = model::load_weights(ckpt, *backend, ops::kFloat);
  ASSERT_TRUE(weights);
  const Plain plain(c, *weights);

  // Lengths below, at and beyond the stages' window of 16.
  for (const std::int32_t length : {1, 9, 16, 30}) {
    auto sequence = cache::Sequence::create(m.layout(), *backend);
    ASSERT_TRUE(sequence && sequence->reserve(length + 1));
    std::mt19937 rng(static_cast<std::uint32_t>(length));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(length));
    for (auto& id : ids) id = static_cast<std::int32_t>(rng() % 150);

    // The trunk, layer by layer, for the taps (its layers answer to golden vectors elsewhere).
    const auto taps = [&] {
      std::vector<Vec> out(ids.size());
      auto activations = model::Activations::allocate(c, 64, *backend);
      const auto f1 = ops::rope_frequencies(c.rope_theta, c.rope_dim, {});
      const auto f2 = ops::rope_frequencies(c.compress_rope_theta, c.rope_dim,
                                            {.factor = c.yarn.factor,
                                             .beta_fast = c.yarn.beta_fast,
                                             .beta_slow = c.yarn.beta_slow,
                                             .original_positions = c.yarn.original_positions});
      const model::ForwardContext ctx{.config = c,
                                      .weights = *weights,
                                      .layout = m.layout(),
                                      .numerics = ops::kFloat,
                                      .backend = *backend,
                                      .frequencies = f1.data(),
                                      .compressed_frequencies = f2.data()};
      const model::ActivationViews a = activations->views().first(length);
      model::StepMemory step_memory(*backend);
      const model::Chunk all{.ids = ids, .start = 0, .slot = sequence->slot(), .pages = sequence->pages()};
      const ops::Batch batch = std::move(step_memory.upload(std::span(&all, 1))).value();
      model::Forward forward(ctx, a, batch);
      forward.rope_tables();
      backend->embed({.ids = batch.ids, .table = weights->embed, .streams = c.streams, .x = a.streams});
      for (std::int32_t l = 0; l < c.layers; ++l) {
        forward.layer(weights->layers[static_cast<std::size_t>(l)], m.layout().layers[static_cast<std::size_t>(l)],
                      a.streams);
        if (std::find(c.draft.target_layers.begin(), c.draft.target_layers.end(), l) == c.draft.target_layers.end())
          continue;
        for (std::int32_t t = 0; t < length; ++t) {
          const Vec mean = plain.weigh(widen(a.streams.row(t), a.streams.cols), Vec(4, 0.25));
          out[static_cast<std::size_t>(t)].insert(out[static_cast<std::size_t>(t)].end(), mean.begin(), mean.end());
        }
      }
      return out;
    }();

    // The model itself, in two chunks, then one block.
    sequence->restart();
    for (const auto& [at, n] : {std::pair(0, length / 2), std::pair(length / 2, length - length / 2)}) {
      const model::Chunk chunk{.ids = std::span(ids).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(n)),
                               .start = at,
                               .slot = sequence->slot(),
                               .pages = sequence->pages()};
      ASSERT_TRUE(m.forward(std::span(&chunk, 1)));
    }
    const std::int32_t anchor = 77;
    const model::Chunk start{
        .ids = std::span(&anchor, 1), .start = length, .slot = sequence->slot(), .pages = sequence->pages()};
    ASSERT_TRUE(m.draft_block(std::span(&start, 1)));

    // The same by hand.
    std::vector<Vec> streams;
    for (std::int32_t i = 0; i < 5; ++i) {
      std::vector<float> e(static_cast<std::size_t>(c.hidden));
      ops::dequantise_row(weights->embed, i == 0 ? anchor : c.draft.noise_token, e.data());
      Vec x;
      for (int s = 0; s < c.streams; ++s) x.insert(x.end(), e.begin(), e.end());
      streams.push_back(x);
    }
    for (const model::LayerWeights& stage : weights->dspark.stages) {
      std::vector<Vec> keys;
      for (std::int32_t p = std::max(0, length - c.window); p < length; ++p) {
        const Vec main = plain.norm(plain.linear(weights->dspark.main_proj, taps[static_cast<std::size_t>(p)]),
                                    weights->dspark.main_norm);
        keys.push_back(plain.key(stage.attention, main, p));
      }
      plain.sub_layer(streams, stage.attn_hc, stage.attn_norm, [&](const std::vector<Vec>& x) {
        std::vector<Vec> all = keys;
        for (std::size_t i = 0; i < x.size(); ++i)
          all.push_back(plain.key(stage.attention, x[i], length + static_cast<std::int32_t>(i)));
        std::vector<Vec> y;
        for (std::size_t i = 0; i < x.size(); ++i)
          y.push_back(plain.attention(stage.attention, x[i], length + static_cast<std::int32_t>(i), all));
        return y;
      });
      plain.sub_layer(streams, stage.ffn_hc, stage.ffn_norm, [&](const std::vector<Vec>& x) {
        std::vector<Vec> y;
        for (const Vec& row : x) y.push_back(plain.moe(stage.moe, row));
        return y;
      });
    }
    std::int32_t previous = anchor;
    for (std::int32_t i = 0; i < 5; ++i) {
      const Vec& x = streams[static_cast<std::size_t>(i)];
      Vec weight = plain.mix(x, weights->dspark.hc_head, 4);
      for (std::size_t s = 0; s < 4; ++s) {
        weight[s] = Plain::sigmoid(weight[s] * double{weights->dspark.hc_head.scale[0]} +
                                   double{weights->dspark.hc_head.base[s]}) +
                    double{c.hc_eps};
      }
      const Vec y = plain.weigh(x, weight);
      std::vector<float> embedding(static_cast<std::size_t>(c.draft.markov_rank));
      ops::dequantise_row(weights->dspark.markov_w1, previous, embedding.data());
      const Vec markov(embedding.begin(), embedding.end());
      Vec want = plain.linear(weights->head, plain.norm(y, weights->dspark.norm));
      const Vec correction = plain.linear(weights->dspark.markov_w2, markov);
      for (std::size_t v = 0; v < want.size(); ++v) want[v] += correction[v];
      Vec features = y;
      features.insert(features.end(), markov.begin(), markov.end());
      const Vec confidence = plain.linear(weights->dspark.confidence, features);

      const auto got = m.block_logits(i, std::span(&previous, 1));
      ASSERT_TRUE(got);
      EXPECT_LT(max_relative(got->logits.row(0), want), 2e-5) << "length " << length << " draft " << i;
      EXPECT_LT(max_relative(got->confidence.row(0), confidence), 2e-5) << "length " << length << " draft " << i;
      previous = static_cast<std::int32_t>(std::max_element(want.begin(), want.end()) - want.begin());
    }
  }
}

// Two blocks in a step are two blocks alone, and drafting leaves no trace in the sequence.
TEST_P(DsparkModel, BlocksDoNotSeeEachOtherAndKeepNothing) {
  const auto backend = make_backend(GetParam());
  auto loaded = model::Model::load(checkpoint(), *backend,
                                   {.numerics = ops::kOfficial, .max_step_tokens = 64, .max_logit_rows = 64});
  ASSERT_TRUE(loaded);
  model::Model& m = **loaded;
  std::vector<cache::Sequence> sequences;
  for (const std::int32_t length : {7, 21}) {
    sequences.push_back(std::move(cache::Sequence::create(m.layout(), *backend)).value());
    ASSERT_TRUE(sequences.back().reserve(length + 1));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(length));
    std::iota(ids.begin(), ids.end(), length);
    const model::Chunk chunk{
        .ids = ids, .start = 0, .slot = sequences.back().slot(), .pages = sequences.back().pages()};
    ASSERT_TRUE(m.forward(std::span(&chunk, 1)));
    sequences.back().advance(length);
  }
  const std::int32_t anchors[] = {3, 5};
  const auto anchor = [&](std::size_t i) {
    return model::Chunk{.ids = std::span(&anchors[i], 1),
                        .start = sequences[i].length(),
                        .slot = sequences[i].slot(),
                        .pages = sequences[i].pages()};
  };
  const auto logits = [&](std::vector<model::Chunk> chunks) {
    std::vector<float> all;
    EXPECT_TRUE(m.draft_block(chunks));
    std::vector<std::int32_t> previous;
    for (const model::Chunk& c : chunks) previous.push_back(c.ids[0]);
    const auto out = m.block_logits(0, previous);
    for (std::int64_t r = 0; r < out->logits.rows; ++r)
      all.insert(all.end(), out->logits.row(r), out->logits.row(r) + out->logits.cols);
    return all;
  };
  const auto first = logits({anchor(0)});
  const auto second = logits({anchor(1)});
  auto alone = first;
  alone.insert(alone.end(), second.begin(), second.end());
  EXPECT_EQ(logits({anchor(0), anchor(1)}), alone);
  EXPECT_EQ(logits({anchor(0)}), first);
  EXPECT_FALSE(m.block_logits(0, std::vector<std::int32_t>{160}));
  const std::int32_t bad = -1;
  model::Chunk broken = anchor(0);
  broken.ids = std::span(&bad, 1);
  EXPECT_FALSE(m.draft_block(std::span(&broken, 1)));
}

// Reads results in place: host backends only.
INSTANTIATE_TEST_SUITE_P(Backends, DsparkModel, ::testing::Values("ref", "cpu"));

}  // namespace
}  // namespace fathom::testing
