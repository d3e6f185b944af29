// Operations whose rows are independent: embedding, norms, rotation, heads, hyper-connections, router.
#include <algorithm>
#include <limits>

#include "cuda/twin.h"

namespace fathom::testing {
namespace {

using ops::Carrier;
using Rows = OnDevice;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::uint16_t> as_bf16(const std::vector<float>& v) {
  std::vector<std::uint16_t> b(v.size());
  std::transform(v.begin(), v.end(), b.begin(), [](float x) { return quant::to_bf16(x).bits; });
  return b;
}

TEST_F(Rows, Embed) {
  const std::int64_t vocab = 50;
  for (const std::int64_t d : {1, 64, 4096}) {
    for (const std::int32_t streams : {1, 4}) {
      for (const std::int64_t tokens : {0, 1, 5}) {
        for (const bool bf16 : {true, false}) {
          const Twin<std::uint16_t> narrow(as_bf16(normal(vocab * d, 1)));
          const Twin<float> wide(normal(vocab * d, 2));
          std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
          for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>((i * 31 + 7) % vocab);
          const Twin<std::int32_t> id(ids);
          auto x = Twin<float>::poisoned(tokens * streams * d);
          const auto table = [&](const void* data) {
            return ops::Weight{.dtype = bf16 ? DType::kBf16 : DType::kF32,
                               .data = static_cast<const std::byte*>(data),
                               .rows = vocab,
                               .cols = d};
          };
          const void* on_host = bf16 ? static_cast<const void*>(narrow.host().data()) : wide.host().data();
          const void* on_device = bf16 ? static_cast<const void*>(narrow.device()) : wide.device();
          device().embed({.ids = id.device(),
                          .table = table(on_device),
                          .streams = streams,
                          .x = x.on_device(tokens, streams * d)});
          reference().embed({.ids = id.host().data(),
                             .table = table(on_host),
                             .streams = streams,
                             .x = x.on_host(tokens, streams * d)});
          EXPECT_EQ(x.fetch(), x.host()) << d << " " << streams << " " << tokens << " " << bf16;
        }
      }
    }
  }
}

TEST_F(Rows, RmsNorm) {
  for (const std::int64_t n : {1, 31, 64, 257, 4096, 7168}) {
    for (const std::int64_t tokens : {0, 1, 3, 65}) {
      for (const Carrier carrier : {Carrier::kF32, Carrier::kBf16}) {
        Twin<float> x(normal(tokens * n, 3, 2, carrier));
        const Twin<float> w(normal(n, 4));
        auto y = Twin<float>::poisoned(tokens * n);
        device().rms_norm({.x = x.on_device(tokens, n),
                           .w = w.device(),
                           .y = y.on_device(tokens, n),
                           .eps = 1e-6F,
                           .carrier = carrier});
        const auto apart = y.fetch();
        device().rms_norm({.x = x.on_device(tokens, n),
                           .w = w.device(),
                           .y = x.on_device(tokens, n),
                           .eps = 1e-6F,
                           .carrier = carrier});
        reference().rms_norm({.x = x.on_host(tokens, n),
                              .w = w.host().data(),
                              .y = y.on_host(tokens, n),
                              .eps = 1e-6F,
                              .carrier = carrier});
        EXPECT_TRUE(close(apart, y.host(), Tolerance::of(carrier))) << n << " " << tokens;
        EXPECT_EQ(x.fetch(), apart) << "in place, " << n << " " << tokens;
      }
    }
  }
}

TEST_F(Rows, ANanStaysInItsRow) {
  const std::int64_t n = 100;
  std::vector<float> values = normal(3 * n, 5);
  values[n + 7] = kNan;
  const Twin<float> x(values);
  const Twin<float> w(normal(n, 6));
  const auto y = Twin<float>::poisoned(3 * n);
  device().rms_norm({.x = x.on_device(3, n), .w = w.device(), .y = y.on_device(3, n), .eps = 1e-6F});
  const auto got = y.fetch();
  for (std::int64_t i = 0; i < 3 * n; ++i) EXPECT_EQ(std::isnan(got[static_cast<std::size_t>(i)]), i / n == 1);
}

TEST_F(Rows, RopeTable) {
  const auto f = ops::rope_frequencies(160000, 64, {.factor = 16, .original_positions = 65536});
  const Twin<float> frequencies(f);
  const Twin<std::int32_t> positions({0, 1, 2, 127, 128, 4095, 65536, 1'000'003, 1'048'575});
  const auto n = static_cast<std::int64_t>(positions.host().size());
  for (const std::int64_t tokens : {std::int64_t{0}, n}) {
    auto cos = Twin<float>::poisoned(tokens * 32);
    auto sin = Twin<float>::poisoned(tokens * 32);
    device().rope_table({.positions = positions.device(),
                         .frequencies = frequencies.device(),
                         .cos = cos.on_device(tokens, 32),
                         .sin = sin.on_device(tokens, 32)});
    reference().rope_table({.positions = positions.host().data(),
                            .frequencies = f.data(),
                            .cos = cos.on_host(tokens, 32),
                            .sin = sin.on_host(tokens, 32)});
    EXPECT_TRUE(close(cos.fetch(), cos.host(), {1e-7, 0}));
    EXPECT_TRUE(close(sin.fetch(), sin.host(), {1e-7, 0}));
  }
}

// Cosines and sines of random angles.
struct Angles {
  Angles(std::int64_t tokens, std::int64_t n_) : n(n_), cos(normal(tokens * n_, 7)), sin(cos.host()) {
    for (std::size_t i = 0; i < sin.host().size(); ++i) {
      const float a = cos.host()[i];
      cos.host()[i] = std::cos(a);
      sin.host()[i] = std::sin(a);
    }
    cos.upload();
    sin.upload();
  }
  std::int64_t n;
  Twin<float> cos;
  Twin<float> sin;
};

TEST_F(Rows, QueryHeads) {
  for (const std::int64_t dim : {64, 128, 512}) {
    for (const std::int32_t heads : {1, 3, 64}) {
      for (const std::int64_t tokens : {0, 1, 5}) {
        for (const Carrier carrier : {Carrier::kF32, Carrier::kBf16}) {
          Angles a(tokens, 32);
          Twin<float> q(normal(tokens * heads * dim, 8, 3, carrier));
          device().query_heads({.q = q.on_device(tokens, heads * dim),
                                .heads = heads,
                                .cos = a.cos.on_device(tokens, 32),
                                .sin = a.sin.on_device(tokens, 32),
                                .eps = 1e-6F,
                                .carrier = carrier});
          reference().query_heads({.q = q.on_host(tokens, heads * dim),
                                   .heads = heads,
                                   .cos = a.cos.on_host(tokens, 32),
                                   .sin = a.sin.on_host(tokens, 32),
                                   .eps = 1e-6F,
                                   .carrier = carrier});
          // Rounded twice: a value on the border of the first may differ by an ulp of the larger of its pair.
          EXPECT_TRUE(close(q.fetch(), q.host(), Tolerance::of(carrier, carrier == Carrier::kBf16 ? 0.02 : 1e-5)))
              << dim << " " << heads << " " << tokens;
        }
      }
    }
  }
}

TEST_F(Rows, WindowEntries) {
  for (const std::int64_t dim : {64, 128, 512}) {
    for (const std::int64_t tokens : {0, 1, 33}) {
      for (const ops::Numerics n : kAllNumerics) {
        Angles a(tokens, 32);
        Twin<float> kv(normal(tokens * dim, 9, 2, n.carrier));
        const Twin<float> w(normal(dim, 10));
        device().window_entries({.kv = kv.on_device(tokens, dim),
                                 .norm_weight = w.device(),
                                 .cos = a.cos.on_device(tokens, 32),
                                 .sin = a.sin.on_device(tokens, 32),
                                 .eps = 1e-6F,
                                 .quantise = n.quantise,
                                 .carrier = n.carrier});
        reference().window_entries({.kv = kv.on_host(tokens, dim),
                                    .norm_weight = w.host().data(),
                                    .cos = a.cos.on_host(tokens, 32),
                                    .sin = a.sin.on_host(tokens, 32),
                                    .eps = 1e-6F,
                                    .quantise = n.quantise,
                                    .carrier = n.carrier});
        EXPECT_TRUE(close(kv.fetch(), kv.host(), Tolerance::of(n.carrier, n.carrier == Carrier::kBf16 ? 0.02 : 1e-5),
                          n.quantise ? few(kv.host().size()) : 0))
            << dim << " " << tokens << " " << name_of(n);
      }
    }
  }
}

TEST_F(Rows, IndexQuery) {
  for (const std::int64_t dim : {64, 128}) {
    for (const std::int32_t heads : {1, 6, 64}) {
      for (const std::int64_t tokens : sizes({0, 1, 5, 257}, {5})) {
        for (const ops::Numerics n : kAllNumerics) {
          Angles a(tokens, 32);
          Twin<float> q(normal(tokens * heads * dim, 11, 1, n.carrier));
          device().index_query({.q = q.on_device(tokens, heads * dim),
                                .heads = heads,
                                .cos = a.cos.on_device(tokens, 32),
                                .sin = a.sin.on_device(tokens, 32),
                                .quantise = n.quantise,
                                .carrier = n.carrier});
          reference().index_query({.q = q.on_host(tokens, heads * dim),
                                   .heads = heads,
                                   .cos = a.cos.on_host(tokens, 32),
                                   .sin = a.sin.on_host(tokens, 32),
                                   .quantise = n.quantise,
                                   .carrier = n.carrier});
          EXPECT_TRUE(close(q.fetch(), q.host(), Tolerance::of(n.carrier), n.quantise ? few(q.host().size()) : 0))
              << dim << " " << heads << " " << tokens << " " << name_of(n);
        }
      }
    }
  }
}

// Both kinds of queries in one: the same bytes as one after the other.
TEST_F(Rows, Queries) {
  for (const std::int64_t tokens : {0, 1, 5}) {
    for (const bool selects : {false, true}) {
      for (const ops::Numerics n : kAllNumerics) {
        Angles a(tokens, 32);
        const auto run = [&](bool fused) {
          const Twin<float> q(normal(tokens * 64 * 512, 11, 1, n.carrier));
          const Twin<float> index(normal(tokens * 64 * 128, 12, 1, n.carrier));
          ops::Queries op{.heads = {.q = q.on_device(tokens, 64 * 512),
                                    .heads = 64,
                                    .cos = a.cos.on_device(tokens, 32),
                                    .sin = a.sin.on_device(tokens, 32),
                                    .eps = 1e-6F,
                                    .carrier = n.carrier},
                          .index = {}};
          if (selects) {
            op.index = ops::IndexQuery{.q = index.on_device(tokens, 64 * 128),
                                       .heads = 64,
                                       .cos = a.cos.on_device(tokens, 32),
                                       .sin = a.sin.on_device(tokens, 32),
                                       .quantise = n.quantise,
                                       .carrier = n.carrier};
          }
          if (fused) device().queries(op);
          else device().Backend::queries(op);
          std::vector<float> all = q.fetch();
          const auto more = index.fetch();
          all.insert(all.end(), more.begin(), more.end());
          return all;
        };
        EXPECT_EQ(run(true), run(false)) << tokens << " " << selects << " " << name_of(n);
      }
    }
  }
}

struct Site {
  Site(std::int64_t rows, std::int64_t width)
      : fn(normal(rows * width, 12, 0.05F)), base(normal(rows, 13)), scale(std::vector<float>{0.7F, 1.3F, 0.9F}) {}
  ops::HyperConnection on_host() { return {fn.host().data(), base.host().data(), scale.host().data()}; }
  ops::HyperConnection on_device() { return {fn.device(), base.device(), scale.device()}; }
  Twin<float> fn;
  Twin<float> base;
  Twin<float> scale;
};

TEST_F(Rows, HyperConnections) {
  for (const std::int64_t d : sizes({64, 256, 1000, 4096}, {1000, 4096})) {
    for (const std::int64_t tokens : sizes({0, 1, 2, 7, 8, 9, 33}, {1, 9})) {
      for (const Carrier carrier : {Carrier::kF32, Carrier::kBf16}) {
        for (const bool norm : {false, true}) {
          Site site(24, 4 * d);
          Twin<float> streams(normal(tokens * 4 * d, 14, 1, carrier));
          const Twin<float> w(normal(d, 15));
          auto x = Twin<float>::poisoned(tokens * d);
          auto post = Twin<float>::poisoned(tokens * 4);
          auto comb = Twin<float>::poisoned(tokens * 16);
          device().hc_pre({.streams = streams.on_device(tokens, 4 * d),
                           .site = site.on_device(),
                           .norm_weight = norm ? w.device() : nullptr,
                           .x = x.on_device(tokens, d),
                           .post = post.on_device(tokens, 4),
                           .comb = comb.on_device(tokens, 16),
                           .sinkhorn_iters = 20,
                           .norm_eps = 1e-6F,
                           .hc_eps = 1e-6F,
                           .carrier = carrier});
          reference().hc_pre({.streams = streams.on_host(tokens, 4 * d),
                              .site = site.on_host(),
                              .norm_weight = norm ? w.host().data() : nullptr,
                              .x = x.on_host(tokens, d),
                              .post = post.on_host(tokens, 4),
                              .comb = comb.on_host(tokens, 16),
                              .sinkhorn_iters = 20,
                              .norm_eps = 1e-6F,
                              .hc_eps = 1e-6F,
                              .carrier = carrier});
          const auto where = ::testing::Message() << d << " " << tokens << " " << norm;
          EXPECT_TRUE(
              close(x.fetch(), x.host(), Tolerance::of(carrier, norm && carrier == Carrier::kBf16 ? 0.02 : 2e-5)))
              << where;
          EXPECT_TRUE(close(post.fetch(), post.host(), {2e-6, 2e-6})) << where;
          EXPECT_TRUE(close(comb.fetch(), comb.host(), {2e-6, 2e-6})) << where;

          Twin<float> y(normal(tokens * d, 16, 1, carrier));
          post.upload();
          comb.upload();
          device().hc_post({.y = y.on_device(tokens, d),
                            .streams = streams.on_device(tokens, 4 * d),
                            .post = post.on_device(tokens, 4),
                            .comb = comb.on_device(tokens, 16),
                            .out = streams.on_device(tokens, 4 * d),
                            .carrier = carrier});
          reference().hc_post({.y = y.on_host(tokens, d),
                               .streams = streams.on_host(tokens, 4 * d),
                               .post = post.on_host(tokens, 4),
                               .comb = comb.on_host(tokens, 16),
                               .out = streams.on_host(tokens, 4 * d),
                               .carrier = carrier});
          EXPECT_TRUE(close(streams.fetch(), streams.host(), Tolerance::of(carrier))) << where;

          streams.upload();
          Site head(4, 4 * d);
          device().hc_head({.streams = streams.on_device(tokens, 4 * d),
                            .site = head.on_device(),
                            .norm_weight = norm ? w.device() : nullptr,
                            .y = y.on_device(tokens, d),
                            .norm_eps = 1e-6F,
                            .hc_eps = 1e-6F,
                            .carrier = carrier});
          reference().hc_head({.streams = streams.on_host(tokens, 4 * d),
                               .site = head.on_host(),
                               .norm_weight = norm ? w.host().data() : nullptr,
                               .y = y.on_host(tokens, d),
                               .norm_eps = 1e-6F,
                               .hc_eps = 1e-6F,
                               .carrier = carrier});
          EXPECT_TRUE(
              close(y.fetch(), y.host(), Tolerance::of(carrier, norm && carrier == Carrier::kBf16 ? 0.02 : 2e-5)))
              << where;
        }
      }
    }
  }
}

// The two in one leave the same bytes as one after the other.
TEST_F(Rows, HyperConnectionsFused) {
  for (const std::int64_t d : sizes({64, 1000, 4096}, {1000, 4096})) {
    for (const std::int64_t tokens : sizes({0, 1, 7, 8, 33}, {1, 9})) {
      for (const Carrier carrier : {Carrier::kF32, Carrier::kBf16}) {
        Site site(24, 4 * d);
        const Twin<float> w(normal(d, 15));
        const Twin<float> y(normal(tokens * d, 16, 1, carrier));
        const auto run = [&](bool fused) {
          const Twin<float> streams(normal(tokens * 4 * d, 14, 1, carrier));
          const Twin<float> post(normal(tokens * 4, 20));
          const Twin<float> comb(normal(tokens * 16, 21));
          const auto x = Twin<float>::poisoned(tokens * d);
          const ops::HcPost put{.y = y.on_device(tokens, d),
                                .streams = streams.on_device(tokens, 4 * d),
                                .post = post.on_device(tokens, 4),
                                .comb = comb.on_device(tokens, 16),
                                .out = streams.on_device(tokens, 4 * d),
                                .carrier = carrier};
          const ops::HcPre pre{.streams = put.out,
                               .site = site.on_device(),
                               .norm_weight = w.device(),
                               .x = x.on_device(tokens, d),
                               .post = post.on_device(tokens, 4),
                               .comb = comb.on_device(tokens, 16),
                               .sinkhorn_iters = 20,
                               .norm_eps = 1e-6F,
                               .hc_eps = 1e-6F,
                               .carrier = carrier};
          if (fused) {
            device().hc_post_pre({.post = put, .pre = pre});
          } else {
            device().hc_post(put);
            device().hc_pre(pre);
          }
          std::vector<float> all = streams.fetch();
          for (const auto* part : {&x, &post, &comb}) {
            const auto more = part->fetch();
            all.insert(all.end(), more.begin(), more.end());
          }
          return all;
        };
        EXPECT_EQ(run(true), run(false)) << d << " " << tokens;
      }
    }
  }
}

// What runs beside the trunk sees what was before it, and is seen after they meet; recorded or not.
TEST_F(Rows, BranchesMeet) {
  const std::int64_t d = 4096;
  const std::int64_t tokens = 64;
  const Twin<float> w(normal(d, 3));
  const Twin<float> x(normal(tokens * d, 4));
  std::vector<Twin<float>> rows;
  for (int i = 0; i < 7; ++i) rows.push_back(Twin<float>::poisoned(tokens * d));
  const auto norm = [&](const Twin<float>& from, const Twin<float>& to) {
    device().rms_norm({.x = from.on_device(tokens, d), .w = w.device(), .y = to.on_device(tokens, d), .eps = 1e-6F});
  };
  const auto chain = [&] {
    norm(x, rows[0]);
    for (std::size_t i = 1; i < 6; ++i) device().beside([&, i] { norm(rows[0], rows[i]); });  // more than there are
    norm(rows[0], rows[6]);
    device().meet();
    for (std::size_t i = 1; i < 6; ++i) norm(rows[i], rows[i]);
  };
  std::vector<float> first;
  for (int turn = 0; turn < 4; ++turn) {
    device().replay(0x7777, chain);
    ASSERT_TRUE(device().finish());
    const auto expected = rows[6].fetch();
    norm(rows[6], rows[6]);
    if (first.empty()) first = rows[6].fetch();
    EXPECT_EQ(rows[6].fetch(), first);
    for (std::size_t i = 1; i < 6; ++i) EXPECT_EQ(rows[i].fetch(), first) << i;
  }
}

// A token's mixing does not depend on how many there are, be it by one kernel or another.
TEST_F(Rows, HyperConnectionsOfATokenAreItsOwn) {
  const std::int64_t d = 4096;
  Site site(24, 4 * d);
  const Twin<float> streams(normal(40 * 4 * d, 17));
  const auto run = [&](std::int64_t tokens) {
    const auto x = Twin<float>::poisoned(tokens * d);
    const auto post = Twin<float>::poisoned(tokens * 4);
    const auto comb = Twin<float>::poisoned(tokens * 16);
    device().hc_pre({.streams = streams.on_device(tokens, 4 * d),
                     .site = site.on_device(),
                     .norm_weight = nullptr,
                     .x = x.on_device(tokens, d),
                     .post = post.on_device(tokens, 4),
                     .comb = comb.on_device(tokens, 16),
                     .sinkhorn_iters = 20,
                     .norm_eps = 1e-6F,
                     .hc_eps = 1e-6F});
    auto all = x.fetch();
    all.resize(static_cast<std::size_t>(d));
    return all;
  };
  for (const std::int64_t tokens : sizes({2, 9, 16, 40}, {2, 9})) EXPECT_EQ(run(1), run(tokens)) << tokens;
}

TEST_F(Rows, MtpInput) {
  for (const std::int64_t d : {64, 4096}) {
    for (const std::int64_t tokens : {0, 1, 9}) {
      for (const Carrier carrier : {Carrier::kF32, Carrier::kBf16}) {
        Twin<float> e(normal(tokens * d, 18, 1, carrier));
        Twin<float> h(normal(tokens * 4 * d, 19, 1, carrier));
        auto x = Twin<float>::poisoned(tokens * 4 * d);
        device().mtp_input({.e = e.on_device(tokens, d),
                            .h = h.on_device(tokens * 4, d),
                            .x = x.on_device(tokens, 4 * d),
                            .carrier = carrier});
        reference().mtp_input({.e = e.on_host(tokens, d),
                               .h = h.on_host(tokens * 4, d),
                               .x = x.on_host(tokens, 4 * d),
                               .carrier = carrier});
        EXPECT_EQ(x.fetch(), x.host());
      }
    }
  }
}

TEST_F(Rows, RouteByScore) {
  for (const std::int64_t experts : {4, 16, 256, 384}) {
    for (const std::int64_t k : {1, 2, 4}) {
      for (const std::int64_t tokens : {0, 1, 70}) {
        std::vector<float> logits = normal(tokens * experts, 20, 3);
        if (tokens == 70) {
          for (std::int64_t e = 0; e < experts; ++e) {
            logits[static_cast<std::size_t>(3 * experts + e)] = 1;     // all alike: the lowest experts
            logits[static_cast<std::size_t>(4 * experts + e)] = kNan;  // nothing to choose by: still valid
            logits[static_cast<std::size_t>(5 * experts + e)] *= 20;   // beyond softplus's linear part
          }
          logits[static_cast<std::size_t>(6 * experts)] = kNan;
        }
        Twin<float> x(logits);
        const Twin<float> bias(normal(experts, 21, 0.1F));
        auto chosen = Twin<std::int32_t>::poisoned(tokens * k);
        auto weights = Twin<float>::poisoned(tokens * k);
        device().route({.logits = x.on_device(tokens, experts),
                        .bias = bias.device(),
                        .route_scale = 1.5F,
                        .experts = chosen.on_device(tokens, k),
                        .weights = weights.on_device(tokens, k)});
        reference().route({.logits = x.on_host(tokens, experts),
                           .bias = bias.host().data(),
                           .route_scale = 1.5F,
                           .experts = chosen.on_host(tokens, k),
                           .weights = weights.on_host(tokens, k)});
        EXPECT_EQ(chosen.fetch(), chosen.host()) << experts << " " << k << " " << tokens;
        EXPECT_TRUE(close(weights.fetch(), weights.host(), {1e-6, 1e-6})) << experts << " " << k << " " << tokens;
      }
    }
  }
}

TEST_F(Rows, RouteByTokenId) {
  const std::int64_t experts = 256;
  const std::int64_t k = 6;
  const std::int64_t vocab = 40;
  const std::int64_t tokens = 33;
  std::vector<std::int32_t> entries(static_cast<std::size_t>(vocab * k));
  for (std::size_t i = 0; i < entries.size(); ++i) entries[i] = static_cast<std::int32_t>((i * 41 + i / 6 * 17) % 256);
  const Twin<std::int32_t> table(entries);
  std::vector<std::int32_t> token_ids(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < token_ids.size(); ++i) token_ids[i] = static_cast<std::int32_t>(i * 13 % vocab);
  const Twin<std::int32_t> ids(token_ids);
  Twin<float> x(normal(tokens * experts, 22, 3));
  auto chosen = Twin<std::int32_t>::poisoned(tokens * k);
  auto weights = Twin<float>::poisoned(tokens * k);
  device().route({.logits = x.on_device(tokens, experts),
                  .table = table.device(),
                  .ids = ids.device(),
                  .route_scale = 2.5F,
                  .experts = chosen.on_device(tokens, k),
                  .weights = weights.on_device(tokens, k)});
  reference().route({.logits = x.on_host(tokens, experts),
                     .table = table.host().data(),
                     .ids = ids.host().data(),
                     .route_scale = 2.5F,
                     .experts = chosen.on_host(tokens, k),
                     .weights = weights.on_host(tokens, k)});
  EXPECT_EQ(chosen.fetch(), chosen.host());
  EXPECT_TRUE(close(weights.fetch(), weights.host(), {1e-6, 1e-6}));
}

}  // namespace
}  // namespace fathom::testing
