// The tensors a checkpoint of a given geometry must have: the table of checkpoint.md 4, as code. Validation, inspection
// and synthetic weights all walk this one table.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"
#include "tensor/view.h"

namespace fathom::checkpoint {

// What a tensor may be stored as.
enum class Form : std::uint8_t {
  kPlain,  // BF16 or F32; never quantised (embeddings, head, norms, gate, compressors)
  kFull,   // F32 (hyper-connection parameters, sinks, biases, position tables); BF16 is accepted and widened on opening
  kLinear,  // BF16 or F32; or F8_E4M3 with a .scale, F8_E8M0 or F32, per 128 x 128 block
  kExpert,  // as kLinear; or I8 (pairs of FP4) with a .scale, F8_E8M0, per 32 inputs
  kIds,     // I64 expert ids
};

enum class Group : std::uint8_t {
  kEmbedding,
  kHead,   // head.weight
  kNorms,  // block and final norms
  kHyperConnections,
  kAttention,  // its projections, inner norms and sinks
  kCompressor,
  kIndexer,  // with its compressor
  kGate,     // gate weight, bias, tid2eid
  kSharedExpert,
  kRoutedExperts,
  kDraftHead,  // what a draft block has beyond a trunk block
};
inline constexpr int kGroups = 11;
std::string_view name_of(Group g);

// One tensor of the table, its scale implied (scale_for).
struct Slot {
  std::string name;  // official, e.g. "layers.7.attn.wkv.weight"
  Shape shape;       // logical: FP4 pairs counted as two
  Form form = Form::kPlain;
  Group group = Group::kNorms;
  std::int32_t layer = -1;   // trunk layer; -1 elsewhere
  std::int32_t stage = -1;   // draft stage (mtp.<stage>.); -1 in the trunk
  std::int32_t expert = -1;  // routed expert; -1 elsewhere
};

// Calls `visit` for every tensor of `config` (which must be valid), in the order of the published files: embedding,
// layers, head and what goes with it, draft stages (config.draft). The Slot is reused between calls.
void for_each_slot(const ModelConfig& config, const std::function<void(const Slot&)>& visit);

// How many that is, without scales.
std::int64_t count_slots(const ModelConfig& config);

// The stored shape of a slot held as `dtype`: the logical one, or half as wide for FP4 pairs.
Shape stored_shape(const Slot& slot, DType dtype);

bool allowed(Form form, DType dtype);

// The name and shape of the scale that `slot` has when its weight is stored as `dtype`; nothing where it has none.
struct ScaleSlot {
  std::string name;
  Shape shape;
};
std::optional<ScaleSlot> scale_for(const Slot& slot, DType dtype);

// What a validation found wrong with one tensor.
struct Problem {
  std::string file;    // empty where no file is to blame
  std::string tensor;  // as the file names it; empty where it concerns the whole
  std::string found;
  std::string expected;
  bool operator==(const Problem&) const = default;
};
std::string to_string(const Problem& p);

// A list of problems, bounded: hostile configurations can miss millions of tensors.
struct Problems {
  static constexpr std::size_t kKept = 10'000;
  std::vector<Problem> list;
  std::size_t total = 0;

  bool empty() const { return total == 0; }
  void add(Problem p) {
    if (++total <= kKept) list.push_back(std::move(p));
  }
  // The first `shown`, one a line, and how many more there are.
  std::string summary(std::size_t shown = 20) const;
};

// A tensor as found, for validation: without bytes.
struct Found {
  std::string_view name;    // official
  std::string_view stored;  // as its file calls it
  std::string_view file;
  DType dtype = DType::kF32;
  std::span<const std::int64_t> shape;
};

// Draft kind and stages from the names alone (checkpoint.md 8.5): stages are the distinct mtp.<i>. prefixes.
// `names` official, sorted. The DSpark constants stay what `config` says.
void decide_draft(ModelConfig& config, std::span<const Found> sorted);

// Compares `sorted` (by official name, unique) with the table of `config`: presence, dtype, shape, scales, one expert
// format a block, and no tensor left over. Tensors that official loaders drop (a draft's own embedding or head) pass.
void check_tensors(const ModelConfig& config, std::span<const Found> sorted, Problems& problems);

}  // namespace fathom::checkpoint
