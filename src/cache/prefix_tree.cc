#include "cache/prefix_tree.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace fathom::cache {
namespace {

using Tokens = std::span<const std::int32_t>;

std::size_t common(Tokens a, Tokens b) {
  return static_cast<std::size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin()).first -
      a.begin());
}

TokenPage page_of(Tokens tokens, std::size_t page) {
  TokenPage out;
  std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(page) * ops::kPageTokens, ops::kPageTokens, out.begin());
  return out;
}

// In a sorted set, what shares the longest prefix with a key stands beside the place where the key would be.
std::size_t common_with_children(const Node& node, Tokens rest) {
  TokenPage key;
  key.fill(std::numeric_limits<std::int32_t>::min());
  std::copy(rest.begin(), rest.end(), key.begin());
  std::size_t best = 0;
  auto it = node.children.lower_bound(&key);
  if (it != node.children.end()) best = common(*it->first, rest);
  if (it != node.children.begin()) best = std::max(best, common(*std::prev(it)->first, rest));
  return best;
}

std::size_t common_with_tails(const Node& node, const std::vector<std::int32_t>& rest) {
  std::size_t best = 0;
  auto it = node.snapshots.lower_bound(rest);
  if (it != node.snapshots.end()) best = common(it->first, rest);
  if (it != node.snapshots.begin()) best = std::max(best, common(std::prev(it)->first, rest));
  return best;
}

// Calls use(snapshot) for those whose tail is a prefix of `rest`, longest first, until it says that is enough. Tails
// that are prefixes of `rest` are not above it in order, and all that lies between one of them and `rest` begins with
// it; so whatever stands next below either is the longest, or says how much shorter that must be.
template <class Use>
bool visit_prefixes(const Node& node, std::vector<std::int32_t> rest, const Use& use) {
  while (!node.snapshots.empty()) {
    const auto above = node.snapshots.upper_bound(rest);
    if (above == node.snapshots.begin()) return false;
    const auto& [tail, snapshot] = *std::prev(above);
    const std::size_t n = common(tail, rest);
    if (n == tail.size()) {
      if (use(*snapshot)) return true;
      if (n == 0) return false;
      rest.resize(n - 1);
    } else {
      rest.resize(n);
    }
  }
  return false;
}

}  // namespace

const Node* PrefixTree::deepest(const Node& root, Tokens tokens) const {
  const Node* node = &root;
  const auto pages = static_cast<std::int32_t>(tokens.size() / ops::kPageTokens);
  while (node->depth < pages) {
    const TokenPage key = page_of(tokens, static_cast<std::size_t>(node->depth));
    const auto it = node->children.find(&key);
    if (it == node->children.end()) break;
    node = it->second;
  }
  return node;
}

Match PrefixTree::find(std::string_view salt, Tokens tokens) const {
  Match match;
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return match;
  const Node* node = deepest(*root->second, tokens);
  const auto rest_of = [&](const Node& n) {
    const Tokens rest = tokens.subspan(static_cast<std::size_t>(n.length()));
    return std::vector<std::int32_t>(
        rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(rest.size(), ops::kPageTokens)));
  };
  const auto rest = rest_of(*node);
  match.shared = node->length() +
                 static_cast<std::int32_t>(std::max(common_with_children(*node, rest), common_with_tails(*node, rest)));
  for (; node != nullptr && match.memory == nullptr; node = node->parent) {
    visit_prefixes(*node, rest_of(*node), [&](Snapshot& s) {
      if (s.in_memory()) {
        match.memory = &s;
      } else if (match.disk == nullptr && s.file.written) {
        match.disk = &s;
      }
      return match.memory != nullptr;
    });
  }
  return match;
}

Node* PrefixTree::add_node(Node* parent, const TokenPage& tokens) {
  auto node = std::make_unique<Node>();
  node->parent = parent;
  node->tokens = tokens;
  node->depth = parent != nullptr ? parent->depth + 1 : 0;
  node->index = nodes_.size();
  nodes_.push_back(std::move(node));
  return nodes_.back().get();
}

Node* PrefixTree::root(std::string_view salt) {
  const auto it = roots_.find(salt);
  if (it != roots_.end()) return it->second;
  Node* node = add_node(nullptr, {});
  node->salt = salt;
  roots_.emplace(salt, node);
  return node;
}

Node* PrefixTree::child(Node& node, const TokenPage& tokens) {
  const auto it = node.children.find(&tokens);
  if (it != node.children.end()) return it->second;
  Node* added = add_node(&node, tokens);
  node.children.emplace(&added->tokens, added);
  return added;
}

Node* PrefixTree::path(std::string_view salt, Tokens tokens, std::int32_t pages) {
  Node* node = root(salt);
  while (node->depth < pages) node = child(*node, page_of(tokens, static_cast<std::size_t>(node->depth)));
  return node;
}

Snapshot* PrefixTree::exact(std::string_view salt, Tokens tokens) const {
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return nullptr;
  const Node* node = deepest(*root->second, tokens);
  const Tokens tail = tokens.subspan(static_cast<std::size_t>(node->length()));
  const auto it = node->snapshots.find(std::vector<std::int32_t>(tail.begin(), tail.end()));
  return it != node->snapshots.end() ? it->second.get() : nullptr;
}

Snapshot* PrefixTree::add_snapshot(Node& node, Tokens tail, std::int32_t drafted) {
  auto s = std::make_unique<Snapshot>();
  s->node = &node;
  s->tail.assign(tail.begin(), tail.end());
  s->reach = {.length = node.length() + static_cast<std::int32_t>(tail.size()), .drafted = drafted};
  const auto [it, added] = node.snapshots.emplace(s->tail, std::move(s));
  FATHOM_CHECK(added, "one snapshot at one place");
  return it->second.get();
}

void PrefixTree::count_memory(Node* node, std::int32_t delta, const std::function<void(Node&)>& drop) {
  for (; node != nullptr; node = node->parent) {
    const bool was = node->memory_users > 0;
    node->memory_users += delta;
    const bool is = node->memory_users > 0;
    if (was == is) return;
    if (!is && !node->is_root()) drop(*node);
  }
}

void PrefixTree::count_disk(Node* node, std::int32_t delta, const std::function<void(Node&)>& drop) {
  for (; node != nullptr; node = node->parent) {
    const bool was = node->disk_users > 0;
    node->disk_users += delta;
    const bool is = node->disk_users > 0;
    if (was == is) return;
    if (!is && !node->is_root()) drop(*node);
  }
}

void PrefixTree::forget(Snapshot* s) {
  FATHOM_CHECK(!s->in_memory() && !s->on_disk(), "what still is somewhere is not forgotten");
  Node* node = s->node;
  node->snapshots.erase(node->snapshots.find(s->tail));
  prune(node);
}

void PrefixTree::prune(Node* node) {
  while (node != nullptr && node->empty()) {
    FATHOM_CHECK(node->page == kNoBlock && node->file.id == 0, "a node without users holds nothing");
    Node* parent = node->parent;
    if (parent != nullptr) {
      parent->children.erase(&node->tokens);
    } else {
      roots_.erase(node->salt);
    }
    nodes_.back()->index = node->index;
    std::swap(nodes_[node->index], nodes_.back());
    nodes_.pop_back();
    node = parent;
  }
}

std::vector<Snapshot*> PrefixTree::below(Node& node) const {
  std::vector<Snapshot*> out;
  std::vector<Node*> open{&node};
  while (!open.empty()) {
    Node* n = open.back();
    open.pop_back();
    for (const auto& [tail, s] : n->snapshots) out.push_back(s.get());
    for (const auto& [tokens, c] : n->children) open.push_back(c);
  }
  return out;
}

}  // namespace fathom::cache
