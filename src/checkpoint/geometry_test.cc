#include "checkpoint/geometry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "checkpoint/config.h"

namespace fathom::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

struct Totals {
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;
  std::int64_t trunk_tensors = 0;
  std::uint64_t trunk_bytes = 0;
  std::int64_t trunk_parameters = 0;  // ids and gate biases aside
  std::map<std::string_view, std::uint64_t> by_dtype;
};

Totals totals(const Geometry& g) {
  Totals t;
  for_each_stored(g.config, g.storage, [&](const Slot& slot, const StoredTensor& s) {
    ++t.tensors;
    t.bytes += s.bytes();
    t.by_dtype[name_of(s.dtype)] += s.bytes();
    if (slot.stage >= 0) return;
    ++t.trunk_tensors;
    t.trunk_bytes += s.bytes();
    std::int64_t n = 0;
    element_count(slot.shape, n);
    if (!s.scale && slot.form != Form::kIds && !s.name.ends_with("gate.bias")) t.trunk_parameters += n;
  });
  return t;
}

// checkpoint.md 1, to the byte.
TEST(Geometry, Flash) {
  const Totals t = totals(*published("v4-flash"));
  EXPECT_EQ(t.tensors, 69187);
  EXPECT_EQ(t.bytes, 159'609'485'896U);
  EXPECT_EQ(t.trunk_tensors, 67612);
  EXPECT_EQ(t.trunk_bytes, 156'015'698'140U);
  EXPECT_EQ(t.trunk_parameters, 284'332'230'231);
  EXPECT_THAT(t.by_dtype,
              ElementsAre(Pair("BF16", 2'830'518'528U), Pair("F32", 144'672'072U), Pair("F8_E4M3", 6'023'020'544U),
                          Pair("F8_E8M0", 8'858'737'664U), Pair("I64", 18'616'320U), Pair("I8", 141'733'920'768U)));
}

TEST(Geometry, Flash0731) {
  const Totals t = totals(*published("v4-flash-0731"));
  EXPECT_EQ(t.tensors, 72317);
  EXPECT_EQ(t.bytes, 166'878'536'440U);
  EXPECT_EQ(t.tensors - t.trunk_tensors, 4705);
  EXPECT_EQ(t.trunk_bytes, 156'015'698'140U);
  EXPECT_THAT(t.by_dtype,
              ElementsAre(Pair("BF16", 2'967'134'976U), Pair("F32", 150'966'520U), Pair("F8_E4M3", 6'304'038'912U),
                          Pair("F8_E8M0", 9'261'408'000U), Pair("I64", 18'616'320U), Pair("I8", 148'176'371'712U)));
}

TEST(Geometry, Pro) {
  const Totals t = totals(*published("v4-pro"));
  EXPECT_EQ(t.tensors, 145116);
  EXPECT_EQ(t.bytes, 864'704'792'696U);
  EXPECT_EQ(t.trunk_tensors, 142773);
  EXPECT_EQ(t.trunk_bytes, 850'748'205'004U);
  EXPECT_THAT(t.by_dtype,
              ElementsAre(Pair("BF16", 5'633'798'656U), Pair("F32", 351'105'656U), Pair("F8_E4M3", 23'169'335'296U),
                          Pair("F8_E8M0", 49'150'268'416U), Pair("I64", 18'616'320U), Pair("I8", 786'381'668'352U)));
}

TEST(Geometry, Bases) {
  EXPECT_EQ(totals(*published("v4-flash-base")).bytes, 292'555'345'480U);
  EXPECT_EQ(totals(*published("v4-flash-base")).tensors, 69187);
  EXPECT_EQ(totals(*published("v4-pro-base")).bytes, 1'602'325'824'632U);
  EXPECT_EQ(totals(*published("v4-pro-base")).tensors, 145116);
}

// The 160-expert derivative of 0731 whose real headers were counted.
TEST(Geometry, PrunedExperts) {
  Geometry g = *published("v4-flash-0731");
  auto pruned = shrunk(g.config, 0, 160);
  ASSERT_TRUE(pruned) << pruned.error().what;
  g.config = *pruned;
  EXPECT_EQ(totals(g).tensors, 45821);
  EXPECT_EQ(totals(g).bytes, 107'803'320'952U);
}

TEST(Geometry, EveryNameIsKnownValidAndRecognised) {
  for (const std::string_view name : published_names()) {
    const auto g = published(name);
    ASSERT_TRUE(g) << name;
    EXPECT_EQ(g->name, name);
    EXPECT_TRUE(validate(g->config)) << name;
    const auto again = recognise(g->config, g->storage);
    ASSERT_TRUE(again) << name;
    EXPECT_EQ(again->name, name);
  }
  EXPECT_FALSE(published("v4-lite"));
  ModelConfig other = published("v4-flash")->config;
  other.hidden = 2048;
  EXPECT_FALSE(recognise(other, {}));
}

TEST(Geometry, ShrinksLayersWithTheirSchedule) {
  const auto c = shrunk(published("v4-flash-0731")->config, 5, 32);
  ASSERT_TRUE(c) << c.error().what;
  EXPECT_THAT(c->compress_ratios, ElementsAre(0, 0, 4, 128, 4));
  EXPECT_THAT(c->draft.target_layers, ElementsAre(2, 3, 4));
  EXPECT_EQ(c->routed_experts, 32);
  EXPECT_EQ(c->hash_layers, 3);
  const auto two = shrunk(published("v4-flash-0731")->config, 2, 0);
  ASSERT_TRUE(two) << two.error().what;
  EXPECT_EQ(two->hash_layers, 2);
  EXPECT_THAT(two->draft.target_layers, ElementsAre(0, 1));
  EXPECT_FALSE(shrunk(published("v4-flash")->config, 44, 0));
  const auto few = shrunk(published("v4-flash")->config, 0, 5);
  ASSERT_FALSE(few);
  EXPECT_THAT(few.error().what, HasSubstr("num_experts_per_tok: found 6, more than the 5 routed experts"));
}

}  // namespace
}  // namespace fathom::checkpoint
