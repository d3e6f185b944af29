#include "base/memory.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace fathom {
namespace {

std::optional<std::uint64_t> number_in(std::string_view text) {
  const std::size_t from = text.find_first_of("0123456789");
  if (from == std::string_view::npos) return std::nullopt;
  std::uint64_t v = 0;
  const auto [end, error] = std::from_chars(text.data() + from, text.data() + text.size(), v);
  if (error != std::errc()) return std::nullopt;
  return v;
}

// "Key:   123 kB" lines of /proc.
std::uint64_t proc_bytes(const char* file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    return number_in(std::string_view(line).substr(key.size())).value_or(0) * 1024;
  }
  return 0;
}

std::optional<std::uint64_t> number_file(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  return number_in(line);  // "max" has no number
}

// How the two versions of cgroups call the same things.
struct CgroupFiles {
  const char* root;
  const char* limit;
  const char* used;
  std::array<std::string_view, 2> cache;  // keys of memory.stat: page cache, which is given back when asked for
};
constexpr CgroupFiles kVersion2 = {
    "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file ", "active_file "}};
constexpr CgroupFiles kVersion1 = {"/sys/fs/cgroup/memory",
                                   "memory.limit_in_bytes",
                                   "memory.usage_in_bytes",
                                   {"total_inactive_file ", "total_active_file "}};

// The tightest limit of a group and those above it, and what is left of it.
void apply_group(MachineMemory& m, const CgroupFiles& files, std::string group) {
  for (; group.size() > 1; group.resize(group.rfind('/'))) {
    const std::string folder = files.root + group + "/";
    const auto limit = number_file(folder + files.limit);
    if (!limit) continue;
    const std::uint64_t used = number_file(folder + files.used).value_or(0);
    std::ifstream stat(folder + "memory.stat");
    std::uint64_t cache = 0;
    for (std::string line; std::getline(stat, line);) {
      for (const std::string_view key : files.cache) {
        if (line.starts_with(key)) cache += number_in(std::string_view(line).substr(key.size())).value_or(0);
      }
    }
    m.total_bytes = std::min(m.total_bytes, *limit);
    const std::uint64_t held = used - std::min(used, cache);
    m.available_bytes = std::min(m.available_bytes, *limit - std::min(*limit, held));
  }
}

// Lines "id:controllers:group"; version 2 has no controllers.
void apply_cgroups(MachineMemory& m) {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) apply_group(m, kVersion2, line.substr(second + 1));
    if ((',' + controllers + ',').find(",memory,") != std::string::npos)
      apply_group(m, kVersion1, line.substr(second + 1));
  }
}

}  // namespace

MachineMemory machine_memory() {
  MachineMemory m{proc_bytes("/proc/meminfo", "MemTotal:"), proc_bytes("/proc/meminfo", "MemAvailable:")};
  apply_cgroups(m);
  return m;
}

std::uint64_t anonymous_bytes() { return proc_bytes("/proc/self/status", "RssAnon:"); }
std::uint64_t peak_resident_bytes() { return proc_bytes("/proc/self/status", "VmHWM:"); }

}  // namespace fathom
