// The numbers of a synthetic tensor, reachable at any place without those before it. See synthetic.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/geometry.h"
#include "checkpoint/schema.h"

namespace fathom::checkpoint {

// Equally likely values of a standard normal variable, ascending.
class NormalTable {
 public:
  static constexpr std::size_t kSize = 4096;
  NormalTable();
  // i < kSize
  float operator[](std::size_t i) const { return values_[i]; }

 private:
  std::vector<float> values_;
};

class RandomWeights {
 public:
  // The generator of one tensor of the table. Keeps nothing of its arguments.
  RandomWeights(const ModelConfig& config, const Slot& slot, const StoredTensor& stored, std::uint64_t seed,
                const NormalTable& normal);

  // Writes the bytes [first, first + out.size()) of the tensor; `first` is a multiple of 8. Safe from several threads.
  void fill(std::uint64_t first, std::span<std::byte> out) const;

 private:
  enum class Kind : std::uint8_t { kNormal, kNearOne, kCodes8, kPairs4, kScales8, kScales32, kIds };
  std::uint64_t word(std::uint64_t index) const;  // 64 random bits
  std::uint64_t word_of_ids(std::uint64_t element) const;

  Kind kind_ = Kind::kNormal;
  DType dtype_ = DType::kF32;
  std::uint64_t key_ = 0;
  std::uint8_t scale_code_ = 0;            // kScales8: this or one less
  float scale_ = 0;                        // kScales32: times 0.75 to 1.25
  std::uint64_t experts_ = 0;              // kIds
  std::uint64_t columns_ = 0;              // kIds
  std::vector<float> values_;              // kNormal, kNearOne: NormalTable::kSize equally likely ones
  std::array<std::uint8_t, 256> codes_{};  // kCodes8: 256 equally likely ones
};

}  // namespace fathom::checkpoint
