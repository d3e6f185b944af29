// A model of a published geometry whose random weights are made in the backend's memory: no host copy, no files.
#pragma once

#include <deque>
#include <vector>

#include "base/result.h"
#include "checkpoint/geometry.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace fathom::bench {

class SyntheticDevice {
 public:
  // Errors: those of Backend::allocate.
  static Result<std::unique_ptr<SyntheticDevice>> make(const checkpoint::ModelConfig& config, ops::Backend& backend);

  const model::Weights& weights() const { return weights_; }
  double bytes() const { return bytes_; }

 private:
  explicit SyntheticDevice(ops::Backend& backend);

  // Memory with random contents of one kind.
  enum class Kind { kFp8, kFp4, kBf16, kScale, kFp4Scale, kNorm, kSmall };
  std::byte* put(Kind kind, std::int64_t n);
  ops::Weight matrix(DType dtype, std::int64_t rows, std::int64_t cols);
  const float* floats(Kind kind, std::int64_t n) { return reinterpret_cast<const float*>(put(kind, n)); }
  ops::HyperConnection site(std::int64_t rows, std::int64_t width);
  ops::ExpertWeights expert(const checkpoint::ModelConfig& c, DType dtype);
  model::CompressorWeights compressor(const checkpoint::ModelConfig& c, std::int32_t ratio, std::int64_t dim);
  model::LayerWeights layer(const checkpoint::ModelConfig& c, std::int32_t l);

  ops::Backend& backend_;
  model::Weights weights_;
  std::deque<ops::Buffer> memory_;
  std::vector<std::vector<std::byte>> pools_;
  std::uint64_t seed_ = 1;
  double bytes_ = 0;
  Result<> failed_;
};

}  // namespace fathom::bench
