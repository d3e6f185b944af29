#include "checkpoint/plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/memory.h"

namespace fathom::checkpoint {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// Usable memory as the driver reports it (rounded down to GiB) and the vendor's memory bandwidth.
struct Gpu {
  std::string_view name;
  std::uint64_t memory_gib;
  double bandwidth;
};
constexpr std::array kGpus = {
    Gpu{"a100", 79, 2.04e12}, Gpu{"h100", 79, 3.35e12}, Gpu{"h20", 95, 4.0e12},
    Gpu{"h200", 139, 4.8e12}, Gpu{"b200", 178, 8.0e12}, Gpu{"b300", 267, 8.0e12},
};
constexpr std::uint64_t kGpuReserve = 2 * kGiB;
constexpr std::uint64_t kCpuReserve = kGiB / 8;

struct Layers {
  std::int64_t all = 0;
  std::int64_t sparse = 0;  // ratio 4
  std::int64_t heavy = 0;   // ratio 128
};
Layers count_layers(const ModelConfig& c) {
  Layers n{static_cast<std::int64_t>(c.compress_ratios.size())};
  n.sparse = std::count(c.compress_ratios.begin(), c.compress_ratios.end(), 4);
  n.heavy = std::count(c.compress_ratios.begin(), c.compress_ratios.end(), 128);
  return n;
}

std::int64_t entry_bytes(const ModelConfig& c, CacheFormat f) {
  return static_cast<std::int64_t>(quant::EntryCodec{f.entries, c.head_dim, c.rope_dim}.bytes());
}
std::int64_t key_bytes(const ModelConfig& c, CacheFormat f) {
  return static_cast<std::int64_t>(quant::EntryCodec{f.index_keys, c.index_dim, c.rope_dim}.bytes());
}

// Compressor state, f32 values and scores: ratio 4 keeps two blocks of two streams, ratio 128 one block of one.
std::int64_t state_bytes(std::int64_t ratio, std::int64_t dim) {
  return ratio == 4 ? std::int64_t{2 * 4 * 2 * 2 * 4} * dim : std::int64_t{2 * 4} * ratio * dim;
}

double expected_experts(const ModelConfig& c, std::int32_t tokens) {
  const double share = static_cast<double>(c.active_experts) / c.routed_experts;
  return c.routed_experts * (1 - std::pow(1 - share, tokens));
}

}  // namespace

SequenceMemory sequence_memory(const ModelConfig& c, CacheFormat format, std::int64_t context) {
  const Layers n = count_layers(c);
  const std::int64_t b = entry_bytes(c, format);
  const std::int64_t bi = key_bytes(c, format);
  const std::int64_t sparse_entries = n.sparse * (context / 4);
  const std::int64_t heavy_entries = n.heavy * (context / 128);
  SequenceMemory m;
  m.window_bytes = static_cast<std::uint64_t>((n.all + c.draft.stages) * c.window * b);
  m.entry_bytes = static_cast<std::uint64_t>((sparse_entries + heavy_entries) * b);
  m.key_bytes = static_cast<std::uint64_t>(sparse_entries * bi);
  m.state_bytes = static_cast<std::uint64_t>(n.sparse * (state_bytes(4, c.head_dim) + state_bytes(4, c.index_dim)) +
                                             n.heavy * state_bytes(128, c.head_dim));
  return m;
}

std::uint64_t cache_read_bytes(const ModelConfig& c, CacheFormat format, std::int64_t context) {
  const Layers n = count_layers(c);
  const std::int64_t b = entry_bytes(c, format);
  const std::int64_t window = n.all * std::min<std::int64_t>(c.window, context) * b;
  const std::int64_t sparse =
      n.sparse * (std::min<std::int64_t>(c.index_topk, context / 4) * b + context / 4 * key_bytes(c, format));
  return static_cast<std::uint64_t>(window + sparse + n.heavy * (context / 128) * b);
}

Result<Device> parse_device(std::string_view text) {
  if (text == "cpu") return Device{"cpu", 1, machine_memory().total_bytes, 0, kCpuReserve};
  const std::size_t x = text.rfind('x');
  const std::string_view name = text.substr(0, x);
  int count = 1;
  bool counted = true;
  if (x != std::string_view::npos) {
    const auto [end, error] = std::from_chars(text.data() + x + 1, text.data() + text.size(), count);
    counted = error == std::errc() && end == text.data() + text.size() && count >= 1 && count <= 1024;
  }
  for (const Gpu& g : kGpus) {
    if (g.name == name && counted)
      return Device{std::string(name), count, g.memory_gib * kGiB, g.bandwidth, kGpuReserve};
  }
  std::string known = "cpu";
  for (const Gpu& g : kGpus) known += fmt::format(", {}", g.name);
  return fail(Code::kInvalid, "device {}: expected one of {}; GPUs with a count, as in h200x8", text, known);
}

std::uint64_t workspace_bytes(const ModelConfig& c, std::int32_t tokens, std::int32_t rows) {
  const std::int64_t d = c.hidden;
  const std::int64_t streams = c.streams * d;
  const std::int64_t heads = std::int64_t{c.heads} * c.head_dim;
  // Two sets of streams and two of projections of them, sub-layer input and output and the draft's two, heads in and
  // out, the low ranks, compressor and indexer inputs, routing.
  const std::int64_t row = 4 * streams + 4 * d + 2 * heads + c.q_rank + std::int64_t{c.o_groups} * c.o_rank +
                           5 * std::int64_t{c.head_dim} + 4 * std::int64_t{c.index_dim} +
                           std::int64_t{c.index_heads} * (c.index_dim + 1) + c.index_topk + c.routed_experts +
                           2 * (std::int64_t{c.active_experts} + c.rope_dim) +
                           std::int64_t{c.streams} * (c.streams + 1) + 3;
  // What the largest single operation needs besides: its input rows packed and padded, and a wave of experts.
  constexpr std::int64_t kPadding = 1152;
  constexpr std::int64_t kWave = 256;
  const std::int64_t wave = std::min<std::int64_t>(kWave, std::int64_t{tokens} * (c.active_experts + 1));
  const std::int64_t experts = std::int64_t{2} * tokens * (d + kPadding) + wave * (2 * (c.expert_inner + kPadding) + d);
  const std::int64_t scratch = std::max(tokens * (heads + kPadding), experts);
  return static_cast<std::uint64_t>(4 * (tokens * row + rows * (std::int64_t{c.vocab} + d) + scratch));
}

Plan make_plan(const ModelConfig& config, const Inventory& inventory, const PlanRequest& request) {
  const Device& d = request.device;
  const auto n = static_cast<std::uint64_t>(d.count);
  const std::uint64_t sequence = request.one_sequence_bytes;
  Plan p;
  p.weight_bytes = (inventory.split_bytes + n - 1) / n + inventory.replicated_bytes;
  // Geometries and requests may be absurd; what overflows fits nowhere.
  constexpr std::uint64_t kAbsurd = std::uint64_t{1} << 62;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(request.sequences), sequence, &p.sequence_bytes)) {
    p.sequence_bytes = kAbsurd;
  }
  p.sequence_bytes = std::min(p.sequence_bytes, kAbsurd);
  p.workspace_bytes = request.workspace_bytes;
  p.reserve_bytes = d.reserve_bytes;
  const std::uint64_t standing = p.weight_bytes + p.workspace_bytes + p.reserve_bytes;
  p.needed_bytes = standing + p.sequence_bytes;
  p.memory_bytes = d.memory_bytes;
  p.fits = d.memory_bytes != 0 && p.needed_bytes <= d.memory_bytes;
  if (d.memory_bytes > standing && sequence != 0) {
    p.most_sequences = static_cast<std::int64_t>((d.memory_bytes - standing) / sequence);
  }
  const double experts = static_cast<double>(inventory.of(Group::kRoutedExperts).bytes) *
                         expected_experts(config, request.sequences) / config.routed_experts;
  const auto cache = static_cast<double>(cache_read_bytes(config, request.cache, request.context));
  p.step_bytes =
      (inventory.split_token_bytes + experts) / d.count + inventory.replicated_token_bytes + request.sequences * cache;
  if (d.bandwidth > 0) p.tokens_per_s = request.sequences * d.bandwidth / p.step_bytes;
  return p;
}

}  // namespace fathom::checkpoint
