// Which kernel does what on which GPU: one table, from which the CUDA backend chooses and `fathom inspect --kernels`
// prints. Data alone: whoever reads it touches no driver.
//
// Every operation has portable kernels, for any GPU from compute capability 8.0 on. A leaf is a kernel for some GPUs, or
// for the formats and sizes of V4-Flash and Pro alone, in place of portable ones for some weights and rows; what it takes
// over it gives back when it is turned off, so a wrong answer can be put down to the leaf that gives it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "ops/kernel_choice.h"

namespace fathom::ops {

// What a kernel asks of a GPU. kOnly90: instructions of compute capability 9.0 that no other has (sm_90a).
enum class Needs : std::uint8_t { kAny, kFrom90, kOnly90 };

inline constexpr std::int64_t kAnyRows = std::numeric_limits<std::int64_t>::max();

struct KernelLine {
  std::string_view operation;  // of Backend
  std::string_view weights;    // their format; "-" where there are none or it does not matter
  std::int64_t least_rows = 0;
  std::int64_t most_rows = kAnyRows;  // tokens; of experts, tokens that each has on average
  std::string_view kernel;            // its name; a leaf's is what turns it off
  Needs needs = Needs::kAny;
  Leaf leaf = Leaf::kNone;

  bool portable() const { return leaf == Leaf::kNone; }
  bool takes_rows(std::int64_t rows) const { return least_rows <= rows && rows <= most_rows; }
};

// By operation, then weights; portable lines of one operation and format cover every number of rows once.
std::span<const KernelLine> kernel_table();

// The leaves of these names; "all" names every one. Error: kInvalid for a name that the table does not have, or whose
// kernel is portable.
Result<LeafSet> leaves_named(std::span<const std::string> names);

// Which line of the table computes `rows` rows of an operation with weights of a format.
const KernelLine* chosen_line(std::string_view operation, std::string_view weights, std::int64_t rows,
                              const KernelChoice& choice);

// " without NAME, NAME", of leaves; "" for none.
std::string describe_off(const LeafSet& off);

}  // namespace fathom::ops
