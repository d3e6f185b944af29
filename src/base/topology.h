// Which processors threads may use, which of them share a core, and which memory is near: as Linux tells in sysfs.
//
// Files may be missing (containers), odd or garbled: what cannot be read counts as a processor with a core of its own
// on node 0, so the worst outcome is a slower choice.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace fathom {

struct Processor {
  int id = 0;    // as the kernel numbers them
  int core = 0;  // the lowest id of those that share the core
  int node = 0;  // the nearest node that has memory

  bool operator==(const Processor&) const = default;
};

// The processors of `allowed` (ascending ids) that are online, in the order in which threads should take them: one of
// every core, the nodes in turn, then the cores' other processors likewise. sysfs: /sys/devices/system, or what a test
// made. Never empty unless `allowed` is.
std::vector<Processor> read_processors(const std::filesystem::path& sysfs, const std::vector<int>& allowed);

// Of this machine, as far as this thread's affinity mask allows.
std::vector<Processor> usable_processors();

// Distinct cores among them.
int count_cores(const std::vector<Processor>& processors);

// The processor time that the control group and those above it grant, in cores; 0: no limit. root: /sys/fs/cgroup;
// groups: the text of /proc/self/cgroup. Version 2 (cpu.max), and version 1 (cpu.cfs_quota_us of the cpu controller).
double cgroup_cores(const std::filesystem::path& root, std::string_view groups);

// "0-3,8" as the kernel writes sets of processors and nodes: ascending, ids below 8,192. Empty where it is anything
// else.
std::vector<int> parse_id_list(std::string_view text);

}  // namespace fathom
