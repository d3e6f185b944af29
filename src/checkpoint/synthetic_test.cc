#include "checkpoint/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "checkpoint/content.h"
#include "checkpoint/random_weights.h"
#include "checkpoint/test_files.h"
#include "quant/bf16.h"
#include "quant/e2m1.h"
#include "quant/e4m3.h"
#include "quant/ue8m0.h"

namespace fathom::checkpoint {
namespace {

using testing::HasSubstr;

// Every kind of layer and tensor, in a few megabytes.
SyntheticSpec small(std::string_view name = "v4-flash-0731") {
  Geometry g = *published(name);
  ModelConfig c = *shrunk(g.config, 4, 8);
  c.vocab = 512;
  c.hidden = 128;
  c.heads = 4;
  c.head_dim = 128;
  c.q_rank = 128;
  c.o_groups = 2;
  c.o_rank = 128;
  c.expert_inner = 128;
  c.index_heads = 4;
  if (c.draft.kind == DraftKind::kDspark) c.draft.noise_token = 500;
  return {.config = c, .storage = g.storage, .seed = 7};
}

double mean_square(const Checkpoint& c, const std::string& module) {
  const Tensor& w = *c.find(module + ".weight");
  const Tensor* s = c.find(module + ".scale");
  double sum = 0;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(w.bytes.data());
  const std::int64_t in = w.shape[1] * (w.dtype == DType::kFp4x2 ? 2 : 1);
  for (std::int64_t i = 0; i < w.shape[0] * in; ++i) {
    double v = 0;
    const std::int64_t row = i / in;
    const std::int64_t col = i % in;
    switch (w.dtype) {
      case DType::kBf16: {
        quant::Bf16 b;
        std::memcpy(&b, bytes + 2 * i, 2);
        v = quant::to_f32(b);
        break;
      }
      case DType::kFp4x2: v = quant::kE2m1Values[(bytes[i / 2] >> (4 * (i % 2))) & 15U]; break;
      default: v = quant::kE4m3Values[bytes[i]];
    }
    if (s != nullptr) {
      const std::int64_t at =
          w.dtype == DType::kFp4x2 ? row * s->shape[1] + col / 32 : row / 128 * s->shape[1] + col / 128;
      float scale = 0;
      if (s->dtype == DType::kF8E8M0)
        scale = quant::ue8m0_value(static_cast<std::uint8_t>(s->bytes[static_cast<std::size_t>(at)]));
      else std::memcpy(&scale, s->bytes.data() + 4 * at, 4);
      v *= scale;
    }
    sum += v * v;
  }
  return sum / static_cast<double>(w.shape[0] * in);
}

void expect_same(const Checkpoint& a, const Checkpoint& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (std::size_t i = 0; i < a.tensors().size(); ++i) {
    const Tensor& x = a.tensors()[i];
    const Tensor& y = b.tensors()[i];
    ASSERT_EQ(x.name, y.name);
    EXPECT_EQ(x.dtype, y.dtype) << x.name;
    EXPECT_EQ(x.shape, y.shape) << x.name;
    EXPECT_TRUE(std::equal(x.bytes.begin(), x.bytes.end(), y.bytes.begin(), y.bytes.end())) << x.name;
  }
}

class Variants : public testing::TestWithParam<std::string_view> {};

TEST_P(Variants, OnDiskAndInMemoryAreTheSameForAnyThreads) {
  const SyntheticSpec spec = small(GetParam());
  const Folder folder("synthetic");
  ThreadPool one(1);
  ThreadPool three(3);
  std::uint64_t last = 0;
  const auto wrote = write_synthetic(spec, folder.path(), three, Payload::kRandom,
                                     [&](std::uint64_t done, std::uint64_t) { last = done; });
  ASSERT_TRUE(wrote) << wrote.error().what;
  EXPECT_EQ(last, synthetic_bytes(spec));
  auto memory = synthesize(spec, one);
  ASSERT_TRUE(memory) << memory.error().what;
  auto disk = Checkpoint::open(folder.path());
  ASSERT_TRUE(disk) << disk.error().what;
  EXPECT_EQ(disk->config(), spec.config);
  EXPECT_EQ(disk->copied_bytes(), 0U);  // laid out as published, so nothing is misaligned
  expect_same(*memory, *disk);
  EXPECT_EQ(disk->tensor_bytes(), synthetic_bytes(spec));
  Problems problems;
  check_values(*disk, three, problems, {});
  EXPECT_TRUE(problems.empty()) << problems.summary();
}

INSTANTIATE_TEST_SUITE_P(All, Variants,
                         testing::Values("v4-flash", "v4-pro", "v4-flash-0731", "v4-flash-base", "v4-pro-base"));

TEST(Synthetic, MatricesKeepTheSizeOfWhatGoesThrough) {
  ThreadPool pool(1);
  for (const char* name : {"v4-flash", "v4-flash-base"}) {
    auto c = synthesize(small(name), pool);
    ASSERT_TRUE(c) << c.error().what;
    for (const char* module :
         {"layers.2.attn.wq_b", "layers.2.ffn.experts.3.w1", "layers.2.ffn.shared_experts.w2", "head"}) {
      // Variance 1/inputs; power-of-two scales may miss by up to 2 either way.
      const double gain = mean_square(*c, module) * 128;
      EXPECT_GT(gain, 0.25) << name << " " << module;
      EXPECT_LT(gain, 4.0) << name << " " << module;
    }
  }
}

// Beyond what one piece (1 MiB) and one write (64 MiB) hold.
TEST(Synthetic, LargeTensorsAreTheSameOnDisk) {
  SyntheticSpec spec = small("v4-flash");
  spec.config = *shrunk(spec.config, 1, 6);
  spec.config.vocab = 17001;
  spec.config.hidden = 2048;
  const Folder folder("large");
  std::filesystem::remove(folder.path());
  ThreadPool pool(2);
  const auto wrote = write_synthetic(spec, folder.path(), pool);
  ASSERT_TRUE(wrote) << wrote.error().what;
  auto memory = synthesize(spec, pool);
  auto disk = Checkpoint::open(folder.path());
  ASSERT_TRUE(memory && disk);
  EXPECT_GT(disk->find("embed.weight")->bytes.size(), std::size_t{64} << 20);
  expect_same(*memory, *disk);
}

TEST(Synthetic, ExpertsCanShareTheBytesOfOne) {
  SyntheticSpec spec = small();
  ThreadPool pool(2);
  const auto each = synthesize(spec, pool);
  spec.one_expert = true;
  std::uint64_t made = 0;
  std::uint64_t all = 0;
  const auto one = synthesize(spec, pool, [&](std::uint64_t done, std::uint64_t of) { made = done, all = of; });
  ASSERT_TRUE(each && one);
  EXPECT_EQ(made, all);
  EXPECT_LT(all, synthetic_bytes(spec));
  ASSERT_EQ(one->tensors().size(), each->tensors().size());
  for (const Tensor& t : one->tensors()) {
    const Tensor& other = *each->find(t.name);
    EXPECT_EQ(t.shape, other.shape) << t.name;
    ASSERT_EQ(t.bytes.size(), other.bytes.size()) << t.name;
    const std::size_t expert = t.name.find(".experts.");
    if (expert == std::string::npos) {
      EXPECT_TRUE(std::equal(t.bytes.begin(), t.bytes.end(), other.bytes.begin())) << t.name;
    } else {
      const std::string part = t.name.substr(t.name.find('.', expert + 9));
      EXPECT_EQ(t.bytes.data(), one->find("layers.0.ffn.experts.0" + part)->bytes.data()) << t.name;
    }
  }
}

TEST(Synthetic, AnyStretchCanBeMadeAlone) {
  const SyntheticSpec spec = small();
  const NormalTable normal;
  std::set<DType> seen;
  for_each_stored(spec.config, spec.storage, [&](const Slot& slot, const StoredTensor& stored) {
    if (!seen.insert(stored.dtype).second) return;
    const RandomWeights weights(spec.config, slot, stored, 1, normal);
    std::vector<std::byte> whole(1003);
    weights.fill(0, whole);
    std::vector<std::byte> parts(whole.size());
    const std::span<std::byte> out(parts);
    weights.fill(504, out.subspan(504));
    weights.fill(0, out.first(504));
    EXPECT_EQ(whole, parts) << stored.name;
    EXPECT_FALSE(std::equal(whole.begin(), whole.begin() + 400, whole.begin() + 504)) << stored.name;
  });
  EXPECT_EQ(seen.size(), 6U);
}

TEST(Synthetic, SeedAndNameDecide) {
  ThreadPool pool(1);
  SyntheticSpec spec = small();
  auto a = synthesize(spec, pool);
  auto b = synthesize(spec, pool);
  spec.seed = 8;
  auto c = synthesize(spec, pool);
  ASSERT_TRUE(a && b && c);
  expect_same(*a, *b);
  const auto bytes = [](const Checkpoint& k, const char* n) {
    const auto s = k.find(n)->bytes;
    return std::vector<std::byte>(s.begin(), s.end());
  };
  EXPECT_NE(bytes(*a, "layers.0.attn.wkv.weight"), bytes(*c, "layers.0.attn.wkv.weight"));
  EXPECT_NE(bytes(*a, "layers.0.attn.wkv.weight"), bytes(*a, "layers.1.attn.wkv.weight"));
}

TEST(Synthetic, ATokenNamesNoExpertTwice) {
  ThreadPool pool(1);
  SyntheticSpec spec = small();
  spec.config.routed_experts = 6;  // shares factors with most strides
  auto c = synthesize(spec, pool);
  ASSERT_TRUE(c) << c.error().what;
  const Tensor& t = *c->find("layers.0.ffn.gate.tid2eid");
  for (std::int64_t token = 0; token < t.shape[0]; ++token) {
    std::set<std::int64_t> ids;
    for (std::int64_t k = 0; k < t.shape[1]; ++k) {
      std::int64_t id = 0;
      std::memcpy(&id, t.bytes.data() + 8 * (token * t.shape[1] + k), 8);
      EXPECT_TRUE(0 <= id && id < 6);
      ids.insert(id);
    }
    EXPECT_EQ(ids.size(), 6U) << token;
  }
}

TEST(Synthetic, NeverOverwritesAFolder) {
  const Folder folder("occupied");
  folder.write("mine.txt", "precious");
  ThreadPool pool(1);
  const auto r = write_synthetic(small(), folder.path(), pool);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::kInvalid);
  EXPECT_THAT(r.error().what, HasSubstr("expected an empty folder"));
}

TEST(Synthetic, RefusesWhatMemoryCannotHold) {
  ThreadPool pool(1);
  const Geometry g = *published("v4-pro-base");
  const auto r = synthesize({g.config, g.storage, 1}, pool);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::kExhausted);
  EXPECT_THAT(r.error().what, HasSubstr("1602325824632 bytes needed"));
}

// The full index and headers of the published models, as sparse files: opening reads every header and checks every
// tensor.
class FullSize : public testing::TestWithParam<std::string_view> {};

TEST_P(FullSize, OpensFromHeaders) {
  const Geometry g = *published(GetParam());
  const Folder folder("full-size");
  ThreadPool pool(1);
  const auto wrote = write_synthetic({g.config, g.storage, 1}, folder.path(), pool, Payload::kHole);
  ASSERT_TRUE(wrote) << wrote.error().what;
  auto c = Checkpoint::open(folder.path());
  ASSERT_TRUE(c) << c.error().what;
  EXPECT_EQ(c->tensor_bytes(), synthetic_bytes({g.config, g.storage, 1}));
  EXPECT_EQ(c->config(), g.config);
  EXPECT_EQ(c->copied_bytes(), 0U);
  EXPECT_EQ(c->files().size(), static_cast<std::size_t>(g.config.layers + 2 + g.config.draft.stages));
}

INSTANTIATE_TEST_SUITE_P(All, FullSize, testing::Values("v4-flash", "v4-pro", "v4-flash-0731"));

}  // namespace
}  // namespace fathom::checkpoint
