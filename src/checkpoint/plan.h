// What running a checkpoint will need and how fast memory lets it be: weights, cache and state of sequences, bytes per
// step. model.md 13.2, 13.3.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "checkpoint/inventory.h"
#include "checkpoint/model_config.h"
#include "quant/entry.h"

namespace fathom::checkpoint {

// How cache entries stand in memory; which one follows from the numerics.
struct CacheFormat {
  quant::EntryFormat entries = quant::EntryFormat::kFp8RopeBf16;
  quant::EntryFormat index_keys = quant::EntryFormat::kFp4;
};

// What one sequence of `context` tokens holds.
struct SequenceMemory {
  std::uint64_t window_bytes = 0;  // rings of the trunk and of the draft's blocks
  std::uint64_t entry_bytes = 0;   // compressed entries
  std::uint64_t key_bytes = 0;     // index keys
  std::uint64_t state_bytes = 0;   // unfinished compression blocks, f32
  std::uint64_t total() const { return window_bytes + entry_bytes + key_bytes + state_bytes; }
};
SequenceMemory sequence_memory(const ModelConfig& config, CacheFormat format, std::int64_t context);

// Cache bytes read to decode one token at `context`.
std::uint64_t cache_read_bytes(const ModelConfig& config, CacheFormat format, std::int64_t context);

// A machine to plan for.
struct Device {
  std::string name;  // "cpu", "h200"
  int count = 1;
  std::uint64_t memory_bytes = 0;   // of each; 0: unknown
  double bandwidth = 0;             // of each, bytes/s, nominal; 0: unknown
  std::uint64_t reserve_bytes = 0;  // of each, kept for the program, its workspaces and the driver
  bool is_gpu() const { return name != "cpu"; }
};

// "cpu", or a GPU and how many: "h200", "h200x8". Memory of the CPU is what this machine has. Errors: kInvalid, with
// the names that are known.
Result<Device> parse_device(std::string_view text);

struct PlanRequest {
  CacheFormat cache;
  std::int64_t context = 4096;           // tokens a sequence holds
  std::int32_t sequences = 1;            // decoding at once
  std::uint64_t one_sequence_bytes = 0;  // what one holds at that context, as the engine lays it out
  std::uint64_t workspace_bytes = 0;     // see workspace_bytes()
  Device device;
};

// Memory of a step of up to `tokens` tokens that asks for `rows` rows of logits: activations and logits, f32.
std::uint64_t workspace_bytes(const ModelConfig& config, std::int32_t tokens, std::int32_t rows);

// All per device. On a CPU weights are mapped files: they count against memory, but are never anonymous memory.
struct Plan {
  std::uint64_t weight_bytes = 0;
  std::uint64_t sequence_bytes = 0;  // of all sequences; every GPU holds all of it
  std::uint64_t workspace_bytes = 0;
  std::uint64_t reserve_bytes = 0;
  std::uint64_t needed_bytes = 0;
  std::uint64_t memory_bytes = 0;  // 0: unknown
  bool fits = false;
  std::int64_t most_sequences = 0;  // that fit at this context
  double step_bytes = 0;            // read by each device to decode one token of every sequence
  double tokens_per_s = 0;          // over all sequences, if reading memory were all there is; 0: bandwidth unknown
};
Plan make_plan(const ModelConfig& config, const Inventory& inventory, const PlanRequest& request);

}  // namespace fathom::checkpoint
