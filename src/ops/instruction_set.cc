#include "ops/instruction_set.h"

#include "ops/simd/targets.h"
//
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

namespace fathom::ops {
namespace {

std::string name_of(std::int64_t target) {
  switch (target) {
    case HWY_SCALAR: return "scalar";
#if HWY_ARCH_X86
    case HWY_SSE4: return "sse4";
    case HWY_AVX2: return "avx2";
    case HWY_AVX3: return "avx512";
    case HWY_AVX3_DL: return "avx512-vbmi";
#endif
    default: {
      std::string name = hwy::TargetName(target);
      std::transform(name.begin(), name.end(), name.begin(),
                     [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
      return name;
    }
  }
}

// Highway's bits, of which a lower one is a wider set. Asking Highway for them makes the kernels use all that the
// machine has, whatever was disabled, until they are told again.
std::vector<std::int64_t> targets() {
  std::vector<std::int64_t> all = hwy::SupportedAndGeneratedTargets();
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  std::reverse(all.begin(), all.end());
  return all;
}

}  // namespace

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const std::int64_t t : targets()) names.push_back(name_of(t));
  return names;
}

std::string instruction_set() { return name_of(targets().back()); }

Result<> limit_instruction_set(std::string_view widest) {
  for (const std::int64_t t : targets()) {
    if (name_of(t) != widest) continue;
    hwy::DisableTargets(t - 1);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return {};
  }
  std::string known;
  for (const std::string& name : instruction_sets()) known += known.empty() ? name : ", " + name;
  return fail(Code::kInvalid, "this machine has no instruction set \"{}\": {}", widest, known);
}

}  // namespace fathom::ops
