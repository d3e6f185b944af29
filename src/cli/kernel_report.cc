#include "cli/kernel_report.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace fathom::cli {
namespace {

using ops::KernelLine;

// One GPU for each group that the table tells apart.
struct Gpu {
  std::string_view title;
  int capability;
};
constexpr std::array<Gpu, 3> kGpus = {{{"8.0 to 8.9", 80}, {"9.0", 90}, {"10.0 on", 100}}};

struct Range {
  std::string_view operation;
  std::string_view weights;
  std::int64_t least = 0;
  std::int64_t most = 0;
  const KernelLine* portable = nullptr;
  std::array<const KernelLine*, kGpus.size()> chosen = {};
};

// Every operation and format, its rows cut wherever any line begins.
std::vector<Range> ranges(const ops::LeafSet& off) {
  std::vector<Range> out;
  const auto table = ops::kernel_table();
  for (const KernelLine& line : table) {
    if (!line.portable()) continue;
    for (std::int64_t from = line.least_rows; from <= line.most_rows;) {
      std::int64_t to = line.most_rows;
      for (const KernelLine& other : table) {
        if (other.operation != line.operation || other.weights != line.weights) continue;
        if (other.least_rows > from && other.least_rows <= to) to = other.least_rows - 1;
        if (other.most_rows >= from && other.most_rows < to) to = other.most_rows;
      }
      Range r{
          .operation = line.operation, .weights = line.weights, .least = from, .most = to, .portable = &line};
      for (std::size_t i = 0; i < kGpus.size(); ++i) {
        const ops::KernelChoice choice(kGpus[i].capability, /*hopper_code=*/true, off);
        r.chosen[i] = ops::chosen_line(r.operation, r.weights, from, choice);
      }
      out.push_back(r);
      if (to == ops::kAnyRows) break;
      from = to + 1;
    }
  }
  return out;
}

std::string rows_text(const Range& r) {
  if (r.most == ops::kAnyRows) return r.least == 0 ? "any" : fmt::format("{} on", r.least);
  return r.least == r.most ? fmt::format("{}", r.least) : fmt::format("{} to {}", r.least, r.most);
}

}  // namespace

std::string kernels_as_text(const ops::LeafSet& off) {
  constexpr const char* kLine = "{:<17} {:<8} {:<9} {:<21} {:<21} {:<24} {}\n";
  std::string out =
      fmt::format(fmt::runtime(kLine), "operation", "weights", "rows", "portable", kGpus[0].title, kGpus[1].title,
                  kGpus[2].title);
  for (const Range& r : ranges(off)) {
    std::array<std::string_view, kGpus.size()> names = {};
    for (std::size_t i = 0; i < names.size(); ++i)
      names[i] = r.chosen[i]->portable() ? "-" : r.chosen[i]->kernel;
    out += fmt::format(fmt::runtime(kLine), r.operation, r.weights, rows_text(r), r.portable->kernel, names[0], names[1],
                       names[2]);
  }
  out +=
      "\nPortable kernels run on every GPU from compute capability 8.0 on and take every format and size; the columns\n"
      "after them name what takes their place there (-: nothing), sparse_attention.mma and index_select.mma for the\n"
      "entries of V4-Flash and Pro alone. rows: tokens; of experts, tokens each has on average. codes: weights packed for\n"
      "FP8 tensor units when they are loaded, under official-bf16 where inputs go through FP8, all of them or none; other\n"
      "products go by what the table names without them (--disable-kernel linear.fp8.codes shows it).\n";
  out += "Can be turned off with --disable-kernel NAME (or all):";
  for (const KernelLine& line : ops::kernel_table()) {
    if (!line.portable()) out += fmt::format(" {}{}", line.kernel, off.has(line.leaf) ? " (off)" : "");
  }
  return out + "\n";
}

std::string kernels_as_json(const ops::LeafSet& off) {
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
  for (const Range& r : ranges(off)) {
    nlohmann::ordered_json line = {{"operation", r.operation}, {"weights", r.weights}, {"least_rows", r.least}};
    line["most_rows"] = r.most == ops::kAnyRows ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(r.most);
    line["portable"] = r.portable->kernel;
    for (std::size_t i = 0; i < kGpus.size(); ++i) {
      line["chosen"][fmt::format("{}.{}", kGpus[i].capability / 10, kGpus[i].capability % 10)] = r.chosen[i]->kernel;
    }
    lines.push_back(std::move(line));
  }
  nlohmann::ordered_json leaves = nlohmann::ordered_json::array();
  for (const KernelLine& line : ops::kernel_table()) {
    if (!line.portable()) leaves.push_back({{"name", line.kernel}, {"off", off.has(line.leaf)}});
  }
  return nlohmann::ordered_json{{"kernels", std::move(lines)}, {"leaves", std::move(leaves)}}.dump(2) + "\n";
}

}  // namespace fathom::cli
