#include "checkpoint/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/mapped_file.h"

namespace fathom::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string text_of(const char* relative) {
  auto text = read_text_file(std::filesystem::path(FATHOM_SOURCE_DIR) / relative, kMaxConfigBytes);
  EXPECT_TRUE(text) << text.error().what;
  return text.value_or("");
}

TEST(Config, ReadsThePublishedForm) {
  auto c = parse_config(text_of("models/fathom-tiny/config.json"), "config.json");
  ASSERT_TRUE(c) << c.error().what;
  EXPECT_EQ(c->vocab, 3712);
  EXPECT_EQ(c->hidden, 256);
  EXPECT_EQ(c->layers, 6);
  EXPECT_EQ(c->heads, 8);
  EXPECT_EQ(c->head_dim, 128);
  EXPECT_EQ(c->rope_dim, 64);
  EXPECT_EQ(c->q_rank, 128);
  EXPECT_EQ(c->o_groups, 2);
  EXPECT_EQ(c->o_rank, 128);
  EXPECT_EQ(c->window, 128);
  EXPECT_THAT(c->compress_ratios, ElementsAre(0, 4, 128, 4, 128, 4));
  EXPECT_EQ(c->index_heads, 4);
  EXPECT_EQ(c->index_dim, 64);
  EXPECT_EQ(c->index_topk, 64);
  EXPECT_EQ(c->routed_experts, 16);
  EXPECT_EQ(c->active_experts, 4);
  EXPECT_EQ(c->expert_inner, 128);
  EXPECT_EQ(c->hash_layers, 1);
  EXPECT_EQ(c->route_scale, 1.5F);
  EXPECT_EQ(c->swiglu_limit, 10.0F);
  EXPECT_EQ(c->streams, 4);
  EXPECT_EQ(c->sinkhorn_iters, 20);
  EXPECT_EQ(c->norm_eps, 1e-6F);
  EXPECT_EQ(c->hc_eps, 1e-6F);
  EXPECT_EQ(c->rope_theta, 10000.0);
  EXPECT_EQ(c->compress_rope_theta, 160000.0);
  EXPECT_EQ(c->yarn, (YarnConfig{16, 32, 1, 4096}));
  EXPECT_EQ(c->max_positions, 65536);
  EXPECT_EQ(c->bos_token, 0);
  EXPECT_EQ(c->eos_token, 1);
  EXPECT_TRUE(c->quantised);
}

TEST(Config, WritesWhatItReads) {
  for (const char* file : {"models/fathom-tiny/config.json", "tests/data/models/micro-random-fp/config.json"}) {
    auto c = parse_config(text_of(file), file);
    ASSERT_TRUE(c) << c.error().what;
    auto again = parse_config(to_json(*c), "rewritten");
    ASSERT_TRUE(again) << again.error().what;
    EXPECT_EQ(*c, *again);
  }
}

TEST(Config, ReportsAllProblemsAtOnce) {
  auto c = parse_config(R"({"model_type": "deepseek_v4", "vocab_size": "many", "hidden_size": -3})", "c.json");
  ASSERT_FALSE(c);
  EXPECT_EQ(c.error().code, Code::kInvalid);
  EXPECT_THAT(c.error().what, HasSubstr("vocab_size: found \"many\", expected a 32-bit integer"));
  EXPECT_THAT(c.error().what, HasSubstr("num_hidden_layers: missing"));
  EXPECT_THAT(c.error().what, HasSubstr("more"));
}

}  // namespace
}  // namespace fathom::checkpoint
