// Which instruction sets the CPU kernels may use: all that the machine has, unless limited.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fathom::ops {

// The sets that this machine and this build both have, narrowest first: "scalar", "sse4", "avx2", "avx512" (Skylake-X),
// "avx512-vbmi" (Ice Lake, Zen 4 and later), "neon".
std::vector<std::string> instruction_sets();

// The set that the kernels use now.
std::string instruction_set();

// The kernels use `widest` at most from now on: to find a fault, or to have machines of several kinds work alike. For
// the whole process; called before any kernel runs. Error: kInvalid, with the names there are.
Result<> limit_instruction_set(std::string_view widest);

}  // namespace fathom::ops
