// Attention over sequences with a past, by few tokens and by many, alone and with what stands around it.
#include <algorithm>
#include <limits>
#include <numeric>

#include "cuda/weights.h"
#include "cuda/world.h"

namespace fathom::testing {
namespace {

using ops::Carrier;
using Attentions = OnDevice;

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
  ops::SparseAttention op(Twin<float>& out, bool on_device, std::int32_t slack = 0) {
    const std::int64_t tokens = world.tokens();
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
    return op;
  }
  Twin<float> no_output() const { return Twin<float>::poisoned(world.tokens() * c.heads * c.dim); }
  std::vector<float> run(ops::Backend& backend, bool on_device, std::int32_t slack = 0) {
    auto out = no_output();
    backend.sparse_attention(op(out, on_device, slack));
    return on_device ? out.fetch() : out.host();
  }
  AttentionCase c;
  ops::Numerics n;
  World world;
  Twin<float> q, kv, cos, sin, sink;
  Twin<std::int32_t> selected;
};

TEST_F(Attentions, SparseAttention) {
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
TEST_F(Attentions, AttentionOfATokenIsItsOwn) {
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

// In one what one after another is, to the bit: queries not ready, results that are a product's inputs; few tokens and
// many, heads that fill no block, spans that are merged, many sequences and few in one step.
TEST_F(Attentions, AttendIsAllItsSteps) {
  struct Case {
    AttentionCase attention;
    std::vector<Part> mixture;
    std::int32_t groups;
  };
  for (const auto& [c, mixture, groups] :
       {Case{{512, 64, 128, 0, 0}, {{0, 300}}, 8}, Case{{512, 64, 128, 4, 512}, {{2300, 70}, {0, 90}, {500, 1}}, 8},
        Case{{512, 12, 128, 128, 0}, {{90'000, 70}}, 2}, Case{{512, 70, 128, 4, 40}, {{40, 100}}, 7},
        Case{{512, 8, 128, 4, 600}, std::vector<Part>(33, {2700, 1}), 1},
        Case{{512, 16, 128, 4, 40}, {{400, 9}}, 2}}) {
    if (small_sizes() && mixture[0].tokens > 100) continue;
    for (const ops::Numerics n : kAllNumerics) {
      Attention a(c, mixture, n, 110);
      const std::int64_t tokens = a.world.tokens();
      const std::int64_t rows = groups * 64;
      const TwinWeight w(n.quantise ? kFp8 : kBf16, rows, c.heads * c.dim / groups, 111);
      auto out = a.no_output();
      const auto attend = [&](Twin<float>& z) {
        const ops::SparseAttention attention = a.op(out, true);
        return ops::Attend{.queries = {.heads = {.q = a.q.on_device(tokens, c.heads * c.dim),
                                                 .heads = c.heads,
                                                 .cos = attention.cos,
                                                 .sin = attention.sin,
                                                 .eps = 1e-6F,
                                                 .carrier = n.carrier}},
                           .attention = attention,
                           .project = {.x = attention.out,
                                       .w = w.on_device(),
                                       .y = z.on_device(tokens, rows),
                                       .groups = groups,
                                       .x_carrier = n.carrier,
                                       .carrier = n.carrier}};
      };
      auto at_once = Twin<float>::poisoned(tokens * rows);
      device().attend(attend(at_once));
      a.q.upload();
      auto in_steps = Twin<float>::poisoned(tokens * rows);
      device().Backend::attend(attend(in_steps));
      EXPECT_EQ(at_once.fetch(), in_steps.fetch()) << c.heads << " " << c.ratio << " " << c.k << " " << name_of(n);
    }
  }
}

// Logits of hundreds, of every sign; sinks above and below all of them; stored numbers that are none, and scales out of
// the ordinary; for few tokens and for many.
TEST_F(Attentions, AttentionOfHardNumbers) {
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

}  // namespace
}  // namespace fathom::testing
