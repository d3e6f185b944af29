// vllm#51946, #43416: expert scales whose E8M0 bytes were read as numbers (exponent 120 became 120.0) loaded, served,
// and made token salad. The class: one model, stored in any format that holds it exactly, gives the same logits to the
// byte.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "cache/sequence.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/synthetic.h"
#include "checkpoint/test_files.h"
#include "model/model.h"
#include "quant/e2m1.h"
#include "quant/e4m3.h"
#include "quant/ue8m0.h"
#include "support/golden.h"

namespace fathom::testing {
namespace {

using checkpoint::Checkpoint;
using checkpoint::LooseCheckpoint;
using checkpoint::LooseTensor;

// Logits of 40 tokens, all rows.
std::vector<float> logits_of(const Checkpoint& c, const std::string& backend_name, ops::Numerics numerics) {
  const auto backend = make_backend(backend_name);
  const auto model =
      model::Model::load(c, *backend, {.numerics = numerics, .max_step_tokens = 40, .max_logit_rows = 40}).value();
  cache::Sequence sequence = cache::Sequence::create(model->layout(), *backend).value();
  std::vector<std::int32_t> ids(40);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>((i * 37 + 5) % static_cast<std::size_t>(c.config().vocab));
  }
  EXPECT_TRUE(sequence.reserve(40));
  const model::Chunk chunk{
      .ids = ids, .start = 0, .slot = sequence.slot(), .pages = sequence.pages(), .logits = model::Rows::kAll};
  return fetch(*backend, model->forward(std::span(&chunk, 1)).value());
}

std::uint8_t byte_at(const LooseTensor& t, std::size_t i) { return static_cast<std::uint8_t>(t.bytes[i]); }

// FP8 scales as Base checkpoints keep them: F32 of the same values.
void scales_to_f32(LooseCheckpoint& c) {
  for (LooseTensor& t : c.tensors) {
    if (!t.name.ends_with(".scale") || t.name.find(".experts.") != std::string::npos) continue;
    std::string wide;
    for (std::size_t i = 0; i < t.bytes.size(); ++i) {
      const float v = quant::ue8m0_value(byte_at(t, i));
      wide.append(reinterpret_cast<const char*>(&v), 4);
    }
    t.dtype = DType::kF32;
    t.bytes = wide;
  }
}

// FP4 experts as FP8 with one scale per 128 x 128, as the official converter does it (checkpoint.md 5.5).
void experts_to_fp8(LooseCheckpoint& c, bool f32_scales) {
  for (LooseTensor& w : c.tensors) {
    if (w.dtype != DType::kFp4x2 || !w.name.ends_with("weight")) continue;
    LooseTensor& s = c.at(w.name.substr(0, w.name.size() - 6) + "scale");
    const auto rows = static_cast<std::size_t>(w.shape[0]);
    const auto cols = 2 * static_cast<std::size_t>(w.shape[1]);
    ASSERT_EQ(rows, 128U);
    ASSERT_EQ(cols, 128U);
    std::uint8_t most = 0;
    for (std::size_t i = 0; i < s.bytes.size(); ++i) most = std::max(most, byte_at(s, i));
    const float block_scale = quant::ue8m0_value(most) / 64;
    std::string codes(rows * cols, '\0');
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t k = 0; k < cols; ++k) {
        const std::uint8_t pair = byte_at(w, (r * cols + k) / 2);
        const float value = quant::kE2m1Values[k % 2 == 0 ? pair & 15U : pair >> 4U] *
                            quant::ue8m0_value(byte_at(s, r * (cols / 32) + k / 32));
        const std::uint8_t code = quant::to_e4m3(value / block_scale);
        ASSERT_EQ(quant::kE4m3Values[code] * block_scale, value) << "the conversion is exact, or the test says nothing";
        codes[r * cols + k] = static_cast<char>(code);
      }
    }
    w = {w.name, DType::kF8E4M3, {128, 128}, codes};
    if (f32_scales) {
      s = {s.name, DType::kF32, {1, 1}, std::string(reinterpret_cast<const char*>(&block_scale), 4)};
    } else {
      s = {s.name, DType::kF8E8M0, {1, 1}, std::string(1, static_cast<char>(most - 6))};
    }
  }
}

class ScaleFormat : public ::testing::TestWithParam<std::string> {
 protected:
  // To the byte, unless `other_kernels`: the CPU's FP4 and FP8 products round their partial sums in different places.
  static void expect_same_logits(const LooseCheckpoint& converted, bool other_kernels = false) {
    const checkpoint::Folder folder("scale-format");
    converted.write(folder);
    const auto c = Checkpoint::open(folder.path());
    ASSERT_TRUE(c) << c.error().what;
    for (const ops::Numerics& numerics : {ops::kFloat, ops::kOfficial}) {
      const auto a = logits_of(open_model("micro-random"), GetParam(), numerics);
      const auto b = logits_of(*c, GetParam(), numerics);
      ASSERT_EQ(a.size(), b.size());
      if (other_kernels && GetParam() == "cpu") {
        for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4) << name_of(numerics) << " " << i;
      } else {
        EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << name_of(numerics);
      }
    }
  }
};

TEST_P(ScaleFormat, F32ScalesAreTheSameModel) {
  LooseCheckpoint c = LooseCheckpoint::load("tests/data/models/micro-random");
  scales_to_f32(c);
  expect_same_logits(c);
}

TEST_P(ScaleFormat, Fp8ExpertsAreTheSameModel) {
  LooseCheckpoint c = LooseCheckpoint::load("tests/data/models/micro-random");
  experts_to_fp8(c, /*f32_scales=*/false);
  expect_same_logits(c, /*other_kernels=*/true);
}

TEST_P(ScaleFormat, BaseLayoutIsTheSameModel) {
  LooseCheckpoint c = LooseCheckpoint::load("tests/data/models/micro-random");
  scales_to_f32(c);
  experts_to_fp8(c, /*f32_scales=*/true);
  expect_same_logits(c, /*other_kernels=*/true);
}

INSTANTIATE_TEST_SUITE_P(Backends, ScaleFormat, ::testing::ValuesIn(backends()),
                         [](const ::testing::TestParamInfo<std::string>& name) { return name.param; });

// Random weights of every published kind stay in range all the way to the logits.
class SyntheticModel : public ::testing::TestWithParam<std::string> {};

TEST_P(SyntheticModel, GivesFiniteLogitsOfSensibleSize) {
  const checkpoint::Geometry g = *checkpoint::published(GetParam());
  checkpoint::ModelConfig c = *checkpoint::shrunk(g.config, 6, 8);
  c.vocab = 512;
  c.hidden = 256;
  c.heads = 4;
  c.head_dim = 128;
  c.q_rank = 128;
  c.o_groups = 2;
  c.o_rank = 128;
  c.expert_inner = 128;
  c.index_heads = 4;
  c.draft = {};
  ThreadPool pool(2);
  const auto weights = checkpoint::synthesize({c, g.storage, 3}, pool);
  ASSERT_TRUE(weights) << weights.error().what;
  const auto logits = logits_of(*weights, "cpu", ops::kOfficial);
  double square = 0;
  for (const float v : logits) {
    ASSERT_TRUE(std::isfinite(v));
    square += static_cast<double>(v) * v;
  }
  const double rms = std::sqrt(square / static_cast<double>(logits.size()));
  EXPECT_GT(rms, 0.1);
  EXPECT_LT(rms, 10);
}

INSTANTIATE_TEST_SUITE_P(All, SyntheticModel,
                         ::testing::Values("v4-flash", "v4-pro", "v4-flash-0731", "v4-flash-base", "v4-pro-base"));

}  // namespace
}  // namespace fathom::testing
