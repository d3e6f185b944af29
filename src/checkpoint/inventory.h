// What a checkpoint consists of, in tensors, bytes and parameters, from headers alone. model.md 13.1, 13.2.
#pragma once

#include <array>
#include <cstdint>

#include "checkpoint/checkpoint.h"
#include "checkpoint/geometry.h"
#include "checkpoint/model_config.h"
#include "checkpoint/schema.h"

namespace fathom::checkpoint {

// Parameters are weights that training learns by gradient: scales, expert ids and routing biases do not count.
struct GroupTotal {
  std::int64_t tensors = 0;  // scales included
  std::uint64_t bytes = 0;
  std::int64_t parameters = 0;
  double token_bytes = 0;       // read for one token: routed experts by the active share, one row of tables
  double token_parameters = 0;  // likewise
};

struct Inventory {
  std::array<GroupTotal, kGroups> trunk;  // by Group
  std::array<GroupTotal, kGroups> draft;
  std::array<std::uint64_t, kDTypes> dtype_bytes{};  // by DType
  Storage storage;  // as found in the first block; where a tensor is missing, the default

  // Per GPU when `n` share the model as official code splits it (checkpoint.md 6): tables, heads, output groups and
  // experts are divided, the rest is on each.
  std::uint64_t split_bytes = 0;
  std::uint64_t replicated_bytes = 0;
  double split_token_bytes = 0;       // trunk, without routed experts
  double replicated_token_bytes = 0;  // trunk

  std::int64_t tensors() const;
  std::uint64_t bytes() const;
  std::int64_t trunk_parameters() const;
  // Of the trunk: those multiplied with one token's activations; the embedding is looked up and does not count.
  double active_parameters() const;
  double token_bytes() const;  // trunk, one token
  const GroupTotal& of(Group g) const { return trunk[static_cast<std::size_t>(g)]; }
};

// Tensors that are missing or misshapen count with what is there.
Inventory take_inventory(const Checkpoint& checkpoint);
Inventory take_inventory(const ModelConfig& config, const Storage& storage);

}  // namespace fathom::checkpoint
