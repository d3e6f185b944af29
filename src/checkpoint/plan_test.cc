#include "checkpoint/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/geometry.h"

namespace fathom::checkpoint {
namespace {

using quant::EntryFormat;
using testing::HasSubstr;

constexpr CacheFormat kFp8Fp4 = {EntryFormat::kFp8RopeBf16, EntryFormat::kFp4};
constexpr CacheFormat kF32 = {EntryFormat::kF32, EntryFormat::kF32};

Inventory inventory_of(std::string_view name) {
  const Geometry g = *published(name);
  return take_inventory(g.config, g.storage);
}

// model.md 13.2, in GB as printed there.
void expect_gb(double bytes, double gb) { EXPECT_NEAR(bytes / 1e9, gb, 0.0051); }

TEST(Inventory, FlashBytesPerToken) {
  const Inventory i = inventory_of("v4-flash");
  expect_gb(i.token_bytes(), 11.21);
  expect_gb(i.of(Group::kAttention).token_bytes, 4.60);
  expect_gb(i.of(Group::kRoutedExperts).token_bytes, 3.45);
  expect_gb(i.of(Group::kSharedExpert).token_bytes, 1.08);
  expect_gb(i.of(Group::kHead).token_bytes, 1.06);
  expect_gb(i.of(Group::kCompressor).token_bytes, 0.52);
  expect_gb(i.of(Group::kIndexer).token_bytes, 0.28);
  expect_gb(i.of(Group::kHyperConnections).token_bytes, 0.14);
  expect_gb(i.of(Group::kGate).token_bytes, 0.09);
}

TEST(Inventory, ProBytesPerToken) {
  const Inventory i = inventory_of("v4-pro");
  expect_gb(i.token_bytes(), 39.66);
  expect_gb(i.of(Group::kAttention).token_bytes, 18.29);
  expect_gb(i.of(Group::kRoutedExperts).token_bytes, 12.84);
  expect_gb(i.of(Group::kSharedExpert).token_bytes, 4.03);
  expect_gb(i.of(Group::kHead).token_bytes, 1.85);
  expect_gb(i.of(Group::kCompressor).token_bytes, 1.34);
  expect_gb(i.of(Group::kIndexer).token_bytes, 0.63);
}

TEST(Inventory, CountsParameters) {
  const Inventory flash = inventory_of("v4-flash");
  EXPECT_EQ(flash.trunk_parameters(), 284'332'230'231);
  EXPECT_EQ(flash.tensors(), 69187);
  EXPECT_EQ(flash.bytes(), 159'609'485'896U);
  // Multiply-accumulates outside attention, plus vectors (norms, biases, position tables).
  EXPECT_NEAR(flash.active_parameters(), 13'268'221'952.0, 0.0005 * 13'268'221'952.0);
  EXPECT_NEAR(inventory_of("v4-pro").active_parameters(), 48'849'141'760.0, 0.0005 * 48'849'141'760.0);
  EXPECT_EQ(flash.storage, Storage{});
  EXPECT_EQ(inventory_of("v4-flash-base").storage, (published("v4-flash-base")->storage));
  std::uint64_t sum = 0;
  for (const std::uint64_t b : flash.dtype_bytes) sum += b;
  EXPECT_EQ(sum, flash.bytes());
  EXPECT_EQ(flash.split_bytes + flash.replicated_bytes, flash.bytes());
}

TEST(Inventory, AnOpenedCheckpointCountsAsItsTable) {
  const auto path = std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fathom-tiny";
  auto c = Checkpoint::open(path);
  ASSERT_TRUE(c) << c.error().what;
  const Inventory found = take_inventory(*c);
  const Inventory expected = take_inventory(c->config(), Storage{});
  EXPECT_EQ(found.tensors(), static_cast<std::int64_t>(c->tensors().size()));
  EXPECT_EQ(found.bytes(), c->tensor_bytes());
  EXPECT_EQ(found.bytes(), expected.bytes());
  EXPECT_EQ(found.token_bytes(), expected.token_bytes());
}

// model.md 13.3: without state, the trunk alone.
std::uint64_t cache_bytes(std::string_view name, CacheFormat f, std::int64_t context) {
  ModelConfig c = published(name)->config;
  c.draft = {};
  const SequenceMemory m = sequence_memory(c, f, context);
  return m.total() - m.state_bytes;
}

TEST(Plan, CacheOfOneSequence) {
  const auto mib = [](std::uint64_t b) { return static_cast<double>(b) / (1 << 20); };
  EXPECT_NEAR(mib(cache_bytes("v4-flash", kFp8Fp4, 4096)), 16.8, 0.06);
  EXPECT_NEAR(mib(cache_bytes("v4-flash", kFp8Fp4, 131072)), 442, 0.6);
  EXPECT_NEAR(mib(cache_bytes("v4-flash", kFp8Fp4, 1 << 20)), 3517, 0.6);
  EXPECT_NEAR(mib(cache_bytes("v4-pro", kFp8Fp4, 4096)), 24.0, 0.06);
  EXPECT_NEAR(mib(cache_bytes("v4-pro", kFp8Fp4, 1 << 20)), 5036, 0.6);
  // One more block of 128 tokens: 3514.25 bytes a token.
  EXPECT_EQ(cache_bytes("v4-flash", kFp8Fp4, 4096 + 128) - cache_bytes("v4-flash", kFp8Fp4, 4096), 449'824U);
  EXPECT_EQ(cache_bytes("v4-flash", kF32, 128), 43U * 128 * 2048 + 21U * 32 * (2048 + 512) + 20U * 2048);
  EXPECT_EQ(sequence_memory(published("v4-flash")->config, kFp8Fp4, 0).state_bytes, 21U * 81'920 + 20U * 524'288);
  EXPECT_EQ(sequence_memory(published("v4-pro")->config, kFp8Fp4, 0).state_bytes, 30U * 81'920 + 31U * 524'288);
}

TEST(Plan, CacheReadPerToken) {
  const auto mb = [](std::string_view name, std::int64_t context) {
    return static_cast<double>(cache_read_bytes(published(name)->config, kFp8Fp4, context)) / 1e6;
  };
  EXPECT_NEAR(mb("v4-flash", 4096), 11.3, 0.06);
  EXPECT_NEAR(mb("v4-flash", 131072), 68.2, 0.06);
  EXPECT_NEAR(mb("v4-flash", 1 << 20), 479.5, 0.06);
  EXPECT_NEAR(mb("v4-pro", 4096), 25.2, 0.06);
  EXPECT_NEAR(mb("v4-pro", 131072), 107.9, 0.06);
  EXPECT_NEAR(mb("v4-pro", 1 << 20), 705.6, 0.06);
}

TEST(Plan, DevicesByName) {
  const auto eight = parse_device("h200x8");
  ASSERT_TRUE(eight) << eight.error().what;
  EXPECT_EQ(eight->count, 8);
  EXPECT_EQ(eight->name, "h200");
  EXPECT_TRUE(eight->is_gpu());
  EXPECT_EQ(parse_device("h200")->count, 1);
  EXPECT_FALSE(parse_device("cpu")->is_gpu());
  EXPECT_GT(parse_device("cpu")->memory_bytes, 0U);
  for (const char* wrong : {"", "x8", "h200x", "h200x0", "h200x-1", "h200x8x", "h2000", "cpux2", "h200x99999999999"}) {
    EXPECT_FALSE(parse_device(wrong)) << wrong;
  }
  EXPECT_THAT(parse_device("tpu").error().what, HasSubstr("cpu, a100, h100, h20, h200, b200, b300"));
}

TEST(Plan, SaysWhetherFlashFits) {
  const Geometry g = *published("v4-flash");
  const Inventory i = take_inventory(g.config, g.storage);
  PlanRequest r;
  r.cache = kFp8Fp4;
  r.context = 131072;
  r.sequences = 4;
  r.one_sequence_bytes = sequence_memory(g.config, kFp8Fp4, 131072).total();
  r.workspace_bytes = workspace_bytes(g.config, 256, 256);
  r.device = *parse_device("h200");
  const Plan one = make_plan(g.config, i, r);
  EXPECT_FALSE(one.fits);
  EXPECT_EQ(one.most_sequences, 0);
  EXPECT_EQ(one.weight_bytes, i.bytes());
  r.device = *parse_device("h200x2");
  const Plan two = make_plan(g.config, i, r);
  EXPECT_TRUE(two.fits);
  EXPECT_GT(two.most_sequences, 4);
  EXPECT_LT(two.weight_bytes, i.bytes());
  EXPECT_GT(two.weight_bytes, i.bytes() / 2);
  EXPECT_EQ(two.needed_bytes, two.weight_bytes + two.sequence_bytes + two.workspace_bytes + two.reserve_bytes);
  // One more sequence than the most does not fit, the most does.
  r.sequences = static_cast<std::int32_t>(two.most_sequences);
  EXPECT_TRUE(make_plan(g.config, i, r).fits);
  r.sequences += 1;
  EXPECT_FALSE(make_plan(g.config, i, r).fits);
}

TEST(Plan, AbsurdRequestsDoNotFit) {
  const Geometry g = *published("v4-flash");
  PlanRequest r;
  r.sequences = 1 << 20;
  r.one_sequence_bytes = std::uint64_t{1} << 50;
  r.device = *parse_device("b300x8");
  const Plan p = make_plan(g.config, take_inventory(g.config, g.storage), r);
  EXPECT_FALSE(p.fits);
  EXPECT_EQ(p.most_sequences, 0);
}

TEST(Plan, SpeedIsBandwidthOverBytes) {
  const Geometry g = *published("v4-flash");
  const Inventory i = take_inventory(g.config, g.storage);
  const auto cache = static_cast<double>(cache_read_bytes(g.config, kFp8Fp4, 4096));
  PlanRequest r;
  r.cache = kFp8Fp4;
  r.device = {"cpu", 1, std::uint64_t{1} << 40, 100e9, 0};
  const Plan one = make_plan(g.config, i, r);
  EXPECT_NEAR(one.step_bytes, i.token_bytes() + cache, 1);
  EXPECT_NEAR(one.tokens_per_s, 100e9 / (i.token_bytes() + cache), 1e-6);
  // A batch reads dense weights once and an expert at most once.
  r.sequences = 10'000;
  const Plan many = make_plan(g.config, i, r);
  const double dense = i.token_bytes() - i.of(Group::kRoutedExperts).token_bytes;
  EXPECT_NEAR(many.step_bytes, dense + static_cast<double>(i.of(Group::kRoutedExperts).bytes) + 10'000 * cache, 1e6);
  r.device.bandwidth = 0;
  EXPECT_EQ(make_plan(g.config, i, r).tokens_per_s, 0);
}

}  // namespace
}  // namespace fathom::checkpoint
