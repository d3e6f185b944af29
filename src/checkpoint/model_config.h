// ModelConfig: the geometry and constants of one checkpoint, as config.json says (checkpoint.md 2; symbols of model.md
// 0.1 in brackets). A value: built once, checked by validate(), then const.
#pragma once

#include <cstdint>
#include <vector>

namespace fathom::checkpoint {

struct YarnConfig {
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  std::int32_t original_positions = 0;  // original_max_position_embeddings; 0: no YaRN
  bool operator==(const YarnConfig&) const = default;
};

enum class DraftKind : std::uint8_t { kNone, kMtp, kDspark };  // model.md 10

struct DraftConfig {
  DraftKind kind = DraftKind::kNone;
  std::int32_t stages = 0;  // distinct mtp.<i>. prefixes: 1 for MTP, 3 for DSpark as published
  // DSpark only.
  std::int32_t block_size = 0;
  std::int32_t markov_rank = 0;
  std::int32_t noise_token = 0;
  std::vector<std::int32_t> target_layers;  // tapped trunk layers, ascending
  bool operator==(const DraftConfig&) const = default;
};

struct ModelConfig {
  std::int32_t vocab = 0;                     // [V]
  std::int32_t hidden = 0;                    // [d]
  std::int32_t layers = 0;                    // [L] trunk layers
  std::int32_t heads = 0;                     // [H]
  std::int32_t head_dim = 0;                  // [D]
  std::int32_t rope_dim = 0;                  // [R] the last R of every head
  std::int32_t q_rank = 0;                    // [Q]
  std::int32_t o_groups = 0;                  // [G]
  std::int32_t o_rank = 0;                    // [O]
  std::int32_t window = 0;                    // [W]
  std::vector<std::int32_t> compress_ratios;  // [r_l] per trunk layer: 0, 4 or 128. Draft blocks are always 0.
  std::int32_t index_heads = 0;               // [Hi]
  std::int32_t index_dim = 0;                 // [Di]
  std::int32_t index_topk = 0;                // [K]
  std::int32_t routed_experts = 0;            // [E]
  std::int32_t active_experts = 0;            // [k]
  std::int32_t expert_inner = 0;              // [I]
  std::int32_t hash_layers = 0;               // the first layers route by token id
  float route_scale = 1;                      // [gamma]
  float swiglu_limit = 0;                     // [c_lim]; 0: no clamp
  std::int32_t streams = 0;                   // [C] hc_mult
  std::int32_t sinkhorn_iters = 0;            // [T]
  float norm_eps = 0;                         // [eps_n]
  float hc_eps = 0;                           // [eps_h]
  double rope_theta = 0;                      // layers with ratio 0
  double compress_rope_theta = 0;             // layers with ratio 4 or 128, with YaRN
  YarnConfig yarn;
  std::int32_t max_positions = 0;
  std::int32_t bos_token = 0;
  std::int32_t eos_token = 1;
  bool quantised = false;  // config has a quantization_config: activations are quantised in `official`
  DraftConfig draft;       // decided by the tensors present (checkpoint.md 8.5), not by config.json alone

  bool operator==(const ModelConfig&) const = default;
};

}  // namespace fathom::checkpoint
