// Operations on a mixture of sequences with a past: window, compressor, indexer, attention. Both sides start from the
// same bytes in slots and pages and must leave the same.
#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>

#include "cuda/twin.h"
#include "ops/batch.h"
#include "quant/block.h"

namespace fathom::testing {
namespace {

using ops::Carrier;
using quant::EntryCodec;
using quant::EntryFormat;
using Sequences = OnDevice;

EntryCodec entry_codec(std::int32_t dim, std::int32_t rope, ops::Numerics n) {
  EntryFormat f = EntryFormat::kF32;
  if (n.quantise) f = n.carrier == Carrier::kBf16 ? EntryFormat::kFp8RopeBf16 : EntryFormat::kFp8RopeF32;
  return {f, dim, rope};
}
EntryCodec key_codec(std::int32_t dim, std::int32_t rope, ops::Numerics n) {
  return {n.quantise ? EntryFormat::kFp4 : EntryFormat::kF32, dim, rope};
}

// Rows as an entry of codec `c` can have them: then storing them loses nothing.
std::vector<float> storable(std::vector<float> rows, const EntryCodec& c) {
  std::vector<std::byte> bytes(c.bytes());
  for (std::size_t at = 0; at < rows.size(); at += static_cast<std::size_t>(c.dim)) {
    const std::span<float> row = std::span(rows).subspan(at, static_cast<std::size_t>(c.dim));
    c.encode(row, bytes.data());
    c.decode(bytes.data(), row);
  }
  return rows;
}

// What each sequence of a step has behind it, and how many tokens it brings.
struct Part {
  std::int32_t start;
  std::int32_t tokens;
};

// Sequences with one window ring, one compressor ring and one set of entries, filled with random values.
struct World {
  World(const std::vector<Part>& parts_, std::int32_t ratio, EntryCodec window, EntryCodec entry,
        std::int32_t ring_capacity, std::int32_t compressor_width, std::uint32_t seed, std::int32_t rollback = 0)
      : parts(parts_) {
    ring = {.offset = 64, .capacity = ring_capacity, .codec = window};
    std::size_t slot_bytes = 64 + window.bytes() * static_cast<std::size_t>(ring_capacity);
    slot_bytes = (slot_bytes + 63) / 64 * 64;
    compressor = {.offset = static_cast<std::int64_t>(slot_bytes),
                  .capacity = (ratio == 4 ? 8 : std::max(ratio, 1)) + rollback,
                  .width = compressor_width};
    slot_bytes +=
        sizeof(float) * 2 * static_cast<std::size_t>(compressor_width) * static_cast<std::size_t>(compressor.capacity);
    std::size_t page_bytes = 64;
    if (ratio != 0) {
      entries = {.offset = 64, .ratio = ratio, .codec = entry};
      page_bytes += entry.bytes() * static_cast<std::size_t>(ops::kPageTokens / ratio);
    }
    std::mt19937 rng(seed);
    const auto fill = [&](std::vector<std::byte>& memory, std::size_t offset, std::size_t n, const EntryCodec& codec) {
      const auto dim = static_cast<std::size_t>(codec.dim);
      const auto v = normal(static_cast<std::int64_t>(n * dim), static_cast<std::uint32_t>(rng()), 1, Carrier::kBf16);
      for (std::size_t i = 0; i < n; ++i) {
        codec.encode(std::span(v).subspan(i * dim, dim), memory.data() + offset + i * codec.bytes());
      }
    };
    std::int32_t row = 0;
    for (const Part& p : parts) {
      std::vector<std::byte> slot(slot_bytes);
      fill(slot, 64, static_cast<std::size_t>(ring_capacity), window);
      const auto rows = normal(2L * compressor_width * compressor.capacity, static_cast<std::uint32_t>(rng()));
      if (!rows.empty()) std::memcpy(slot.data() + compressor.offset, rows.data(), rows.size() * sizeof(float));
      slots.emplace_back(std::move(slot));
      ops::Segment s{.first_row = row,
                     .tokens = p.tokens,
                     .start = p.start,
                     .n_pages = (p.start + p.tokens + ops::kPageTokens - 1) / ops::kPageTokens};
      std::vector<std::byte*> on_host;
      std::vector<std::byte*> on_device;
      for (std::int32_t i = 0; i < s.n_pages; ++i) {
        std::vector<std::byte> page(page_bytes);
        if (ratio != 0) fill(page, 64, static_cast<std::size_t>(ops::kPageTokens / ratio), entry);
        pages.emplace_back(std::move(page));
        on_host.push_back(pages.back().host().data());
        on_device.push_back(pages.back().device());
      }
      host_tables.push_back(on_host);
      device_tables.emplace_back(on_device);
      host_segments.push_back(s);
      for (std::int32_t i = 0; i < p.tokens; ++i, ++row) {
        positions.push_back(p.start + i);
        segment_of.push_back(static_cast<std::int32_t>(host_segments.size()) - 1);
        longest = std::max(longest, p.start + i + 1);
      }
    }
    std::vector<ops::Segment> device_segments = host_segments;
    for (std::size_t i = 0; i < host_segments.size(); ++i) {
      host_segments[i].slot = slots[i].host().data();
      host_segments[i].pages = host_tables[i].data();
      device_segments[i].slot = slots[i].device();
      device_segments[i].pages = device_tables[i].device();
    }
    segments = Twin<ops::Segment>(device_segments);
    position_twin = Twin<std::int32_t>(positions);
    segment_twin = Twin<std::int32_t>(segment_of);
  }

  std::int64_t tokens() const { return static_cast<std::int64_t>(positions.size()); }
  ops::Batch on_host() const {
    return {.tokens = static_cast<std::int32_t>(tokens()),
            .n_segments = static_cast<std::int32_t>(host_segments.size()),
            .longest = longest,
            .segments = host_segments.data(),
            .segment_of = segment_of.data(),
            .positions = positions.data()};
  }
  ops::Batch on_device(std::int32_t slack = 0) const {
    return {.tokens = static_cast<std::int32_t>(tokens()),
            .n_segments = static_cast<std::int32_t>(host_segments.size()),
            .longest = longest + slack,
            .segments = segments.device(),
            .segment_of = segment_twin.device(),
            .positions = position_twin.device()};
  }

  std::vector<Part> parts;
  ops::WindowRing ring;
  ops::CompressorRing compressor;
  ops::EntryPages entries;
  std::vector<Twin<std::byte>> slots;
  std::deque<Twin<std::byte>> pages;
  std::deque<std::vector<std::byte*>> host_tables;
  std::vector<Twin<std::byte*>> device_tables;
  std::vector<ops::Segment> host_segments;
  Twin<ops::Segment> segments;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> segment_of;
  Twin<std::int32_t> position_twin;
  Twin<std::int32_t> segment_twin;
  std::int32_t longest = 0;
};

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

// Without those of many tokens and of just one, where sizes are to be small.
std::vector<std::vector<Part>> sized(std::vector<std::vector<Part>> mixtures) {
  if (!small_sizes()) return mixtures;
  std::erase_if(mixtures, [](const std::vector<Part>& parts) {
    return (parts.size() == 1 && parts[0].tokens == 1) ||
           std::any_of(parts.begin(), parts.end(), [](const Part& p) { return p.tokens > 20; });
  });
  return mixtures;
}

const std::vector<std::vector<Part>> kMixtures = sized({
    {{0, 1}},
    {{0, 5}},
    {{3, 1}},
    {{127, 1}},
    {{128, 1}},
    {{511, 1}},
    {{1000, 1}, {0, 3}, {63, 1}, {254, 7}},
    {{0, 300}},
    {{77, 130}, {0, 128}, {383, 1}},
    {{1000, 1}, {3, 1}, {126, 4}, {2, 2}, {127, 1}},
    {},
});

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

struct AttentionCase {
  std::int32_t dim;
  std::int32_t heads;
  std::int32_t window;
  std::int32_t ratio;
  std::int64_t k;  // selected entries a token; 0: all
};

// Ascending random selections out of the entries that exist, then -1.
std::vector<std::int32_t> random_selection(const World& w, std::int64_t k, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::int32_t> all;
  for (const std::int32_t position : w.positions) {
    std::vector<std::int32_t> entries(static_cast<std::size_t>((position + 1) / w.entries.ratio));
    std::iota(entries.begin(), entries.end(), 0);
    std::shuffle(entries.begin(), entries.end(), rng);
    entries.resize(std::min(entries.size(), static_cast<std::size_t>(k)));
    std::sort(entries.begin(), entries.end());
    entries.resize(static_cast<std::size_t>(k), -1);
    all.insert(all.end(), entries.begin(), entries.end());
  }
  return all;
}

struct Attention {
  Attention(const AttentionCase& c_, const std::vector<Part>& mixture, ops::Numerics n_, std::uint32_t seed)
      : c(c_),
        n(n_),
        world(mixture, c.ratio, entry_codec(c.dim, 64, n), entry_codec(c.dim, 64, n), c.window + 2, 0, seed),
        q(normal(world.tokens() * c.heads * c.dim, seed + 1, 1, n.carrier)),
        kv(storable(normal(world.tokens() * c.dim, seed + 2, 1, n.carrier), world.ring.codec)),
        cos(normal(world.tokens() * 32, seed + 3)),
        sin(normal(world.tokens() * 32, seed + 4)),
        sink(normal(c.heads, seed + 5)) {
    if (c.k != 0) selected = Twin<std::int32_t>(random_selection(world, c.k, seed + 6));
  }
  std::vector<float> run(ops::Backend& backend, bool on_device, std::int32_t slack = 0) {
    const std::int64_t tokens = world.tokens();
    auto out = Twin<float>::poisoned(tokens * c.heads * c.dim);
    const auto side = [&](Twin<float>& x, std::int64_t cols) {
      return on_device ? x.on_device(tokens, cols) : x.on_host(tokens, cols);
    };
    ops::SparseAttention op{.q = side(q, c.heads * c.dim),
                            .kv = side(kv, c.dim),
                            .heads = c.heads,
                            .window = c.window,
                            .batch = on_device ? world.on_device(slack) : world.on_host(),
                            .ring = world.ring,
                            .entries = world.entries,
                            .selected = {},
                            .sink = on_device ? sink.device() : sink.host().data(),
                            .cos = side(cos, 32),
                            .sin = side(sin, 32),
                            .out = side(out, c.heads * c.dim),
                            .carrier = n.carrier};
    if (c.k != 0) op.selected = on_device ? selected.on_device(tokens, c.k) : selected.on_host(tokens, c.k);
    backend.sparse_attention(op);
    return on_device ? out.fetch() : out.host();
  }
  AttentionCase c;
  ops::Numerics n;
  World world;
  Twin<float> q, kv, cos, sin, sink;
  Twin<std::int32_t> selected;
};

TEST_F(Sequences, SparseAttention) {
  const AttentionCase cases[] = {
      {64, 4, 16, 0, 0}, {128, 2, 16, 4, 8}, {128, 8, 128, 128, 0}, {512, 17, 128, 4, 40}, {512, 16, 128, 0, 0}};
  std::uint32_t seed = 70;
  for (const AttentionCase& c : cases) {
    for (const auto& mixture : kMixtures) {
      for (const ops::Numerics n : kAllNumerics) {
        Attention a(c, mixture, n, ++seed);
        const auto got = a.run(device(), true);
        const auto want = a.run(reference(), false);
        EXPECT_TRUE(close(got, want, Tolerance::of(n.carrier, n.carrier == Carrier::kBf16 ? 0.02 : 1e-5)))
            << c.dim << " " << c.heads << " " << c.window << " " << c.ratio << " " << c.k << " " << name_of(n);
        EXPECT_EQ(a.run(device(), true, 4096), got) << "with a more generous bound";
      }
    }
  }
}

// Many tokens take one block each, few are spread over blocks: the bytes are the same.
TEST_F(Sequences, AttentionOfATokenIsItsOwn) {
  struct Case {
    AttentionCase attention;
    Part part;
  };
  for (const auto& [c, part] : {Case{{512, 64, 128, 4, 200}, {900, 600}}, Case{{512, 40, 128, 128, 0}, {900, 600}},
                                Case{{512, 16, 128, 128, 0}, {100'000, 10}}, Case{{512, 70, 128, 4, 600}, {4000, 9}},
                                Case{{128, 16, 128, 128, 0}, {900, 600}}}) {
    if (small_sizes() && part.tokens > 20) continue;
    for (const ops::Numerics n : {ops::kFloat, ops::kOfficialBf16}) {
      Attention many(c, {part}, n, 90);
      const auto whole = many.run(device(), true);
      EXPECT_EQ(many.run(device(), true), whole) << "again";
      if (part.tokens < 20) {
        EXPECT_TRUE(close(whole, many.run(reference(), false),
                          Tolerance::of(n.carrier, n.carrier == Carrier::kBf16 ? 0.02 : 1e-5)));
      }
      // The first token alone; the window entries of this step are not yet in the ring.
      Attention alone(c, {part}, n, 90);
      ops::Batch batch = alone.world.on_device();
      batch.tokens = 1;
      auto out = Twin<float>::poisoned(c.heads * c.dim);
      ops::SparseAttention op{.q = alone.q.on_device(1, c.heads * c.dim),
                              .kv = alone.kv.on_device(part.tokens, c.dim),
                              .heads = c.heads,
                              .window = c.window,
                              .batch = batch,
                              .ring = alone.world.ring,
                              .entries = alone.world.entries,
                              .selected = {},
                              .sink = alone.sink.device(),
                              .cos = alone.cos.on_device(1, 32),
                              .sin = alone.sin.on_device(1, 32),
                              .out = out.on_device(1, c.heads * c.dim),
                              .carrier = n.carrier};
      if (c.k != 0) op.selected = alone.selected.on_device(1, c.k);
      device().sparse_attention(op);
      EXPECT_EQ(out.fetch(), std::vector<float>(whole.begin(), whole.begin() + c.heads * c.dim)) << name_of(n);
    }
  }
}

// Logits of hundreds, of every sign; sinks above and below all of them; stored numbers that are none, and scales out of
// the ordinary; for few tokens and for many.
TEST_F(Sequences, AttentionOfHardNumbers) {
  const AttentionCase c{512, 20, 128, 4, 200};
  for (const std::vector<Part>& mixture : {std::vector<Part>{{900, 3}}, std::vector<Part>{{2000, 150}}}) {
    for (const int kind : {0, 1, 2}) {
      Attention a(c, mixture, ops::kOfficialBf16, 95);
      for (float& x : a.q.host()) x = rounded(x * 25, Carrier::kBf16);
      if (kind == 2) {  // what is out of the ordinary there is not to decide on the logits
        for (std::size_t at = 0; at < a.q.host().size(); at += 512) std::fill_n(a.q.host().begin() + at + 64, 64, 0.0F);
      }
      a.q.upload();
      for (std::size_t h = 0; h < a.sink.host().size(); ++h) a.sink.host()[h] *= h % 2 == 0 ? 1000 : 1;
      a.sink.upload();
      auto& page = a.world.pages[5];
      const std::size_t bytes = a.world.entries.codec.bytes();
      for (std::size_t e = 0; e < 32; ++e) {
        std::vector<float> row = normal(512, 96 + static_cast<std::uint32_t>(e), 1, Carrier::kBf16);
        if (kind == 1) row[e * 3] = std::numeric_limits<float>::quiet_NaN();
        if (kind == 2) std::fill(row.begin() + 64, row.begin() + 128, e % 2 == 0 ? 1e-30F : 0x1p18F);
        a.world.entries.codec.encode(row, page.host().data() + a.world.entries.offset + e * bytes);
      }
      page.upload();
      const auto got = a.run(device(), true);
      EXPECT_TRUE(close(got, a.run(reference(), false), Tolerance::of(Carrier::kBf16, 0.03), few(got.size()))) << kind;
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
