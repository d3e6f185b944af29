#include "checkpoint/inventory.h"

#include <string_view>

namespace fathom::checkpoint {
namespace {

// The axes along which official code divides a model between GPUs.
bool is_split(const Slot& slot) {
  if (slot.group == Group::kRoutedExperts || slot.group == Group::kEmbedding || slot.group == Group::kHead) return true;
  for (const std::string_view module :
       {"attn.wq_b.", "attn.wo_a.", "attn.wo_b.", "attn.attn_sink", "indexer.wq_b.", "indexer.weights_proj."}) {
    if (slot.name.find(module) != std::string::npos) return true;
  }
  return false;
}

class Builder {
 public:
  explicit Builder(const ModelConfig& c) : c_(c) {}

  void add(const Slot& slot, DType dtype, std::uint64_t bytes, bool scale) {
    const bool in_trunk = slot.stage < 0;
    GroupTotal& g = (in_trunk ? out_.trunk : out_.draft)[static_cast<std::size_t>(slot.group)];
    const double share = token_share(slot);
    const auto token_bytes = static_cast<double>(bytes) * share;
    ++g.tensors;
    g.bytes += bytes;
    g.token_bytes += token_bytes;
    std::int64_t elements = 0;
    if (!scale && slot.form != Form::kIds && !slot.name.ends_with("gate.bias") && element_count(slot.shape, elements)) {
      g.parameters += elements;
      g.token_parameters += static_cast<double>(elements) * share;
    }
    out_.dtype_bytes[static_cast<std::size_t>(dtype)] += bytes;
    (is_split(slot) ? out_.split_bytes : out_.replicated_bytes) += bytes;
    if (in_trunk && slot.group != Group::kRoutedExperts) {
      (is_split(slot) ? out_.split_token_bytes : out_.replicated_token_bytes) += token_bytes;
    }
    note_storage(slot, dtype, scale);
  }

  Inventory take() { return out_; }

 private:
  // The part of a tensor that one token needs.
  double token_share(const Slot& slot) const {
    if (slot.group == Group::kRoutedExperts) return static_cast<double>(c_.active_experts) / c_.routed_experts;
    if (slot.group == Group::kEmbedding || slot.form == Form::kIds) return 1.0 / c_.vocab;
    if (slot.name.ends_with(".ape")) return 1.0 / static_cast<double>(slot.shape.front());
    return 1;
  }
  void note_storage(const Slot& slot, DType dtype, bool scale) {
    if (slot.layer != 0) return;
    if (slot.form == Form::kExpert && slot.expert == 0 && !scale) out_.storage.expert = dtype;
    if (slot.form != Form::kLinear) return;
    (scale ? out_.storage.scale : out_.storage.linear) = dtype;
  }

  const ModelConfig& c_;
  Inventory out_;
};

}  // namespace

std::int64_t Inventory::tensors() const {
  std::int64_t n = 0;
  for (std::size_t i = 0; i < kGroups; ++i) n += trunk[i].tensors + draft[i].tensors;
  return n;
}

std::uint64_t Inventory::bytes() const {
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < kGroups; ++i) n += trunk[i].bytes + draft[i].bytes;
  return n;
}

std::int64_t Inventory::trunk_parameters() const {
  std::int64_t n = 0;
  for (const GroupTotal& g : trunk) n += g.parameters;
  return n;
}

double Inventory::active_parameters() const {
  double n = 0;
  for (const GroupTotal& g : trunk) n += g.token_parameters;
  return n - of(Group::kEmbedding).token_parameters;
}

double Inventory::token_bytes() const {
  double n = 0;
  for (const GroupTotal& g : trunk) n += g.token_bytes;
  return n;
}

Inventory take_inventory(const Checkpoint& checkpoint) {
  Builder builder(checkpoint.config());
  for_each_slot(checkpoint.config(), [&](const Slot& slot) {
    const Tensor* weight = checkpoint.find(slot.name);
    if (weight == nullptr) return;
    builder.add(slot, weight->dtype, weight->bytes.size(), false);
    if (const auto scale = scale_for(slot, weight->dtype)) {
      if (const Tensor* s = checkpoint.find(scale->name)) builder.add(slot, s->dtype, s->bytes.size(), true);
    }
  });
  return builder.take();
}

Inventory take_inventory(const ModelConfig& config, const Storage& storage) {
  Builder builder(config);
  for_each_stored(config, storage,
                  [&](const Slot& slot, const StoredTensor& t) { builder.add(slot, t.dtype, t.bytes(), t.scale); });
  return builder.take();
}

}  // namespace fathom::checkpoint
