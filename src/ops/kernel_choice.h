// Which of the kernels that only some GPUs can run are used: what of kernel_table.h the kernels' own files need. A new
// leaf is an enumerator here, a line in kernel_table.cc, and in the CUDA backend, where the operation chooses,
// `if (c.kernels.takes(Leaf::kName, rows)) return ...;` before the portable way.
#pragma once

#include <cstdint>

namespace fathom::ops {

// The lines of the table that are no portable kernels.
enum class Leaf : std::uint8_t {
  kCodes,  // every product of codes (cuda/codes.h): weights are packed for all of them or for none
  kEarlyLaunch,
  kExpertsBf16Wgmma,
  kExpertsFp4Alone,
  kExpertsFp4Wgmma,
  kExpertsFp8Wgmma,
  kHyperConnectionCluster,
  kIndexSelectMma,
  kLinearBf16Resident,
  kLinearBf16Wgmma,
  kLinearFp4Wgmma,
  kLinearFp8Resident,
  kLinearFp8Wgmma,
  kSparseAttentionMma,
  kSparseAttentionWgmma,
  kNone
};

class LeafSet {
 public:
  bool has(Leaf leaf) const { return (bits_ >> static_cast<unsigned>(leaf) & 1U) != 0; }
  void add(Leaf leaf) { bits_ |= std::uint64_t{1} << static_cast<unsigned>(leaf); }
  bool empty() const { return bits_ == 0; }

 private:
  std::uint64_t bits_ = 0;
};

// What a GPU uses: the leaves that it and the build can run, without those turned off.
class KernelChoice {
 public:
  KernelChoice() = default;  // portable kernels alone
  // capability: 10 * major + minor. hopper_code: the build holds code for sm_90a.
  KernelChoice(int capability, bool hopper_code, const LeafSet& off);

  bool uses(Leaf leaf) const { return on_.has(leaf); }
  // Whether the leaf takes this many rows, as the table says.
  bool takes(Leaf leaf, std::int64_t rows) const;

 private:
  LeafSet on_;
};

// Rows up to which a product with one matrix, or with experts, goes by the kernels for few and for some; beyond, by
// tiles. In the table and in the CUDA backend the same.
inline constexpr std::int64_t kFewRows = 8;
inline constexpr std::int64_t kSomeRows = 64;
inline constexpr std::int64_t kFewRowsEach = 4;
inline constexpr std::int64_t kSomeRowsEach = 24;

}  // namespace fathom::ops
