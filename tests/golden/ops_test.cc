// Golden vectors of single operations: the reference answers to them; the CPU backend answers to the reference.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/attention/sparse_attention.h"
#include "ops/hyper_connection/hyper_connection.h"
#include "ops/linear/linear.h"
#include "ops/moe/experts.h"
#include "ops/moe/route.h"
#include "ops/norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "quant/block.h"
#include "quant/e4m3.h"
#include "support/golden.h"

namespace fathom::testing {
namespace {

const Vectors& vectors() {
  static const Vectors v("ops.safetensors");
  return v;
}

std::int64_t rows_of(const std::string& name) { return vectors().shape(name)[0]; }

void expect_quantised_like(const std::string& name, int block) {
  std::vector<float> x = vectors().floats(name + ".x");
  const auto shape = vectors().shape(name + ".x");
  for (std::int64_t r = 0; r < shape[0]; ++r) {
    const std::span<float> row(x.data() + r * shape[1], static_cast<std::size_t>(shape[1]));
    if (block == quant::kFp4Block) {
      quant::fp4_round_trip(row);
    } else {
      quant::fp8_round_trip(row, block);
    }
  }
  EXPECT_EQ(max_difference(x, vectors().floats(name + ".y")), 0) << name;
}

TEST(GoldenOps, ActivationQuantisersAreExact) {
  expect_quantised_like("act_quant128", 128);
  expect_quantised_like("act_quant64", 64);
  expect_quantised_like("act_quant_ties", 64);
  expect_quantised_like("fp4_act_quant32", quant::kFp4Block);
  expect_quantised_like("fp4_act_quant_ties", quant::kFp4Block);
}

TEST(GoldenOps, E4m3ValuesOfEveryByte) {
  EXPECT_EQ(max_difference(vectors().floats("e4m3_all_values"), quant::kE4m3Values), 0);
}

TEST(GoldenOps, Hadamard) {
  for (const std::string name : {"hadamard64", "hadamard128"}) {
    std::vector<float> x = vectors().floats(name + ".x");
    const auto n = static_cast<std::size_t>(vectors().shape(name + ".x")[1]);
    for (std::size_t at = 0; at < x.size(); at += n) quant::hadamard(std::span(x).subspan(at, n));
    EXPECT_LT(max_difference(x, vectors().floats(name + ".y")), 1e-6) << name;
  }
}

TEST(GoldenOps, QuantisedLinearsDequantiseExactlyAndMultiply) {
  for (const std::string name : {"fp8_linear", "fp4_linear"}) {
    const bool fp4 = name == "fp4_linear";
    const auto stored = vectors().shape(name + ".weight");
    const ops::Weight w{.dtype = fp4 ? DType::kFp4x2 : DType::kF8E4M3,
                        .data = vectors().bytes(name + ".weight").data(),
                        .rows = stored[0],
                        .cols = fp4 ? 2 * stored[1] : stored[1],
                        .scale_dtype = DType::kF8E8M0,
                        .scales = vectors().bytes(name + ".scale").data()};
    std::vector<float> dense(static_cast<std::size_t>(w.rows * w.cols));
    for (std::int64_t r = 0; r < w.rows; ++r) ops::dequantise_row(w, r, dense.data() + r * w.cols);
    EXPECT_EQ(max_difference(dense, vectors().floats(name + ".w_dequant")), 0) << name;

    const std::vector<float> x = vectors().floats(name + ".x");
    const std::int64_t n = rows_of(name + ".x");
    std::vector<float> y(static_cast<std::size_t>(n * w.rows));
    ops::ref::run(ops::Linear{.x = mat(x, n, w.cols), .w = w, .y = mat(y, n, w.rows), .quantise_x = true});
    EXPECT_LT(max_difference(y, vectors().floats(name + ".y")), 2e-5) << name;
  }
}

TEST(GoldenOps, AttentionOverExplicitRowsWithSinkAndGaps) {
  const auto q = vectors().floats("sparse_attn.q");
  const auto kv = vectors().floats("sparse_attn.kv");
  const auto sink = vectors().floats("sparse_attn.sink");
  const auto ids = vectors().ints("sparse_attn.topk_idxs");
  const float scale = vectors().floats("sparse_attn.scale")[0];
  const auto shape = vectors().shape("sparse_attn.q");
  const std::int64_t per_token = vectors().shape("sparse_attn.topk_idxs")[1];
  std::vector<float> o(q.size());
  for (std::int64_t t = 0; t < shape[0]; ++t) {
    std::vector<const float*> rows;
    for (std::int64_t k = 0; k < per_token; ++k) {
      const std::int32_t id = ids[static_cast<std::size_t>(t * per_token + k)];
      if (id >= 0) rows.push_back(kv.data() + id * shape[2]);
    }
    for (std::int64_t h = 0; h < shape[1]; ++h) {
      const std::int64_t at = (t * shape[1] + h) * shape[2];
      ops::attend_head(q.data() + at, rows.data(), static_cast<std::int64_t>(rows.size()), shape[2],
                       sink[static_cast<std::size_t>(h)], scale, ops::Carrier::kF32, o.data() + at);
    }
  }
  EXPECT_LT(max_difference(o, vectors().floats("sparse_attn.o")), 2e-6);
}

// model.md 4.3: scores 1 and 2, sink 0.5, values 1 and 3. Two dims: the query reads the first, the value is the second.
TEST(GoldenOps, AttentionCheckValueOfTheSpecification) {
  const float q[] = {1, 0};
  const float first[] = {1, 1};
  const float second[] = {2, 3};
  const float* rows[] = {first, second};
  float o[2] = {};
  ops::attend_head(q, rows, 2, 2, 0.5F, 1.0F, ops::Carrier::kF32, o);
  EXPECT_NEAR(o[1], 2.11681906F, 1e-6);
  ops::attend_head(q, rows, 0, 2, 0.5F, 1.0F, ops::Carrier::kF32, o);
  EXPECT_EQ(o[1], 0);
}

TEST(GoldenOps, SplitSinkhorn) {
  const auto mixes = vectors().floats("hc_split_sinkhorn.mixes");
  const auto scale = vectors().floats("hc_split_sinkhorn.scale");
  const auto base = vectors().floats("hc_split_sinkhorn.base");
  const std::int64_t n = rows_of("hc_split_sinkhorn.mixes");
  std::vector<float> pre(static_cast<std::size_t>(4 * n));
  std::vector<float> post(pre.size());
  std::vector<float> comb(4 * pre.size());
  for (std::int64_t t = 0; t < n; ++t) {
    ops::split_sinkhorn(mixes.data() + 24 * t, {.fn = nullptr, .base = base.data(), .scale = scale.data()}, 4, 20,
                        1e-6F, pre.data() + 4 * t, post.data() + 4 * t, comb.data() + 16 * t);
  }
  EXPECT_LT(max_difference(pre, vectors().floats("hc_split_sinkhorn.pre")), 1e-6);
  EXPECT_LT(max_difference(post, vectors().floats("hc_split_sinkhorn.post")), 1e-6);
  EXPECT_LT(max_difference(comb, vectors().floats("hc_split_sinkhorn.comb")), 2e-6);
}

TEST(GoldenOps, SinkhornCheckValuesOfTheSpecification) {
  const float a[16] = {2, 0, -1, 1, 0, 1, 0.5F, -2, -1, 3, 0, 0, 1, -1, 2, 0.25F};
  float mixes[24] = {};
  std::copy(a, a + 16, mixes + 8);
  const float base[24] = {};
  const float scale[3] = {1, 1, 1};
  float pre[4];
  float post[4];
  float comb[16];
  ops::split_sinkhorn(mixes, {.fn = nullptr, .base = base, .scale = scale}, 4, 20, 1e-6F, pre, post, comb);
  const float want[16] = {0.49772886F, 0.02695563F, 0.02220822F, 0.45310630F, 0.25639637F, 0.27889852F,
                          0.37883464F, 0.08586947F, 0.03124083F, 0.68252071F, 0.07610125F, 0.21013620F,
                          0.21463294F, 0.01162414F, 0.52285489F, 0.25088703F};
  EXPECT_LT(max_difference(comb, want), 1e-6);

  // The sum runs over the first index: streams 1, 10, 100, 1000.
  const std::vector<float> streams = {1, 10, 100, 1000};
  const std::vector<float> zero(1, 0.0F);
  std::vector<float> out(4);
  const std::vector<float> no_post(4, 0.0F);
  const std::vector<float> mixing(comb, comb + 16);
  ops::ref::run(ops::HcPost{.y = mat(zero, 1, 1),
                            .streams = mat(streams, 1, 4),
                            .post = mat(no_post, 1, 4),
                            .comb = mat(mixing, 1, 16),
                            .out = mat(out, 1, 4)});
  const float mixed[4] = {220.818717F, 82.692150F, 534.275573F, 273.212453F};
  EXPECT_LT(max_difference(out, mixed), 1e-3);
}

TEST(GoldenOps, RopeFrequenciesOfTheSpecification) {
  const ops::Yarn yarn{.factor = 16, .beta_fast = 32, .beta_slow = 1, .original_positions = 65536};
  const auto plain = ops::rope_frequencies(10000, 64, {});
  const auto comp = ops::rope_frequencies(160000, 64, yarn);
  EXPECT_FLOAT_EQ(plain[1], 0.749894209F);
  EXPECT_FLOAT_EQ(plain[31], 0.000133352143F);
  EXPECT_FLOAT_EQ(comp[15], 0.00363553858F);
  EXPECT_FLOAT_EQ(comp[16], 0.002265625F);
  EXPECT_FLOAT_EQ(comp[24], 1.953125e-05F);
  EXPECT_FLOAT_EQ(comp[25], 5.37231267e-06F);
  EXPECT_FLOAT_EQ(comp[31], 5.68052904e-07F);
  // The f32 product of a long position: exact arithmetic would give cos 0.4065 (model.md 3.1).
  float cos = 0;
  float sin = 0;
  ops::rope_angles(1'000'003, &comp[1], 1, &cos, &sin);
  EXPECT_NEAR(cos, 0.3696F, 1e-4);
  // YaRN whose slow correction would pass the last dimension is bounded by it, and lo == hi is no division by zero.
  for (const float f : ops::rope_frequencies(160000, 64, {.factor = 16, .original_positions = 2'000'000'000})) {
    EXPECT_TRUE(std::isfinite(f) && f > 0);
  }
}

TEST(GoldenOps, RopeOfBothModels) {
  for (const std::string model : {"micro-random-fp", "micro-random"}) {
    const auto& c = open_model(model).config();
    for (const std::string table : {"rope_plain", "rope_yarn_compress"}) {
      const std::string name = model + "/" + table;
      const bool plain = table == "rope_plain";
      const ops::Yarn yarn{.factor = c.yarn.factor,
                           .beta_fast = c.yarn.beta_fast,
                           .beta_slow = c.yarn.beta_slow,
                           .original_positions = plain ? 0 : c.yarn.original_positions};
      const auto f = ops::rope_frequencies(plain ? c.rope_theta : c.compress_rope_theta, c.rope_dim, yarn);
      const auto positions = vectors().ints(name + ".pos");
      const auto n = static_cast<std::int64_t>(positions.size());
      const auto half = static_cast<std::int64_t>(f.size());
      std::vector<float> cos(static_cast<std::size_t>(n * half));
      std::vector<float> sin(cos.size());
      ops::ref::run(ops::RopeTable{
          .positions = positions.data(), .frequencies = f.data(), .cos = mat(cos, n, half), .sin = mat(sin, n, half)});
      EXPECT_LT(max_difference(cos, vectors().floats(name + ".cos")), 1e-6) << name;
      EXPECT_LT(max_difference(sin, vectors().floats(name + ".sin")), 1e-6) << name;

      const auto shape = vectors().shape(name + ".x");
      for (const auto& [suffix, turn] :
           {std::pair(".fwd", ops::Turn::kForward), std::pair(".inv", ops::Turn::kInverse)}) {
        std::vector<float> x = vectors().floats(name + ".x");
        for (std::int64_t i = 0; i < shape[0] * shape[1]; ++i) {
          const std::int64_t t = i / shape[1];
          ops::rotate(x.data() + i * shape[2], shape[2], &cos[static_cast<std::size_t>(t * half)],
                      &sin[static_cast<std::size_t>(t * half)], half, turn, ops::Carrier::kF32);
        }
        EXPECT_LT(max_difference(x, vectors().floats(name + suffix)), 2e-6) << name << suffix;
      }
    }
  }
}

TEST(GoldenOps, RouterCheckValuesOfTheSpecification) {
  const std::vector<float> g = {-3, 0, 0.7F, 2, 5, 25};
  const std::vector<float> bias = {1.5F, 0, 0, 0, -2, 0};
  std::vector<std::int32_t> experts(3);
  std::vector<float> weights(3);
  ops::ref::run(ops::Route{.logits = mat(g, 1, 6),
                           .bias = bias.data(),
                           .route_scale = 1.5F,
                           .experts = mat(experts, 1, 3),
                           .weights = mat(weights, 1, 3)});
  EXPECT_EQ(experts, (std::vector<std::int32_t>{0, 3, 5}));
  EXPECT_NEAR(weights[2], 1.12295210F, 1e-6);
  EXPECT_NEAR(weights[0], 0.04950543F, 1e-6);
  EXPECT_NEAR(weights[1], 0.32754247F, 1e-6);
}

// model.md 8.2: silu and both clamps, the gate from above only, in routed and in shared experts alike.
TEST(GoldenOps, SwigluClampCheckValuesOfTheSpecification) {
  const auto through = [](float a, float b, const float* weight) {
    const float one[] = {1};
    const ops::Weight w1{.dtype = DType::kF32, .data = reinterpret_cast<const std::byte*>(&a), .rows = 1, .cols = 1};
    const ops::Weight w3{.dtype = DType::kF32, .data = reinterpret_cast<const std::byte*>(&b), .rows = 1, .cols = 1};
    const ops::Weight w2{.dtype = DType::kF32, .data = reinterpret_cast<const std::byte*>(one), .rows = 1, .cols = 1};
    float y = 0;
    const Mat<const float> x{one, 1, 1, 1};
    ops::ref::run_expert({.w1 = w1, .w3 = w3, .w2 = w2}, x, weight, 10, false, ops::Carrier::kF32,
                         Mat<float>{&y, 1, 1, 1});
    return y;
  };
  const float weight = 2;
  EXPECT_NEAR(through(12, -15, nullptr), -99.9954602F, 1e-4);
  EXPECT_NEAR(through(12, -15, &weight), 2 * -99.9954602F, 2e-4);
  EXPECT_NEAR(through(-50, 3, nullptr) / -2.89312477e-20F, 1.0F, 1e-5);
}

}  // namespace
}  // namespace fathom::testing
