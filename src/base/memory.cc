#include "base/memory.h"

#include <algorithm>
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

// The tightest limit of this process's cgroup (version 2) and those above it, and what is left of it.
void apply_cgroup(MachineMemory& m) {
  std::ifstream in("/proc/self/cgroup");
  std::string line;
  if (!std::getline(in, line) || !line.starts_with("0::")) return;
  const std::string root = "/sys/fs/cgroup";
  for (std::string group = line.substr(3); !group.empty() && group != "/"; group.resize(group.rfind('/'))) {
    const auto limit = number_file(root + group + "/memory.max");
    if (!limit) continue;
    const std::uint64_t used = number_file(root + group + "/memory.current").value_or(0);
    // The group's page cache is counted as used, but given back when asked for.
    std::ifstream stat(root + group + "/memory.stat");
    std::uint64_t cache = 0;
    for (std::string s; std::getline(stat, s);) {
      if (s.starts_with("inactive_file ") || s.starts_with("active_file ")) cache += number_in(s).value_or(0);
    }
    m.total_bytes = std::min(m.total_bytes, *limit);
    const std::uint64_t held = used - std::min(used, cache);
    m.available_bytes = std::min(m.available_bytes, *limit - std::min(*limit, held));
  }
}

}  // namespace

MachineMemory machine_memory() {
  MachineMemory m{proc_bytes("/proc/meminfo", "MemTotal:"), proc_bytes("/proc/meminfo", "MemAvailable:")};
  apply_cgroup(m);
  return m;
}

std::uint64_t anonymous_bytes() { return proc_bytes("/proc/self/status", "RssAnon:"); }
std::uint64_t peak_resident_bytes() { return proc_bytes("/proc/self/status", "VmHWM:"); }

}  // namespace fathom
