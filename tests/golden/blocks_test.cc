// Golden vectors of blocks: attention with its compressors and indexer, router, experts, whole layers, the MTP block,
// for each backend. micro-random-fp in `float`, micro-random in `official` (q32).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/indexer/index_select.h"
#include "support/golden.h"

namespace fathom::testing {
namespace {

struct Case {
  std::string model;
  std::string backend;
  ops::Numerics numerics;
  double tolerance;
};
void PrintTo(const Case& c, std::ostream* os) { *os << c.model << " on " << c.backend; }

const Vectors& vectors() {
  static const Vectors v("ops.safetensors");
  return v;
}

class GoldenBlocks : public ::testing::TestWithParam<Case> {
 protected:
  std::string prefix(std::int32_t layer) const { return GetParam().model + "/layer" + std::to_string(layer) + "."; }
  BlockHarness harness() const { return {GetParam().model, GetParam().backend, GetParam().numerics}; }
  std::int32_t blocks() const {
    const auto& c = open_model(GetParam().model).config();
    return c.layers + c.draft.stages;
  }
  std::int32_t ratio(const BlockHarness& h, std::int32_t l) const {
    return h.layout.layers[static_cast<std::size_t>(l)].ratio;
  }
};

void fill(Mat<float> to, const std::vector<float>& from) { std::copy(from.begin(), from.end(), to.data); }
std::vector<float> values(Mat<const float> m) { return {m.data, m.data + m.rows * m.cols}; }

// Entries [0, n) of the sequence, decoded.
std::vector<float> entries(const BlockHarness& h, const ops::EntryPages& e, std::int32_t n) {
  const auto dim = static_cast<std::size_t>(e.codec.dim);
  std::vector<float> out(static_cast<std::size_t>(n) * dim);
  for (std::int32_t w = 0; w < n; ++w)
    e.codec.decode(e.at(h.segment, w), std::span(out).subspan(static_cast<std::size_t>(w) * dim, dim));
  return out;
}

// The ring's rows in the published layout (model.md 5.3), live rows only: kv or score of positions that will still be
// read.
void expect_live_state(const BlockHarness& h, const ops::CompressorRing& ring, std::int32_t ratio, std::int32_t length,
                       const std::string& kv_name, const std::string& score_name, double tolerance) {
  const auto kv = vectors().floats(kv_name);
  const auto score = vectors().floats(score_name);
  const std::int32_t cut = length - length % ratio;
  const std::int32_t previous = ratio == 4 ? ratio : 0;
  for (std::int32_t p = std::max(0, cut - previous); p < length; ++p) {
    const auto at = static_cast<std::size_t>((p - cut + previous) * ring.width);
    const float* row = ring.row(h.segment.slot, p);
    EXPECT_LE(max_difference({row, static_cast<std::size_t>(ring.width)},
                             std::span(kv).subspan(at, static_cast<std::size_t>(ring.width))),
              tolerance)
        << kv_name << " position " << p;
    EXPECT_LE(max_difference({row + ring.width, static_cast<std::size_t>(ring.width)},
                             std::span(score).subspan(at, static_cast<std::size_t>(ring.width))),
              tolerance)
        << score_name << " position " << p;
  }
}

TEST_P(GoldenBlocks, AttentionPrefillThenDecode) {
  for (std::int32_t l = 0; l < blocks(); ++l) {
    BlockHarness h = harness();
    const auto x = vectors().floats(prefix(l) + "attn.x");
    const std::int64_t d = h.checkpoint.config().hidden;
    const auto total = static_cast<std::int32_t>(static_cast<std::int64_t>(x.size()) / d);
    const std::int32_t prefill = vectors().ints(prefix(l) + "attn.n_prefill")[0];
    const auto& cache = h.layout.layers[static_cast<std::size_t>(l)];
    std::vector<float> y;
    for (std::int32_t at = 0; at < total;) {
      const std::int32_t n = at == 0 ? prefill : 1;
      h.step(n, [&](model::Forward& forward, const model::ActivationViews& a) {
        std::copy_n(x.begin() + at * d, n * d, a.x.data);
        forward.attention(h.layer(l).attention, cache);
        const auto out = values(a.y);
        y.insert(y.end(), out.begin(), out.end());
      });
      at += n;
      if (cache.ratio != 0 && (at == prefill || at == total)) {
        const std::string c = prefix(l) + "compressor.";
        const std::string when = at == prefill ? "_after_prefill" : "_end";
        expect_live_state(h, cache.compressor, cache.ratio, at, c + "kv_state" + when, c + "score_state" + when, 2e-5);
      }
    }
    EXPECT_LE(max_difference(y, vectors().floats(prefix(l) + "attn.y")), GetParam().tolerance) << "layer " << l;
    if (cache.ratio != 0) {
      auto want = vectors().floats(prefix(l) + "compressor.prefill_kv");
      if (vectors().has(prefix(l) + "compressor.decode_kv")) {
        const auto more = vectors().floats(prefix(l) + "compressor.decode_kv");
        want.insert(want.end(), more.begin(), more.end());
      }
      const auto n = static_cast<std::int32_t>(static_cast<std::int64_t>(want.size()) / h.checkpoint.config().head_dim);
      EXPECT_EQ(n, total / cache.ratio);
      EXPECT_LE(max_difference(entries(h, cache.entries, n), want), GetParam().tolerance) << "layer " << l;
    }
  }
}

TEST_P(GoldenBlocks, IndexerScoresAndSelection) {
  for (std::int32_t l = 0; l < blocks(); ++l) {
    BlockHarness h = harness();
    if (ratio(h, l) != 4) continue;
    const std::string name = prefix(l) + "indexer.";
    const auto& cache = h.layout.layers[static_cast<std::size_t>(l)];
    const auto& c = h.checkpoint.config();
    const auto x = vectors().floats(prefix(l) + "attn.x");
    const auto n = static_cast<std::int32_t>(vectors().shape(name + "qr")[0]);
    h.step(n, [&](model::Forward& forward, const model::ActivationViews& a) {
      std::copy_n(x.begin(), std::int64_t{n} * c.hidden, a.x.data);
      forward.attention(h.layer(l).attention, cache);
      EXPECT_LE(max_difference(values(a.qr), vectors().floats(name + "qr")), GetParam().tolerance);

      const auto want_scores = vectors().floats(name + "scores");
      const std::int64_t columns = vectors().shape(name + "scores")[1];
      const auto want_selected = vectors().ints(name + "topk_sorted");
      const std::int64_t k = vectors().shape(name + "topk_sorted")[1];
      const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.index_dim) * c.index_heads));
      const ops::IndexSelect select{.q = a.iq,
                                    .weights = a.iweights,
                                    .scale = scale,
                                    .heads = c.index_heads,
                                    .batch = h.batch,
                                    .keys = cache.index_keys,
                                    .selected = a.selected};
      for (std::int32_t t = 0; t < n; ++t) {
        const std::int32_t exist = (t + 1) / 4;
        std::vector<float> scores(static_cast<std::size_t>(exist));
        ops::index_scores(select, t, exist, scores.data());
        EXPECT_LE(max_difference(scores,
                                 std::span(want_scores).subspan(static_cast<std::size_t>(t * columns), scores.size())),
                  1e-4)
            << "layer " << l << " token " << t;
        std::vector<std::int32_t> got(a.selected.row(t), a.selected.row(t) + a.selected.cols);
        std::vector<std::int32_t> want(want_selected.begin() + t * k, want_selected.begin() + (t + 1) * k);
        std::erase(got, -1);
        std::erase(want, -1);
        EXPECT_EQ(got, want) << "layer " << l << " token " << t;
      }
    });
    EXPECT_LE(max_difference(entries(h, cache.index_keys, n / 4), vectors().floats(name + "kv")), GetParam().tolerance);
  }
}

TEST_P(GoldenBlocks, RouterAndExperts) {
  for (std::int32_t l = 0; l < blocks(); ++l) {
    BlockHarness h = harness();
    const auto x = vectors().floats(prefix(l) + "gate.x");
    const auto ids = vectors().ints(prefix(l) + "gate.ids");
    const auto n = static_cast<std::int32_t>(ids.size());
    h.step(
        n,
        [&](model::Forward& forward, const model::ActivationViews& a) {
          fill(a.x, x);
          forward.moe(h.layer(l).moe);
          const auto want_experts = vectors().ints(prefix(l) + "gate.indices");
          const auto want_weights = vectors().floats(prefix(l) + "gate.weights");
          const auto k = static_cast<std::size_t>(a.experts.cols);
          for (std::int32_t t = 0; t < n; ++t) {
            std::vector<std::pair<std::int32_t, float>> want;
            for (std::size_t i = 0; i < k; ++i)
              want.emplace_back(want_experts[static_cast<std::size_t>(t) * k + i],
                                want_weights[static_cast<std::size_t>(t) * k + i]);
            std::sort(want.begin(), want.end());
            for (std::size_t i = 0; i < k; ++i) {
              EXPECT_EQ(a.experts.row(t)[i], want[i].first) << "layer " << l << " token " << t;
              EXPECT_NEAR(a.expert_weights.row(t)[i], want[i].second, 1e-5) << "layer " << l << " token " << t;
            }
          }
          EXPECT_LE(max_difference(values(a.y), vectors().floats(prefix(l) + "moe.y")), GetParam().tolerance)
              << "layer " << l;
        },
        ids);
  }
}

TEST_P(GoldenBlocks, OneExpertAndTheSharedOne) {
  for (std::int32_t l = 0; l < blocks(); ++l) {
    const BlockHarness h = harness();
    const std::string name = prefix(l) + "expert1.";
    const auto x = vectors().floats(name + "x");
    const auto weight = vectors().floats(name + "weight");
    const std::int64_t d = h.checkpoint.config().hidden;
    const auto n = static_cast<std::int64_t>(weight.size());
    const float limit = h.checkpoint.config().swiglu_limit;
    const bool quantise = GetParam().numerics.quantise;
    std::vector<float> y(x.size());
    const auto run = [&](const ops::ExpertWeights& e, const float* w) {
      ops::ref::run_expert(e, mat(x, n, d), w, limit, quantise, ops::Carrier::kF32, mat(y, n, d));
      return y;
    };
    const auto& moe = h.layer(l).moe;
    EXPECT_LE(max_difference(run(moe.routed[1], nullptr), vectors().floats(name + "y")), GetParam().tolerance);
    EXPECT_LE(max_difference(run(moe.routed[1], weight.data()), vectors().floats(name + "y_weighted")),
              GetParam().tolerance);
    EXPECT_LE(max_difference(run(moe.shared, nullptr), vectors().floats(prefix(l) + "shared_expert.y")),
              GetParam().tolerance);
  }
}

TEST_P(GoldenBlocks, OutputProjection) {
  for (std::int32_t l = 0; l < blocks(); ++l) {
    BlockHarness h = harness();
    const auto x = vectors().floats(prefix(l) + "o_proj.x");
    const auto& w = h.layer(l).attention;
    const std::int64_t n = vectors().shape(prefix(l) + "o_proj.x")[0];
    std::vector<float> z(static_cast<std::size_t>(n * w.wo_a.rows));
    std::vector<float> y(static_cast<std::size_t>(n * w.wo_b.rows));
    h.backend->linear({.x = mat(x, n, static_cast<std::int64_t>(x.size()) / n),
                       .w = w.wo_a,
                       .y = mat(z, n, w.wo_a.rows),
                       .groups = h.checkpoint.config().o_groups});
    h.backend->linear({.x = mat(z, n, w.wo_a.rows),
                       .w = w.wo_b,
                       .y = mat(y, n, w.wo_b.rows),
                       .quantise_x = GetParam().numerics.quantise && w.wo_b.quantised()});
    EXPECT_LE(max_difference(y, vectors().floats(prefix(l) + "o_proj.y")), GetParam().tolerance) << "layer " << l;
  }
}

TEST_P(GoldenBlocks, HyperConnectionsAndFinalNorm) {
  BlockHarness h = harness();
  const std::string site = GetParam().model + "/mhc_attn_layer0.";
  const auto& c = h.checkpoint.config();
  const auto x = vectors().floats(site + "x");
  const std::int64_t d = c.hidden;
  const std::int64_t n = vectors().shape(site + "x")[0];
  std::vector<float> u(static_cast<std::size_t>(n * d));
  std::vector<float> post(static_cast<std::size_t>(n * 4));
  std::vector<float> comb(static_cast<std::size_t>(n * 16));
  std::vector<float> out(x.size());
  const auto sub = vectors().floats(site + "sub");
  h.backend->hc_pre({.streams = mat(x, n, 4 * d),
                     .site = h.weights.layers[0].attn_hc,
                     .norm_weight = nullptr,
                     .x = mat(u, n, d),
                     .post = mat(post, n, 4),
                     .comb = mat(comb, n, 16),
                     .sinkhorn_iters = c.sinkhorn_iters,
                     .norm_eps = c.norm_eps,
                     .hc_eps = c.hc_eps});
  h.backend->hc_post({.y = mat(sub, n, d),
                      .streams = mat(x, n, 4 * d),
                      .post = mat(post, n, 4),
                      .comb = mat(comb, n, 16),
                      .out = mat(out, n, 4 * d)});
  EXPECT_LE(max_difference(u, vectors().floats(site + "y")), 1e-5);
  EXPECT_LE(max_difference(post, vectors().floats(site + "post")), 1e-5);
  EXPECT_LE(max_difference(comb, vectors().floats(site + "comb")), 1e-5);
  EXPECT_LE(max_difference(out, vectors().floats(site + "out")), 1e-5);

  const std::string head = GetParam().model + "/hc_head.";
  const auto streams = vectors().floats(head + "x");
  const std::int64_t rows = vectors().shape(head + "x")[0];
  std::vector<float> y(static_cast<std::size_t>(rows * d));
  h.backend->hc_head({.streams = mat(streams, rows, 4 * d),
                      .site = h.weights.hc_head,
                      .norm_weight = nullptr,
                      .y = mat(y, rows, d),
                      .norm_eps = c.norm_eps,
                      .hc_eps = c.hc_eps});
  EXPECT_LE(max_difference(y, vectors().floats(head + "y")), 1e-5);

  const std::string norm = GetParam().model + "/rmsnorm_final.";
  const auto nx = vectors().floats(norm + "x");
  std::vector<float> ny(nx.size());
  const auto norm_rows = static_cast<std::int64_t>(nx.size()) / d;
  h.backend->rms_norm({.x = mat(nx, norm_rows, d), .w = h.weights.norm, .y = mat(ny, norm_rows, d), .eps = c.norm_eps});
  EXPECT_LE(max_difference(ny, vectors().floats(norm + "y")), 1e-5);
}

TEST_P(GoldenBlocks, WholeLayers) {
  for (std::int32_t l = 0; l < blocks(); ++l) {
    BlockHarness h = harness();
    const auto x = vectors().floats(prefix(l) + "block.x");
    const auto ids = vectors().ints(prefix(l) + "block.ids");
    h.step(
        static_cast<std::int32_t>(ids.size()),
        [&](model::Forward& forward, const model::ActivationViews& a) {
          fill(a.streams, x);
          forward.layer(h.layer(l), h.layout.layers[static_cast<std::size_t>(l)], a.streams);
          EXPECT_LE(max_difference(values(a.streams), vectors().floats(prefix(l) + "block.y")), GetParam().tolerance)
              << "layer " << l;
        },
        ids);
  }
}

TEST_P(GoldenBlocks, MtpBlock) {
  Session s(GetParam().model, GetParam().backend, {.numerics = GetParam().numerics});
  const std::string name = prefix(s.model->config().layers) + "mtp.";
  const auto streams = vectors().floats(name + "streams");
  const auto ids = vectors().ints(name + "ids");
  const auto n = static_cast<std::int64_t>(ids.size());
  ASSERT_TRUE(s.sequence->reserve(static_cast<std::int32_t>(n)));
  const auto logits =
      s.draft(ids, 0, mat(streams, n, static_cast<std::int64_t>(streams.size()) / n), model::Rows::kAll);
  EXPECT_LE(max_difference(logits, vectors().floats(name + "logits")), 5 * GetParam().tolerance);
  EXPECT_LE(max_difference(values(s.model->draft_streams()), vectors().floats(name + "streams_out")),
            GetParam().tolerance);
}

// 2e-5: f32 sums in another order. The quantised model's vectors were chosen free of rounding flips in these blocks.
INSTANTIATE_TEST_SUITE_P(Backends, GoldenBlocks,
                         ::testing::Values(Case{"micro-random-fp", "ref", ops::kFloat, 2e-5},
                                           Case{"micro-random", "ref", ops::kOfficial, 2e-5},
                                           Case{"micro-random-fp", "cpu", ops::kFloat, 2e-5},
                                           Case{"micro-random", "cpu", ops::kOfficial, 2e-5}),
                         [](const auto& param_info) {
                           std::string name = param_info.param.model + "_" + param_info.param.backend;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace fathom::testing
