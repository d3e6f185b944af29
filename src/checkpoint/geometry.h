// The published models as geometries: what config.json of each says (checkpoint.md 2.1) and how each stores its weights
// (checkpoint.md 1, 2.2). For synthetic weights and for naming what was opened.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "checkpoint/schema.h"
#include "tensor/view.h"

namespace fathom::checkpoint {

// How quantisable tensors are stored; the others are BF16, F32 and I64 as checkpoint.md 4 lists them.
struct Storage {
  DType linear = DType::kF8E4M3;
  DType expert = DType::kFp4x2;
  DType scale = DType::kF8E8M0;  // of FP8 weights; FP4 is always scaled by F8_E8M0
  bool operator==(const Storage&) const = default;
};

struct Geometry {
  std::string_view name;   // "v4-flash"
  std::string_view title;  // "DeepSeek-V4-Flash"
  ModelConfig config;
  Storage storage;
};

// The names published() knows, in the order a help text lists them.
std::span<const std::string_view> published_names();

// Nothing for an unknown name.
std::optional<Geometry> published(std::string_view name);

// The published model whose geometry `config` has, experts aside (pruned derivatives keep the rest); nothing where
// none.
std::optional<Geometry> recognise(const ModelConfig& config, const Storage& storage);

// `config` with the first `layers` trunk layers and `experts` routed experts (0: all). DSpark taps move to the last
// layers there are. Errors: kInvalid (more than there are, or a geometry that validate() refuses).
Result<ModelConfig> shrunk(const ModelConfig& config, std::int32_t layers, std::int32_t experts);

// One tensor as a file would hold it.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  bool scale = false;
  DType weight_dtype = DType::kF32;  // of the weight itself, or of the one that this scales

  std::uint64_t bytes() const;
};

// Every tensor of the table with its scale behind it, as `storage` stores them.
void for_each_stored(const ModelConfig& config, const Storage& storage,
                     const std::function<void(const Slot&, const StoredTensor&)>& visit);

}  // namespace fathom::checkpoint
