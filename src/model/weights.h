// Weights: every tensor of a checkpoint under the name the paper gives it, ready for the operations. checkpoint.md
// 4, 6.
//
// Matrices stay as stored, in the mapped file or wherever the backend adopted them; small vectors are widened to f32
// once. Immutable after load; valid while the Checkpoint and the Backend it was loaded with live.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "ops/backend.h"
#include "ops/numerics.h"

namespace fathom::model {

struct CompressorWeights {
  ops::Weight wkv;              // [coff*Dc, d]
  ops::Weight wgate;            // [coff*Dc, d]
  const float* ape = nullptr;   // [ratio, coff*Dc]
  const float* norm = nullptr;  // [Dc]
};

struct IndexerWeights {
  ops::Weight wq_b;          // [Hi*Di, Q]
  ops::Weight weights_proj;  // [Hi, d]
  CompressorWeights compressor;
};

struct AttentionWeights {
  ops::Weight wq_a;                // [Q, d]
  const float* q_norm = nullptr;   // [Q]
  ops::Weight wq_b;                // [H*D, Q]
  ops::Weight wkv;                 // [D, d]
  const float* kv_norm = nullptr;  // [D]
  const float* sink = nullptr;     // [H]
  ops::Weight wo_a;                // [G*O, (H/G)*D]
  ops::Weight wo_b;                // [d, G*O]
  CompressorWeights compressor;    // ratio 4 and 128
  IndexerWeights indexer;          // ratio 4
};

struct MoeWeights {
  ops::Weight gate;                     // [E, d]
  const float* bias = nullptr;          // [E]; layers that route by score
  const std::int32_t* table = nullptr;  // [V, k]; layers that route by token id
  std::vector<ops::ExpertWeights> routed;
  const ops::ExpertWeights* routed_table = nullptr;  // the same, in backend memory
  ops::ExpertWeights shared;
};

struct LayerWeights {
  const float* attn_norm = nullptr;  // [d]
  const float* ffn_norm = nullptr;   // [d]
  ops::HyperConnection attn_hc;
  ops::HyperConnection ffn_hc;
  AttentionWeights attention;
  MoeWeights moe;
};

// model.md 10.1.
struct MtpWeights {
  const float* enorm = nullptr;  // [d]
  const float* hnorm = nullptr;  // [d]
  ops::Weight e_proj;            // [d, d]
  ops::Weight h_proj;            // [d, d]
  LayerWeights layer;
  ops::HyperConnection hc_head;
  const float* norm = nullptr;  // [d]
};

// model.md 10.2.
struct DsparkWeights {
  ops::Weight main_proj;             // [d, taps*d]
  const float* main_norm = nullptr;  // [d]
  std::vector<LayerWeights> stages;
  ops::HyperConnection hc_head;
  const float* norm = nullptr;  // [d]
  ops::Weight markov_w1;        // [V, rank]
  ops::Weight markov_w2;        // [V, rank]
  ops::Weight confidence;       // [1, d + rank]
};

struct Weights {
  ops::Weight embed;            // [V, d]
  ops::Weight head;             // [V, d]
  const float* norm = nullptr;  // [d]
  ops::HyperConnection hc_head;
  std::vector<LayerWeights> layers;
  std::vector<MtpWeights> mtp;  // empty where the checkpoint has no MTP block
  DsparkWeights dspark;         // no stages where the checkpoint has no DSpark module

  // Converted copies: deques, so that what points into them stays put.
  std::deque<std::vector<float>> floats;
  std::deque<std::vector<std::int32_t>> integers;
};

// checkpoint: opened with Access::kData, so that every tensor is there and fits. Errors: kExhausted where the backend
// has no room; kNotFound, naming the tensor, where a checkpoint opened otherwise lacks one.
//
// numerics: of the steps that will use them. Under official-bf16, how the model is deployed, a device may pack weights for
// FP8 tensor units, which keep some 14 bits of a sum; `official` keeps f32 sums. progress: hears of bytes handed to the
// backend, and of all there are.
using LoadProgress = std::function<void(std::uint64_t done, std::uint64_t all)>;
Result<Weights> load_weights(const checkpoint::Checkpoint& checkpoint, ops::Backend& backend, ops::Numerics numerics,
                             const LoadProgress& progress = {});

}  // namespace fathom::model
