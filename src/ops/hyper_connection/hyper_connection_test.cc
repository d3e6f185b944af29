#include "ops/hyper_connection/hyper_connection.h"

#include "ops/test_support.h"

namespace fathom::ops {
namespace {

using testing::Rng;
using testing::Rows;

struct Case {
  std::int64_t tokens;
  std::int64_t streams;
  std::int64_t dim;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "T=" << c.tokens << " C=" << c.streams << " d=" << c.dim;
}

class HyperConnectionDiff : public ::testing::TestWithParam<Case> {
 protected:
  HyperConnectionDiff()
      : c(GetParam()),
        n(2 * c.streams + c.streams * c.streams),
        fn(testing::normals(rng, n * c.streams * c.dim, 0.02F)),
        base(testing::normals(rng, n)),
        scale(testing::normals(rng, 3)),
        norm(testing::normals(rng, c.dim)),
        streams(Rows::normal(rng, c.tokens, c.streams * c.dim)),
        y(Rows::normal(rng, c.tokens, c.dim)) {}

  HyperConnection site() const { return {.fn = fn.data(), .base = base.data(), .scale = scale.data()}; }

  struct Out {
    Rows x, post, comb, put_back, head;
  };
  Out run(Backend& b) const {
    Out o = {Rows(c.tokens, c.dim), Rows(c.tokens, c.streams), Rows(c.tokens, c.streams * c.streams), streams,
             Rows(c.tokens, c.dim)};
    b.hc_pre({.streams = streams.mat(),
              .site = site(),
              .norm_weight = norm.data(),
              .x = o.x.mat(),
              .post = o.post.mat(),
              .comb = o.comb.mat(),
              .sinkhorn_iters = 20,
              .norm_eps = 1e-6F,
              .hc_eps = 1e-6F});
    b.hc_post({.y = y.mat(),
               .streams = o.put_back.mat(),
               .post = o.post.mat(),
               .comb = o.comb.mat(),
               .out = o.put_back.mat()});
    b.hc_head({.streams = streams.mat(),
               .site = site(),
               .norm_weight = nullptr,
               .y = o.head.mat(),
               .norm_eps = 1e-6F,
               .hc_eps = 1e-6F});
    return o;
  }

  Rng rng{6};
  Case c;
  std::int64_t n;
  std::vector<float> fn, base, scale, norm;
  Rows streams, y;
};

void expect_near(const Rows& got, const Rows& want, double relative, double size) {
  EXPECT_TRUE(got.padding_untouched());
  for (std::int64_t t = 0; t < got.rows(); ++t) {
    for (std::int64_t i = 0; i < got.cols(); ++i) {
      ASSERT_NEAR(got.at(t, i), want.at(t, i), relative * (std::fabs(want.at(t, i)) + size)) << t << " " << i;
    }
  }
}

TEST_P(HyperConnectionDiff, CpuMatchesReferenceOnEveryTarget) {
  const Out want = run(*make_ref_backend());
  testing::Backends backends;
  std::unique_ptr<Out> first;
  testing::for_each_target([&](bool fma) {
    const Out got = run(backends.threads(1));
    // The mixes are sums of C*d products of about 0.02, so of size 0.02 sqrt(C*d) after the norm, each rounded C*d/16
    // times in its lane (errors add like a random walk; 8 stands for its constants). They pass through sigmoids and a
    // softmax, which do not amplify, and weigh values of size about 1.
    const double width = static_cast<double>(c.streams * c.dim);
    const double mixes =
        8 * 0x1p-24 * (1 + std::sqrt(width) * 0.02) * std::sqrt(width / 16 + 4) * (fma ? 1 : 2) + 0x1p-20;
    expect_near(got.post, want.post, mixes, 1);
    expect_near(got.comb, want.comb, mixes, 1);
    expect_near(got.x, want.x, mixes, 4);
    expect_near(got.put_back, want.put_back, mixes, 4 * static_cast<double>(c.streams));
    expect_near(got.head, want.head, mixes, 4 * static_cast<double>(c.streams));
    const Out threads = run(backends.threads(3));
    EXPECT_TRUE(threads.x.same(got.x) && threads.post.same(got.post) && threads.comb.same(got.comb) &&
                threads.put_back.same(got.put_back) && threads.head.same(got.head));
    if (!fma) return;
    EXPECT_TRUE(first == nullptr ||
                (first->x.same(got.x) && first->put_back.same(got.put_back) && first->head.same(got.head)));
    first = std::make_unique<Out>(got);
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, HyperConnectionDiff,
                         ::testing::Values(Case{0, 4, 8}, Case{1, 4, 61}, Case{3, 1, 16}, Case{2, 2, 129},
                                           Case{21, 4, 256}, Case{2, 4, 4096}));

TEST(HyperConnection, ATokenAloneEqualsTheTokenInABatch) {
  Rng rng(7);
  const std::int64_t d = 320;
  const auto fn = testing::normals(rng, 24 * 4 * d, 0.02F);
  const auto base = testing::normals(rng, 24);
  const std::vector<float> scale = {0.5F, 0.7F, 0.9F};
  const Rows streams = Rows::normal(rng, 40, 4 * d);
  const HyperConnection site = {.fn = fn.data(), .base = base.data(), .scale = scale.data()};
  testing::Backends backends;
  const auto run = [&](Mat<const float> x, Rows& u, Rows& post, Rows& comb) {
    backends.threads(2).hc_pre({.streams = x,
                                .site = site,
                                .x = u.mat(),
                                .post = post.mat(),
                                .comb = comb.mat(),
                                .norm_eps = 1e-6F,
                                .hc_eps = 1e-6F});
  };
  Rows u(40, d), post(40, 4), comb(40, 16);
  run(streams.mat(), u, post, comb);
  for (std::int64_t t = 0; t < 40; t += 3) {
    Rows u1(1, d), post1(1, 4), comb1(1, 16);
    run({streams.mat().row(t), 1, 4 * d, streams.mat().ld}, u1, post1, comb1);
    ASSERT_TRUE(u1.same_row(0, u, t) && post1.same_row(0, post, t) && comb1.same_row(0, comb, t));
  }
}

}  // namespace
}  // namespace fathom::ops
