// Operations on a mixture of sequences with a past: window, compressor, indexer. Both sides start from the
// same bytes in slots and pages and must leave the same.
#include <algorithm>

#include "cuda/world.h"
#include "quant/block.h"

namespace fathom::testing {
namespace {

using ops::Carrier;
using quant::EntryCodec;
using Sequences = OnDevice;

// Entries of codec `c`, one after another from `offset`, decoded.
std::vector<float> decoded(const std::vector<std::byte>& memory, std::size_t offset, const EntryCodec& c,
                           std::int64_t n) {
  std::vector<float> all(static_cast<std::size_t>(n * c.dim));
  for (std::int64_t i = 0; i < n; ++i) {
    c.decode(memory.data() + offset + static_cast<std::size_t>(i) * c.bytes(),
             std::span(all).subspan(static_cast<std::size_t>(i * c.dim), static_cast<std::size_t>(c.dim)));
  }
  return all;
}

TEST_F(Sequences, StoreWindow) {
  for (const auto& mixture : kMixtures) {
    for (const ops::Numerics n : kAllNumerics) {
      for (const std::int32_t capacity : {128, 131}) {
        World w(mixture, 0, entry_codec(512, 64, n), {}, capacity, 0, 50);
        Twin<float> kv(storable(normal(w.tokens() * 512, 51, 1, Carrier::kBf16), w.ring.codec));
        device().store_window({.kv = kv.on_device(w.tokens(), 512), .batch = w.on_device(), .ring = w.ring});
        reference().store_window({.kv = kv.on_host(w.tokens(), 512), .batch = w.on_host(), .ring = w.ring});
        for (const auto& slot : w.slots) EXPECT_EQ(slot.fetch(), slot.host()) << name_of(n);
      }
    }
  }
}

TEST_F(Sequences, Compress) {
  struct Kind {
    std::int32_t ratio;
    std::int32_t dim;
    ops::EntryKind kind;
  };
  for (const Kind k : {Kind{4, 512, ops::EntryKind::kMain}, Kind{128, 512, ops::EntryKind::kMain},
                       Kind{4, 128, ops::EntryKind::kIndex}, Kind{4, 64, ops::EntryKind::kMain},
                       Kind{128, 64, ops::EntryKind::kMain}, Kind{4, 64, ops::EntryKind::kIndex}}) {
    const auto f = ops::rope_frequencies(160000, 64, {.factor = 16, .original_positions = 65536});
    const Twin<float> frequencies(f);
    const std::int32_t width = (k.ratio == 4 ? 2 : 1) * k.dim;
    const Twin<float> ape(normal(std::int64_t{k.ratio} * width, 60));
    const Twin<float> norm(normal(k.dim, 61));
    for (const auto& mixture : kMixtures) {
      for (const ops::Numerics n : kAllNumerics) {
        const EntryCodec codec = k.kind == ops::EntryKind::kMain ? entry_codec(k.dim, 64, n) : key_codec(k.dim, 64, n);
        World w(mixture, k.ratio, entry_codec(64, 64, ops::kFloat), codec, 1, width, 62, 3);
        Twin<float> kv(normal(w.tokens() * width, 63));
        Twin<float> score(normal(w.tokens() * width, 64));
        const auto op = [&](bool on_device) {
          const auto side = [&](Twin<float>& x) {
            return on_device ? x.on_device(w.tokens(), width) : x.on_host(w.tokens(), width);
          };
          return ops::Compress{.kv = side(kv),
                               .score = side(score),
                               .ape = on_device ? ape.device() : ape.host().data(),
                               .norm_weight = on_device ? norm.device() : norm.host().data(),
                               .frequencies = on_device ? frequencies.device() : f.data(),
                               .rope_dim = 64,
                               .kind = k.kind,
                               .eps = 1e-6F,
                               .quantise = n.quantise,
                               .carrier = n.carrier,
                               .batch = on_device ? w.on_device() : w.on_host(),
                               .ring = w.compressor,
                               .entries = w.entries};
        };
        device().compress(op(true));
        reference().compress(op(false));
        const auto where = ::testing::Message() << k.ratio << " " << k.dim << " " << name_of(n);
        for (const auto& slot : w.slots) EXPECT_EQ(slot.fetch(), slot.host()) << where;
        const std::int64_t per_page = ops::kPageTokens / k.ratio;
        std::vector<float> got;
        std::vector<float> want;
        for (const auto& page : w.pages) {
          const auto a = decoded(page.fetch(), 64, codec, per_page);
          const auto b = decoded(page.host(), 64, codec, per_page);
          got.insert(got.end(), a.begin(), a.end());
          want.insert(want.end(), b.begin(), b.end());
        }
        EXPECT_TRUE(close(got, want, Tolerance::of(n.carrier, n.carrier == Carrier::kBf16 ? 0.02 : 2e-5),
                          n.quantise ? few(want.size()) + want.size() / 500 : 0))
            << where;
      }
    }
  }
}

// All that follows the projections of a layer's input, in one: the same bytes as one after another.
TEST_F(Sequences, AttentionInputs) {
  const auto f = ops::rope_frequencies(160000, 64, {.factor = 16, .original_positions = 65536});
  const Twin<float> frequencies(f);
  const auto latent_weight = Twin<float>(normal(1024, 70));
  const auto window_weight = Twin<float>(normal(512, 71));
  for (const std::int32_t ratio : {0, 4, 128}) {
    for (const auto& mixture : kMixtures) {
      for (const bool told : {false, true}) {  // how many tokens the longest segment has
        for (const ops::Numerics n : kAllNumerics) {
          const std::int32_t width = ratio == 4 ? 1024 : 512;
          const std::int32_t r = ratio == 0 ? 4 : ratio;
          const Twin<float> ape(normal(std::int64_t{r} * width, 72));
          const auto run = [&](bool fused) {
            World main(mixture, r, entry_codec(64, 64, ops::kFloat), entry_codec(512, 64, n), 1, width, 73, 3);
            World keys(mixture, 4, entry_codec(64, 64, ops::kFloat), key_codec(128, 64, n), 1, 256, 74, 3);
            World windows(mixture, 0, entry_codec(512, 64, n), {}, 131, 0, 80);
            const std::int64_t tokens = main.tokens();
            const Twin<float> latent(normal(tokens * 1024, 75, 2, n.carrier));
            const Twin<float> kv(normal(tokens * 512, 76, 2, n.carrier));
            const Twin<float> angles(normal(tokens * 32, 77));
            const Twin<float> values(normal(tokens * width, 78));
            const Twin<float> scores(normal(tokens * width, 79));
            const auto compress = [&](const World& w, std::int64_t columns, ops::EntryKind kind) {
              ops::Batch batch = w.on_device();
              for (const Part& p : mixture) batch.most = told ? std::max(batch.most, p.tokens) : 0;
              return ops::Compress{.kv = values.on_device(tokens, columns),
                                   .score = scores.on_device(tokens, columns),
                                   .ape = ape.device(),
                                   .norm_weight = window_weight.device(),
                                   .frequencies = frequencies.device(),
                                   .rope_dim = 64,
                                   .kind = kind,
                                   .eps = 1e-6F,
                                   .quantise = n.quantise,
                                   .carrier = n.carrier,
                                   .batch = batch,
                                   .ring = w.compressor,
                                   .entries = w.entries};
            };
            ops::AttentionInputs op{.latent = {.x = latent.on_device(tokens, 1024),
                                               .w = latent_weight.device(),
                                               .y = latent.on_device(tokens, 1024),
                                               .eps = 1e-6F,
                                               .carrier = n.carrier},
                                    .window = {.kv = kv.on_device(tokens, 512),
                                               .norm_weight = window_weight.device(),
                                               .cos = angles.on_device(tokens, 32),
                                               .sin = angles.on_device(tokens, 32),
                                               .eps = 1e-6F,
                                               .quantise = n.quantise,
                                               .carrier = n.carrier},
                                    .store = {},
                                    .entries = {},
                                    .keys = {}};
            if (told) {
              op.store = {.kv = kv.on_device(tokens, 512), .batch = windows.on_device(), .ring = windows.ring};
            }
            if (ratio != 0) op.entries = compress(main, width, ops::EntryKind::kMain);
            if (ratio == 4) op.keys = compress(keys, 256, ops::EntryKind::kIndex);
            if (fused) device().attention_inputs(op);
            else device().Backend::attention_inputs(op);
            std::vector<float> rows = latent.fetch();
            const auto more = kv.fetch();
            rows.insert(rows.end(), more.begin(), more.end());
            std::vector<std::vector<std::byte>> memory;
            for (const World* w : {&main, &keys, &windows}) {
              for (const auto& slot : w->slots) memory.push_back(slot.fetch());
              for (const auto& page : w->pages) memory.push_back(page.fetch());
            }
            return std::pair(rows, memory);
          };
          EXPECT_TRUE(run(true) == run(false)) << ratio << " " << told << " " << name_of(n);
        }
      }
    }
  }
}

struct Selection {
  Selection(std::int32_t dim_, std::int32_t heads_, std::int64_t k_, const std::vector<Part>& mixture, ops::Numerics n_,
            std::uint32_t seed)
      : dim(dim_),
        heads(heads_),
        k(k_),
        n(n_),
        world(mixture, 4, entry_codec(64, 64, ops::kFloat), key_codec(dim, 64, n), 1, 0, seed),
        q(normal(world.tokens() * heads * dim, seed + 1, 1, Carrier::kBf16)),
        weights(normal(world.tokens() * heads, seed + 2, 1, n.carrier)) {
    if (n.quantise) {  // queries are FP4 numbers then
      for (std::size_t at = 0; at < q.host().size(); at += static_cast<std::size_t>(dim)) {
        quant::fp4_round_trip(std::span(q.host()).subspan(at, static_cast<std::size_t>(dim)));
      }
      q.upload();
    }
  }
  ops::IndexSelect op(bool on_device, Twin<std::int32_t>& selected) {
    const std::int64_t t = world.tokens();
    return {.q = on_device ? q.on_device(t, heads * dim) : q.on_host(t, heads * dim),
            .weights = on_device ? weights.on_device(t, heads) : weights.on_host(t, heads),
            .scale = 0.05F,
            .heads = heads,
            .batch = on_device ? world.on_device() : world.on_host(),
            .keys = world.entries,
            .selected = on_device ? selected.on_device(t, k) : selected.on_host(t, k),
            .carrier = n.carrier};
  }
  std::int32_t dim, heads;
  std::int64_t k;
  ops::Numerics n;
  World world;
  Twin<float> q, weights;
};

// The reference's selection, but for entries whose scores are within rounding of the border.
void expect_selected(Selection& s, ops::Backend& device) {
  auto selected = Twin<std::int32_t>::poisoned(s.world.tokens() * s.k);
  device.index_select(s.op(true, selected));
  const auto got = selected.fetch();
  auto wanted = Twin<std::int32_t>::poisoned(s.world.tokens() * s.k);
  const ops::IndexSelect op = s.op(false, wanted);
  ops::ref::run(op);
  for (std::int64_t t = 0; t < s.world.tokens(); ++t) {
    const auto* mine = &got[static_cast<std::size_t>(t * s.k)];
    const std::int32_t* want = wanted.on_host(s.world.tokens(), s.k).row(t);
    if (std::equal(mine, mine + s.k, want)) continue;
    const std::int32_t exist = (s.world.positions[static_cast<std::size_t>(t)] + 1) / 4;
    std::vector<float> scores(static_cast<std::size_t>(exist));
    ops::index_scores(op, t, exist, scores.data());
    const std::int64_t count = std::min<std::int64_t>(exist, s.k);
    float border = std::numeric_limits<float>::infinity();
    for (std::int64_t i = 0; i < count; ++i) border = std::min(border, scores[static_cast<std::size_t>(want[i])]);
    const float slack = (s.n.carrier == Carrier::kBf16 ? 1.0F / 64 : 2e-5F) * std::max(1.0F, std::fabs(border));
    std::int64_t differ = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      ASSERT_TRUE(mine[i] >= 0 && mine[i] < exist && (i == 0 || mine[i] > mine[i - 1]))
          << "token " << t << " place " << i << ": " << mine[i];
      if (std::find(want, want + count, mine[i]) != want + count) continue;
      ++differ;
      EXPECT_NEAR(scores[static_cast<std::size_t>(mine[i])], border, slack) << "token " << t << " entry " << mine[i];
    }
    EXPECT_LE(differ, 1 + count / 50) << "token " << t;
    for (std::int64_t i = count; i < s.k; ++i) EXPECT_EQ(mine[i], -1);
  }
}

TEST_F(Sequences, IndexSelect) {
  std::uint32_t seed = 200;
  for (const auto& mixture : kMixtures) {
    for (const ops::Numerics n : kAllNumerics) {
      for (const std::int64_t k : {1, 8, 30}) {
        Selection a(64, 6, k, mixture, n, ++seed);
        expect_selected(a, device());
      }
      Selection b(128, 64, 40, mixture, n, ++seed);
      expect_selected(b, device());
      Selection c(128, 70, 16, mixture, n, ++seed);
      expect_selected(c, device());
    }
  }
}

TEST_F(Sequences, IndexSelectOfLongSequences) {
  for (const ops::Numerics n : {ops::kFloat, ops::kOfficialBf16}) {
    Selection a(128, 4, 512, {{40'000, 1}, {9'000, 2}}, n, 300);
    expect_selected(a, device());
  }
  Selection b(64, 1, 1024, {{small_sizes() ? 70'000 : 1'048'575, 1}}, ops::kOfficial, 301);
  expect_selected(b, device());
}

// Ties go to the lowest entries, NaN ranks last; whatever the scores, only entries that exist are selected.
TEST_F(Sequences, IndexSelectTiesAndNan) {
  for (const float value : {0.0F, 1.0F, std::numeric_limits<float>::quiet_NaN()}) {
    Selection s(64, 2, 20, {{2000, 3}}, ops::kFloat, 302);
    std::fill(s.weights.host().begin(), s.weights.host().end(), value == 1.0F ? 0.0F : value);
    s.weights.upload();
    auto selected = Twin<std::int32_t>::poisoned(3 * 20);
    device().index_select(s.op(true, selected));
    const auto got = selected.fetch();
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], static_cast<std::int32_t>(i % 20)) << value;
  }
}

}  // namespace
}  // namespace fathom::testing
