#include "ops/kernel_table.h"

#include <algorithm>

#include "base/check.h"

namespace fathom::ops {
namespace {

constexpr KernelLine kTable[] = {
    {"every", "-", 0, kAnyRows, "ordered-launch"},
    {"every", "-", 0, kAnyRows, "early-launch", Needs::kFrom90, Leaf::kEarlyLaunch},
    {"choose", "-", 0, kAnyRows, "choose"},
    {"compress", "-", 0, kAnyRows, "compress"},
    {"embed", "-", 0, kAnyRows, "embed"},
    {"experts", "BF16", 0, kFewRowsEach, "experts.bf16.stream8"},
    {"experts", "BF16", kFewRowsEach + 1, kSomeRowsEach, "experts.bf16.stream32"},
    {"experts", "BF16", kSomeRowsEach + 1, kAnyRows, "experts.bf16.tile64"},
    {"experts", "BF16", kSomeRowsEach + 1, kAnyRows, "experts.bf16.wgmma128", Needs::kOnly90, Leaf::kExpertsBf16Wgmma},
    {"experts", "FP4", 0, kFewRowsEach, "experts.fp4.stream8"},
    {"experts", "FP4", 0, kFewRowsEach, "experts.fp4.alone8", Needs::kFrom90, Leaf::kExpertsFp4Alone},
    {"experts", "FP4", kFewRowsEach + 1, kSomeRowsEach, "experts.fp4.stream32"},
    {"experts", "FP4", kSomeRowsEach + 1, kAnyRows, "experts.fp4.tile64"},
    {"experts", "FP4", kSomeRowsEach + 1, kAnyRows, "experts.fp4.wgmma128", Needs::kOnly90, Leaf::kExpertsFp4Wgmma},
    {"experts", "FP8", 0, kFewRowsEach, "experts.fp8.stream8"},
    {"experts", "FP8", kFewRowsEach + 1, kSomeRowsEach, "experts.fp8.stream32"},
    {"experts", "FP8", kSomeRowsEach + 1, kAnyRows, "experts.fp8.tile64"},
    {"experts", "FP8", kSomeRowsEach + 1, kAnyRows, "experts.fp8.wgmma128", Needs::kOnly90, Leaf::kExpertsFp8Wgmma},
    {"experts", "FP4", 0, kAnyRows, "experts.fp4.codes", Needs::kOnly90, Leaf::kCodes},
    {"experts", "FP8", 0, kAnyRows, "experts.fp8.codes", Needs::kOnly90, Leaf::kCodes},
    {"experts", "other", 0, kAnyRows, "experts.wide.stream8"},
    {"hyper_connection", "-", 0, kAnyRows, "hyper_connection"},
    {"hyper_connection", "-", 0, 16, "hyper_connection.cluster", Needs::kFrom90, Leaf::kHyperConnectionCluster},
    {"index_query", "-", 0, kAnyRows, "index_query"},
    {"index_select", "-", 0, kAnyRows, "index_select"},
    {"index_select", "-", 0, kAnyRows, "index_select.mma", Needs::kAny, Leaf::kIndexSelectMma},
    {"linear", "BF16", 0, kFewRows, "linear.bf16.list8"},
    {"linear", "BF16", kFewRows + 1, kSomeRows, "linear.bf16.stream32"},
    {"linear", "BF16", kFewRows + 1, kSomeRows, "linear.bf16.resident64", Needs::kOnly90, Leaf::kLinearBf16Resident},
    {"linear", "BF16", kSomeRows + 1, kAnyRows, "linear.bf16.tile64"},
    {"linear", "BF16", kSomeRows + 1, kAnyRows, "linear.bf16.wgmma128", Needs::kOnly90, Leaf::kLinearBf16Wgmma},
    {"linear", "FP4", 0, kFewRows, "linear.fp4.stream8"},
    {"linear", "FP4", kFewRows + 1, kSomeRows, "linear.fp4.stream32"},
    {"linear", "FP4", kSomeRows + 1, kAnyRows, "linear.fp4.tile64"},
    {"linear", "FP4", kSomeRows + 1, kAnyRows, "linear.fp4.wgmma128", Needs::kOnly90, Leaf::kLinearFp4Wgmma},
    {"linear", "FP8", 0, kFewRows, "linear.fp8.list8"},
    {"linear", "FP8", kFewRows + 1, kSomeRows, "linear.fp8.stream32"},
    {"linear", "FP8", kFewRows + 1, kSomeRows, "linear.fp8.resident64", Needs::kOnly90, Leaf::kLinearFp8Resident},
    {"linear", "FP8", kSomeRows + 1, kAnyRows, "linear.fp8.tile64"},
    {"linear", "FP8", kSomeRows + 1, kAnyRows, "linear.fp8.wgmma128", Needs::kOnly90, Leaf::kLinearFp8Wgmma},
    {"linear", "FP4", 0, kAnyRows, "linear.fp4.codes", Needs::kOnly90, Leaf::kCodes},
    {"linear", "FP8", 0, kAnyRows, "linear.fp8.codes", Needs::kOnly90, Leaf::kCodes},
    {"linear", "other", 0, kAnyRows, "linear.wide.stream8"},
    {"mtp_input", "-", 0, kAnyRows, "mtp_input"},
    {"query_heads", "-", 0, kAnyRows, "query_heads"},
    {"rms_norm", "-", 0, kAnyRows, "rms_norm"},
    {"rope_table", "-", 0, kAnyRows, "rope_table"},
    {"route", "-", 0, kAnyRows, "route"},
    {"sparse_attention", "-", 0, kAnyRows, "sparse_attention"},
    {"sparse_attention", "-", 0, kAnyRows, "sparse_attention.mma", Needs::kAny, Leaf::kSparseAttentionMma},
    {"sparse_attention", "-", 32, kAnyRows, "sparse_attention.wgmma", Needs::kOnly90, Leaf::kSparseAttentionWgmma},
    {"store_window", "-", 0, kAnyRows, "store_window"},
    {"window_entries", "-", 0, kAnyRows, "window_entries"},
};

const KernelLine* line_of(Leaf leaf) {
  const auto* at = std::find_if(std::begin(kTable), std::end(kTable), [&](const auto& l) { return l.leaf == leaf; });
  FATHOM_CHECK(at != std::end(kTable), "every leaf has a line");
  return at;
}

Result<LeafSet> leaf_named(std::string_view name) {
  LeafSet found;
  std::string known;
  for (const KernelLine& line : kTable) {
    if (line.portable()) continue;
    if (line.kernel == name || name == "all") found.add(line.leaf);
    known += (known.empty() ? "" : ", ") + std::string(line.kernel);
  }
  if (!found.empty()) return found;
  const bool portable =
      std::any_of(std::begin(kTable), std::end(kTable), [&](const auto& l) { return l.kernel == name; });
  return fail(Code::kInvalid, "{} {}; those that can be turned off: {}, or all", name,
              portable ? "is a portable kernel, in whose place there is no other" : "is no kernel", known);
}

}  // namespace

std::span<const KernelLine> kernel_table() { return kTable; }

Result<LeafSet> leaves_named(std::span<const std::string> names) {
  LeafSet all;
  for (const std::string& name : names) {
    FATHOM_ASSIGN(const LeafSet found, leaf_named(name));
    for (const KernelLine& line : kTable) {
      if (!line.portable() && found.has(line.leaf)) all.add(line.leaf);
    }
  }
  return all;
}

KernelChoice::KernelChoice(int capability, bool hopper_code, const LeafSet& off) {
  for (const KernelLine& line : kTable) {
    if (line.portable() || off.has(line.leaf)) continue;
    const bool able = line.needs == Needs::kAny || (line.needs == Needs::kFrom90 && capability >= 90) ||
                      (line.needs == Needs::kOnly90 && capability == 90 && hopper_code);
    if (able) on_.add(line.leaf);
  }
}

bool KernelChoice::takes(Leaf leaf, std::int64_t rows) const { return uses(leaf) && line_of(leaf)->takes_rows(rows); }

const KernelLine* chosen_line(std::string_view operation, std::string_view weights, std::int64_t rows,
                              const KernelChoice& choice) {
  const KernelLine* found = nullptr;
  for (const KernelLine& line : kTable) {
    if (line.operation != operation || line.weights != weights || !line.takes_rows(rows)) continue;
    if (line.portable() ? found == nullptr : choice.uses(line.leaf)) found = &line;
  }
  return found;
}

std::string describe_off(const LeafSet& off) {
  std::string text;
  for (const KernelLine& line : kTable) {
    if (!line.portable() && off.has(line.leaf)) text += (text.empty() ? " without " : ", ") + std::string(line.kernel);
  }
  return text;
}

}  // namespace fathom::ops
