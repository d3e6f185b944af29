#include "base/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace fathom {
namespace {

constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;

}  // namespace

std::vector<unsigned long> nodes_to_interleave(const std::vector<Processor>& processors) {
  std::vector<unsigned long> mask;
  for (const Processor& p : processors) {
    const auto node = static_cast<std::size_t>(p.node);
    mask.resize(std::max(mask.size(), node / kBits + 1));
    mask[node / kBits] |= 1UL << (node % kBits);
  }
  const bool one = std::all_of(processors.begin(), processors.end(),
                               [&](const Processor& p) { return p.node == processors.front().node; });
  if (one) mask.clear();
  return mask;
}

bool interleave_memory(const std::vector<Processor>& processors) {
  const std::vector<unsigned long> mask = nodes_to_interleave(processors);
  // The kernel reads one bit less than it is told of.
  return !mask.empty() && syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, mask.data(), mask.size() * kBits + 1) == 0;
}

void use_near_memory() { (void)syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0); }

}  // namespace fathom
