#include "base/topology.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <thread>

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr int kIds = 8'192;
constexpr std::size_t kLongestFile = 64 << 10;

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.back() == '\n' || s.back() == ' ')) s.remove_suffix(1);
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  return s;
}

// Empty where it cannot be read or is no file of the kernel's size.
std::string read_small(const fs::path& path) {
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return {};
  std::ifstream in(path, std::ios::binary);
  std::string text(kLongestFile, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  const auto read = static_cast<std::size_t>(in.gcount());
  text.resize(read < kLongestFile ? read : 0);
  return text;
}

std::optional<double> number(std::string_view text) {
  text = trimmed(text);
  double v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(v)) return std::nullopt;
  return v;
}

std::vector<int> read_ids(const fs::path& path) { return parse_id_list(read_small(path)); }

bool contains(const std::vector<int>& ascending, int id) {
  return std::binary_search(ascending.begin(), ascending.end(), id);
}

// Distances of a node to nodes 0, 1, ... in the order of their ids.
std::vector<double> read_distances(const fs::path& path) {
  std::vector<double> all;
  const std::string text = read_small(path);
  for (std::string_view rest = trimmed(text); !rest.empty() && all.size() < kIds;) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    all.push_back(number(rest.substr(0, end)).value_or(std::numeric_limits<double>::infinity()));
    rest = trimmed(rest.substr(end));
  }
  return all;
}

// The node itself if it has memory, else the nearest that has.
int with_memory(const fs::path& nodes, const std::vector<int>& ids, const std::vector<int>& memory, int node) {
  if (memory.empty() || contains(memory, node)) return node;
  const std::vector<double> distances = read_distances(nodes / ("node" + std::to_string(node)) / "distance");
  int nearest = memory.front();
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(ids.size(), distances.size()); ++i) {
    if (contains(memory, ids[i]) && distances[i] < least) {
      least = distances[i];
      nearest = ids[i];
    }
  }
  return nearest;
}

// Node of every processor that some node names.
std::map<int, int> read_nodes(const fs::path& nodes) {
  std::map<int, int> node_of;
  const std::vector<int> ids = read_ids(nodes / "online");
  const std::vector<int> memory = read_ids(nodes / "has_memory");
  for (const int node : ids) {
    const int home = with_memory(nodes, ids, memory, node);
    for (const int cpu : read_ids(nodes / ("node" + std::to_string(node)) / "cpulist")) node_of.emplace(cpu, home);
  }
  return node_of;
}

// One of every core first, nodes in turn.
void sort_for_threads(std::vector<Processor>& all) {
  std::map<int, int> of_core;                  // processors seen of a core
  std::map<std::pair<int, int>, int> of_node;  // processors seen of a node, by their turn within the core
  std::map<int, std::pair<int, int>> key;
  for (const Processor& p : all) {
    const int turn = of_core[p.core]++;
    key[p.id] = {turn, of_node[{turn, p.node}]++};
  }
  std::stable_sort(all.begin(), all.end(),
                   [&](const Processor& a, const Processor& b) { return key.at(a.id) < key.at(b.id); });
}

// The tightest quota of a group and those above it; a group that is not to be seen here is passed over.
double tightest(const fs::path& root, std::string group, double (*quota)(const fs::path&)) {
  double least = 0;
  for (;; group.resize(group.rfind('/'))) {
    if (group == "/") group.clear();
    const double cores = quota(fs::path(root.string() + group));
    if (cores > 0 && (least == 0 || cores < least)) least = cores;
    if (group.rfind('/') == std::string::npos) return least;
  }
}

double quota_v2(const fs::path& folder) {
  const std::string text = read_small(folder / "cpu.max");
  const std::size_t space = text.find(' ');
  if (space == std::string::npos) return 0;
  const auto quota = number(std::string_view(text).substr(0, space));  // "max" is no number
  const auto period = number(std::string_view(text).substr(space));
  return quota && period && *quota > 0 && *period > 0 ? *quota / *period : 0;
}

double quota_v1(const fs::path& folder) {
  const auto quota = number(read_small(folder / "cpu.cfs_quota_us"));
  const auto period = number(read_small(folder / "cpu.cfs_period_us"));
  return quota && period && *quota > 0 && *period > 0 ? *quota / *period : 0;  // -1: no limit
}

}  // namespace

std::vector<int> parse_id_list(std::string_view text) {
  std::vector<int> ids;
  text = trimmed(text);
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    int first = 0;
    auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), first);
    if (error != std::errc()) return {};
    int last = first;
    if (end != part.data() + part.size()) {
      if (*end != '-') return {};
      const auto range = std::from_chars(end + 1, part.data() + part.size(), last);
      if (range.ec != std::errc() || range.ptr != part.data() + part.size()) return {};
    }
    if (first < (ids.empty() ? 0 : ids.back() + 1) || last < first || last >= kIds) return {};
    for (int id = first; id <= last; ++id) ids.push_back(id);
  }
  return ids;
}

std::vector<Processor> read_processors(const fs::path& sysfs, const std::vector<int>& allowed) {
  const std::vector<int> online = read_ids(sysfs / "cpu" / "online");
  const std::map<int, int> node_of = read_nodes(sysfs / "node");
  std::vector<Processor> all;
  const auto add = [&](int id) {
    const fs::path folder = sysfs / "cpu" / ("cpu" + std::to_string(id)) / "topology";
    const std::vector<int> siblings = read_ids(folder / "thread_siblings_list");
    const auto node = node_of.find(id);
    all.push_back({.id = id,
                   .core = contains(siblings, id) ? siblings.front() : id,
                   .node = node == node_of.end() ? 0 : node->second});
  };
  for (const int id : allowed) {
    if (contains(online, id)) add(id);
  }
  if (all.empty()) std::for_each(allowed.begin(), allowed.end(), add);  // `online` is unreadable
  sort_for_threads(all);
  return all;
}

std::vector<Processor> usable_processors() {
  std::vector<int> allowed;
  cpu_set_t* set = CPU_ALLOC(kIds);
  const std::size_t size = CPU_ALLOC_SIZE(kIds);
  if (set != nullptr && sched_getaffinity(0, size, set) == 0) {
    for (int id = 0; id < kIds; ++id) {
      if (CPU_ISSET_S(static_cast<std::size_t>(id), size, set)) allowed.push_back(id);
    }
  }
  CPU_FREE(set);
  const int count = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  for (int id = 0; allowed.empty() && id < count; ++id) allowed.push_back(id);
  return read_processors("/sys/devices/system", allowed);
}

int count_cores(const std::vector<Processor>& processors) {
  std::vector<int> cores;
  for (const Processor& p : processors) cores.push_back(p.core);
  std::sort(cores.begin(), cores.end());
  return static_cast<int>(std::unique(cores.begin(), cores.end()) - cores.begin());
}

double cgroup_cores(const fs::path& root, std::string_view groups) {
  double least = 0;
  const auto apply = [&least](double cores) {
    if (cores > 0 && (least == 0 || cores < least)) least = cores;
  };
  while (!groups.empty()) {  // lines "id:controllers:group"; version 2 has no controllers
    const std::size_t end = std::min(groups.find('\n'), groups.size());
    const std::string line(groups.substr(0, end));
    groups.remove_prefix(std::min(end + 1, groups.size()));
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (group.find("/..") != std::string::npos) continue;
    if (controllers.empty()) apply(tightest(root, group, quota_v2));
    if ((',' + controllers + ',').find(",cpu,") != std::string::npos) apply(tightest(root / "cpu", group, quota_v1));
  }
  return least;
}

}  // namespace fathom
