// PrefixTree: what is remembered, by the tokens it belongs to. One node is one page, that is 128 tokens; the way from a
// root to a node spells the tokens before it. Snapshots hang on the node whose page is their last full one and carry
// the fewer than 128 tokens that follow as their tail.
//
// Each node and each snapshot is in memory, on disk, or both. The tree keeps two promises:
//   a snapshot in memory has the pages of its whole path in memory;
//   a snapshot on disk has the pages of its whole path on disk.
// and nothing else: a page or node that no snapshot needs is gone. The owner (StateCache) moves the bytes.
//
// One thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/block_pool.h"
#include "cache/slot_image.h"
#include "ops/batch.h"

namespace fathom::cache {

using TokenPage = std::array<std::int32_t, ops::kPageTokens>;

// A file of the disk tier. id 0: there is none.
struct FileRef {
  std::uint64_t id = 0;
  std::size_t bytes = 0;
  bool written = false;  // the disk has it; before that it is on its way
};

struct Node;

// Where a snapshot stands in the order of use: lower is colder. The serial number tells equals apart.
struct Heat {
  std::uint64_t stamp = 0;
  std::uint64_t serial = 0;
  auto operator<=>(const Heat&) const = default;
};

struct Snapshot {
  Node* node = nullptr;
  std::vector<std::int32_t> tail;  // tokens after the node's, fewer than 128
  Reach reach;                     // length = node->length() + tail.size()
  std::vector<BlockId> image;      // empty: not in memory
  FileRef file;
  Heat heat;

  bool in_memory() const { return !image.empty(); }
  bool on_disk() const { return file.id != 0; }
};

struct Node {
  Node* parent = nullptr;  // nullptr: a root, which has no page
  TokenPage tokens{};
  std::int32_t depth = 0;  // pages from the root, this one included
  BlockId page = kNoBlock;
  FileRef file;
  // Children and snapshots here that are in memory (on disk): as long as there are any, so is this page.
  std::int32_t memory_users = 0;
  std::int32_t disk_users = 0;
  struct TokensLess {
    bool operator()(const TokenPage* a, const TokenPage* b) const { return *a < *b; }
  };
  std::map<const TokenPage*, Node*, TokensLess> children;
  std::map<std::vector<std::int32_t>, std::unique_ptr<Snapshot>> snapshots;
  std::string salt;       // of a root
  std::size_t index = 0;  // in the tree's list

  std::int32_t length() const { return depth * ops::kPageTokens; }
  bool is_root() const { return parent == nullptr; }
  bool empty() const { return children.empty() && snapshots.empty(); }
};

struct Match {
  Snapshot* memory = nullptr;  // the longest usable one in memory
  Snapshot* disk = nullptr;    // the longest of those written to disk, where longer than that
  // How many first tokens some remembered sequence has in common with these, whether or not a snapshot is there.
  std::int32_t shared = 0;

  std::int32_t memory_length() const { return memory != nullptr ? memory->reach.length : 0; }
  std::int32_t disk_length() const { return disk != nullptr ? disk->reach.length : 0; }
};

class PrefixTree {
 public:
  PrefixTree() = default;
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // Salts are separate worlds: nothing is shared between two.
  Match find(std::string_view salt, std::span<const std::int32_t> tokens) const;

  Node* root(std::string_view salt);
  // The child that continues with these tokens; made where there is none.
  Node* child(Node& node, const TokenPage& tokens);
  // The node of the first `pages` pages of tokens, made as far as it was missing.
  Node* path(std::string_view salt, std::span<const std::int32_t> tokens, std::int32_t pages);
  // The snapshot of exactly these tokens, or nullptr.
  Snapshot* exact(std::string_view salt, std::span<const std::int32_t> tokens) const;
  Snapshot* add_snapshot(Node& node, std::span<const std::int32_t> tail, std::int32_t drafted);

  // To be told when a snapshot, or a node's page, came into memory or onto disk (delta +1), or left (-1): counts users
  // up the path. A page whose last user left is handed to `drop`, deepest first.
  void count_memory(Node* node, std::int32_t delta, const std::function<void(Node&)>& drop);
  void count_disk(Node* node, std::int32_t delta, const std::function<void(Node&)>& drop);

  // Removes a snapshot that is neither in memory nor on disk, and the nodes that nothing needs any more.
  void forget(Snapshot* s);

  // All snapshots at and below a node.
  std::vector<Snapshot*> below(Node& node) const;
  std::span<const std::unique_ptr<Node>> nodes() const { return nodes_; }

 private:
  const Node* deepest(const Node& root, std::span<const std::int32_t> tokens) const;
  Node* add_node(Node* parent, const TokenPage& tokens);
  void prune(Node* node);

  std::vector<std::unique_ptr<Node>> nodes_;
  std::map<std::string, Node*, std::less<>> roots_;
};

}  // namespace fathom::cache
