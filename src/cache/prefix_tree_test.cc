#include "cache/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace fathom::cache {
namespace {

using Tokens = std::vector<std::int32_t>;

void nothing(Node&) {}

// Puts a snapshot of tokens into the tree as if it were in memory (or on disk), pages included.
Snapshot* put(PrefixTree& tree, const Tokens& tokens, bool memory, const std::string& salt = "") {
  Snapshot* s = tree.exact(salt, tokens);
  if (s == nullptr) {
    Node* node = tree.path(salt, tokens, static_cast<std::int32_t>(tokens.size()) / ops::kPageTokens);
    const auto tail = std::span(tokens).subspan(static_cast<std::size_t>(node->length()));
    s = tree.add_snapshot(*node, tail, 0);
  }
  if (memory && !s->in_memory()) {
    s->image = {0};
    tree.count_memory(s->node, +1, nothing);
  }
  if (!memory && !s->on_disk()) {
    s->file = {.id = 1, .bytes = 1, .written = true};
    tree.count_disk(s->node, +1, nothing);
  }
  return s;
}

void take(PrefixTree& tree, Snapshot* s) {
  if (s->in_memory()) tree.count_memory(s->node, -1, nothing);
  if (s->on_disk()) tree.count_disk(s->node, -1, nothing);
  s->image.clear();
  s->file = {};
  tree.forget(s);
}

bool is_prefix(const Tokens& a, const Tokens& b) {
  return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
}

std::size_t common(const Tokens& a, const Tokens& b) {
  std::size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

// Sequences that have much in common: mostly zeros, of lengths around a page or two.
Tokens random_tokens(std::mt19937& rng) {
  Tokens t(std::array{0U, 1U, 5U, 127U, 128U, 129U, 255U, 256U, 300U}[rng() % 9] + rng() % 3, 0);
  for (int flips = static_cast<int>(rng() % 3); flips > 0 && !t.empty(); --flips)
    t[rng() % t.size()] = static_cast<std::int32_t>(rng() % 2);
  if (!t.empty() && rng() % 2 == 0) t.back() = static_cast<std::int32_t>(rng() % 4);
  return t;
}

TEST(PrefixTree, AgreesWithAListOfSequences) {
  std::mt19937 rng(17);
  for (int round = 0; round < 30; ++round) {
    PrefixTree tree;
    std::set<Tokens> in_memory;
    std::set<Tokens> on_disk;
    for (int step = 0; step < 150; ++step) {
      const Tokens t = random_tokens(rng);
      const unsigned what = rng() % 8;
      if (what < 2 && !t.empty()) {
        put(tree, t, true);
        in_memory.insert(t);
      } else if (what < 4 && !t.empty()) {
        put(tree, t, false);
        on_disk.insert(t);
      } else if (what == 4) {
        if (Snapshot* s = tree.exact("", t); s != nullptr) take(tree, s);
        in_memory.erase(t);
        on_disk.erase(t);
      }
      const Tokens q = random_tokens(rng);
      std::size_t memory = 0;
      std::size_t disk = 0;
      std::size_t shared = 0;
      for (const auto& s : in_memory) {
        if (is_prefix(s, q)) memory = std::max(memory, s.size());
        shared = std::max(shared, common(s, q));
      }
      for (const auto& s : on_disk) {
        if (is_prefix(s, q)) disk = std::max(disk, s.size());
        shared = std::max(shared, common(s, q));
      }
      const Match m = tree.find("", q);
      ASSERT_EQ(m.memory_length(), static_cast<std::int32_t>(memory)) << "round " << round << " step " << step;
      ASSERT_EQ(m.disk_length(), static_cast<std::int32_t>(disk > memory ? disk : 0))
          << "round " << round << " step " << step;
      ASSERT_EQ(m.shared, static_cast<std::int32_t>(shared)) << "round " << round << " step " << step;
      ASSERT_EQ(tree.find("other", q).shared, 0);
    }
    for (const auto& t : in_memory) take(tree, tree.exact("", t));
    for (const auto& t : on_disk) {
      if (Snapshot* s = tree.exact("", t); s != nullptr) take(tree, s);
    }
    EXPECT_TRUE(tree.nodes().empty()) << "what nothing needs is gone";
  }
}

TEST(PrefixTree, SaltsAreSeparateWorlds) {
  PrefixTree tree;
  const Tokens t(200, 1);
  put(tree, t, true, "a");
  EXPECT_EQ(tree.find("a", t).memory_length(), 200);
  EXPECT_EQ(tree.find("b", t).memory_length(), 0);
  EXPECT_EQ(tree.find("", t).shared, 0);
}

TEST(PrefixTree, ADeepTreeIsTakenApartWithoutDeepRecursion) {
  // A million tokens: the longest context of the published models.
  PrefixTree tree;
  Tokens t(1'000'000);
  for (std::size_t i = 0; i < t.size(); ++i) t[i] = static_cast<std::int32_t>(i % 97);
  Snapshot* s = put(tree, t, true);
  EXPECT_EQ(tree.find("", t).memory, s);
  EXPECT_EQ(tree.below(*tree.root("")).size(), 1U);
  take(tree, s);
  EXPECT_TRUE(tree.nodes().empty());
  put(tree, t, true);
}

TEST(PrefixTree, ManyTailsInOnePlaceAreSearchedQuickly) {
  // Every prompt shorter than a page hangs on the root; a search must not look at each.
  PrefixTree tree;
  for (std::int32_t i = 0; i < 20'000; ++i) put(tree, {7, i % 100, i / 100}, true);
  put(tree, {7}, true);
  for (std::int32_t i = 0; i < 20'000; ++i) ASSERT_EQ(tree.find("", Tokens{7, i % 100, 999, i}).memory_length(), 1);
}

}  // namespace
}  // namespace fathom::cache
