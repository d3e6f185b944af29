// Which weights a device may pack for FP8 tensor units: those whose inputs every product quantises, where sums need not be
// f32. A flag too many, and inputs that are not quantised would meet packed weights.
#include <gtest/gtest.h>

#include <utility>

#include "model/weights.h"
#include "support/golden.h"

namespace fathom::testing {
namespace {

model::Weights weights_of(const std::string& name, ops::Numerics numerics) {
  static const auto backend = make_backend("ref");  // outlives the weights, which it reads where they are
  auto loaded = model::load_weights(open_model(name), *backend, numerics);
  EXPECT_TRUE(loaded) << loaded.error().what;
  return std::move(*loaded);
}

// Whether all the matrices of an expert say `packed`.
bool all(const ops::ExpertWeights& e, bool packed) {
  return e.w1.quantised_inputs == packed && e.w3.quantised_inputs == packed && e.w2.quantised_inputs == packed;
}

TEST(QuantisedInputs, ArePromisedOfProjectionsAndExpertsUnderOfficialBf16) {
  const model::Weights w = weights_of("fathom-tiny", ops::kOfficialBf16);
  for (const model::LayerWeights& layer : w.layers) {
    const model::AttentionWeights& a = layer.attention;
    for (const ops::Weight* p : {&a.wq_a, &a.wq_b, &a.wkv, &a.wo_b}) EXPECT_TRUE(p->quantised_inputs);
    EXPECT_TRUE(a.wo_a.quantised() && !a.wo_a.quantised_inputs) << "model.md 4.4: its input stays as it is";
    for (const ops::Weight* p : {&a.compressor.wkv, &a.compressor.wgate, &a.indexer.weights_proj, &layer.moe.gate})
      EXPECT_FALSE(p->quantised_inputs);
    EXPECT_EQ(a.indexer.wq_b.present(), a.indexer.wq_b.quantised_inputs);
    EXPECT_TRUE(all(layer.moe.shared, true));
    for (const ops::ExpertWeights& e : layer.moe.routed) EXPECT_TRUE(all(e, true));
  }
  EXPECT_FALSE(w.embed.quantised_inputs || w.head.quantised_inputs);
}

TEST(QuantisedInputs, AreNotPromisedWhereSumsAreF32OrWeightsAreNotQuantised) {
  for (const ops::Numerics n : {ops::kFloat, ops::kOfficial}) {
    for (const model::LayerWeights& layer : weights_of("fathom-tiny", n).layers) {
      EXPECT_FALSE(layer.attention.wq_b.quantised_inputs || layer.attention.wo_b.quantised_inputs);
      EXPECT_TRUE(all(layer.moe.shared, false) && all(layer.moe.routed.front(), false));
    }
  }
  for (const model::LayerWeights& layer : weights_of("micro-random-fp", ops::kOfficialBf16).layers) {
    EXPECT_FALSE(layer.attention.wq_b.quantised_inputs);
    EXPECT_TRUE(all(layer.moe.shared, false) && all(layer.moe.routed.front(), false));
  }
}

}  // namespace
}  // namespace fathom::testing
