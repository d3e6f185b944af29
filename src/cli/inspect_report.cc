#include "cli/inspect_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/geometry.h"
#include "cli/units.h"

namespace fathom::cli {
namespace {

using checkpoint::DraftKind;
using checkpoint::Group;
using checkpoint::GroupTotal;
using checkpoint::Inventory;
using checkpoint::ModelConfig;

std::string title(const InspectReport& r) {
  const auto known = checkpoint::recognise(r.config, r.inventory.storage);
  if (!known) return "DeepSeek-V4 architecture, no published geometry";
  if (known->config.routed_experts == r.config.routed_experts) return std::string(known->title);
  return fmt::format("{} with {} of {} experts", known->title, r.config.routed_experts, known->config.routed_experts);
}

std::string_view draft_name(DraftKind kind) {
  switch (kind) {
    case DraftKind::kNone: return "none";
    case DraftKind::kMtp: return "MTP";
    case DraftKind::kDspark: return "DSpark";
  }
  return "";
}

std::string_view format_name(DType t) {
  switch (t) {
    case DType::kFp4x2: return "FP4 per 32";
    case DType::kF8E4M3: return "FP8 128x128";
    case DType::kBf16: return "BF16";
    default: return name_of(t);
  }
}

std::int64_t layers_of_ratio(const ModelConfig& c, std::int32_t ratio) {
  return std::count(c.compress_ratios.begin(), c.compress_ratios.end(), ratio);
}

std::string row(std::string_view name, std::int64_t tensors, std::uint64_t bytes, double token_bytes) {
  return fmt::format("  {:<22}{:>10}{:>14}{:>14}\n", name, with_commas(static_cast<std::uint64_t>(tensors)),
                     binary_bytes(bytes), token_bytes > 0 ? binary_bytes(static_cast<std::uint64_t>(token_bytes)) : "");
}

std::string architecture(const InspectReport& r) {
  const ModelConfig& c = r.config;
  const checkpoint::Storage& s = r.inventory.storage;
  std::string out;
  out += fmt::format(
      "layers       {}: {} window only, {} sparse (ratio 4), {} heavy (ratio 128); first {} routed by token id\n",
      c.layers, layers_of_ratio(c, 0), layers_of_ratio(c, 4), layers_of_ratio(c, 128), c.hash_layers);
  out += fmt::format("sizes        hidden {}, {} heads of {}, vocabulary {}, up to {} positions\n", c.hidden, c.heads,
                     c.head_dim, c.vocab, c.max_positions);
  out += fmt::format("experts      {} routed, {} active, 1 shared, inner size {}\n", c.routed_experts, c.active_experts,
                     c.expert_inner);
  out += fmt::format("formats      experts {}, other matrices {}, FP8 scales {}\n", format_name(s.expert),
                     format_name(s.linear), s.linear == DType::kF8E4M3 ? name_of(s.scale) : "none");
  out += fmt::format(
      "draft        {}{}\n", draft_name(c.draft.kind),
      c.draft.stages > 0 ? fmt::format(", {} stage{}", c.draft.stages, c.draft.stages == 1 ? "" : "s") : "");
  out += fmt::format("parameters   {}, {} active per token (draft and embedding aside)\n",
                     decimal_count(static_cast<double>(r.inventory.trunk_parameters())),
                     decimal_count(r.inventory.active_parameters()));
  return out;
}

std::string table(const Inventory& i) {
  std::string out = fmt::format("  {:<22}{:>10}{:>14}{:>14}\n", "", "tensors", "bytes", "a token reads");
  GroupTotal draft;
  for (std::size_t g = 0; g < checkpoint::kGroups; ++g) {
    const GroupTotal& t = i.trunk[g];
    if (t.tensors > 0) out += row(name_of(static_cast<Group>(g)), t.tensors, t.bytes, t.token_bytes);
    draft.tensors += i.draft[g].tensors;
    draft.bytes += i.draft[g].bytes;
  }
  if (draft.tensors > 0) out += row("draft", draft.tensors, draft.bytes, 0);
  return out + row("all", i.tensors(), i.bytes(), i.token_bytes());
}

std::string memory_line(std::string_view name, std::uint64_t bytes, const std::string& remark) {
  return fmt::format("  {:<22}{:>14}  {}\n", name, binary_bytes(bytes), remark);
}

std::string plan_text(const InspectReport& r) {
  const checkpoint::Device& d = r.request.device;
  const checkpoint::Plan& p = r.plan;
  std::string out = fmt::format(
      "memory {} {}{}, {} sequence{} of {} tokens, numerics {}\n", d.is_gpu() ? "of each" : "on", d.name,
      d.count > 1 ? fmt::format(" of {}", d.count) : "", r.request.sequences, r.request.sequences == 1 ? "" : "s",
      with_commas(static_cast<std::uint64_t>(r.request.context)), r.numerics);
  out += memory_line("weights", p.weight_bytes,
                     d.is_gpu() ? (d.count > 1 ? "split as official code does" : "") : "mapped files");
  out += memory_line("cache and state", p.sequence_bytes,
                     fmt::format("{} a sequence", binary_bytes(r.request.one_sequence_bytes)));
  out += memory_line("workspace", p.workspace_bytes, "");
  out += memory_line("reserve", p.reserve_bytes, d.is_gpu() ? "driver and program" : "program");
  out += memory_line("needed", p.needed_bytes,
                     p.memory_bytes == 0 ? "memory unknown: name it with --memory"
                     : p.fits            ? fmt::format("fits {}; {} such sequences would", binary_bytes(p.memory_bytes),
                                                       with_commas(static_cast<std::uint64_t>(p.most_sequences)))
                                         : fmt::format("DOES NOT FIT {}", binary_bytes(p.memory_bytes)));
  if (!p.fits && !d.is_gpu() && p.memory_bytes != 0) {
    out += "  It would still run: weights that do not fit are read from disk again, token by token.\n";
  }
  out += fmt::format("speed limit of memory: a step reads {}{}", binary_bytes(static_cast<std::uint64_t>(p.step_bytes)),
                     d.count > 1 ? " on each" : "");
  if (p.tokens_per_s > 0) {
    out += fmt::format(
        "; at {:.0f} GB/s, {:.1f} tokens/s{}\n", d.bandwidth / 1e9, p.tokens_per_s,
        r.request.sequences > 1 ? fmt::format(" ({:.1f} a sequence)", p.tokens_per_s / r.request.sequences) : "");
  } else {
    out += "; name the bandwidth with --bandwidth for tokens/s\n";
  }
  return out;
}

nlohmann::ordered_json group_json(std::string_view name, const GroupTotal& t) {
  return {{"group", name},
          {"tensors", t.tensors},
          {"bytes", t.bytes},
          {"parameters", t.parameters},
          {"token_bytes", static_cast<std::uint64_t>(t.token_bytes)}};
}

nlohmann::ordered_json groups_json(const std::array<GroupTotal, checkpoint::kGroups>& groups) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (std::size_t g = 0; g < checkpoint::kGroups; ++g) {
    if (groups[g].tensors > 0) out.push_back(group_json(name_of(static_cast<Group>(g)), groups[g]));
  }
  return out;
}

nlohmann::ordered_json config_json(const ModelConfig& c) {
  return {{"layers", c.layers},
          {"hidden", c.hidden},
          {"heads", c.heads},
          {"head_dim", c.head_dim},
          {"vocab", c.vocab},
          {"window", c.window},
          {"compress_ratios", c.compress_ratios},
          {"routed_experts", c.routed_experts},
          {"active_experts", c.active_experts},
          {"expert_inner", c.expert_inner},
          {"hash_layers", c.hash_layers},
          {"index_topk", c.index_topk},
          {"max_positions", c.max_positions},
          {"quantised", c.quantised},
          {"draft", draft_name(c.draft.kind)},
          {"draft_stages", c.draft.stages}};
}

nlohmann::ordered_json plan_json(const InspectReport& r) {
  const checkpoint::Device& d = r.request.device;
  const checkpoint::Plan& p = r.plan;
  return {{"device", d.name},
          {"devices", d.count},
          {"numerics", r.numerics},
          {"context", r.request.context},
          {"concurrency", r.request.sequences},
          {"weight_bytes", p.weight_bytes},
          {"one_sequence_bytes", r.request.one_sequence_bytes},
          {"sequence_bytes", p.sequence_bytes},
          {"workspace_bytes", p.workspace_bytes},
          {"reserve_bytes", p.reserve_bytes},
          {"needed_bytes", p.needed_bytes},
          {"memory_bytes", p.memory_bytes},
          {"fits", p.fits},
          {"most_sequences", p.most_sequences},
          {"step_bytes", static_cast<std::uint64_t>(p.step_bytes)},
          {"bandwidth", d.bandwidth},
          {"tokens_per_s", p.tokens_per_s}};
}

}  // namespace

std::string as_text(const InspectReport& r) {
  std::string out =
      fmt::format("{}\n{}: {}{} tensors, {}\n\n", title(r), r.where,
                  r.files > 0 ? fmt::format("{} file{}, ", r.files, r.files == 1 ? "" : "s") : "",
                  with_commas(static_cast<std::uint64_t>(r.inventory.tensors())), binary_bytes(r.inventory.bytes()));
  out += architecture(r) + "\n" + table(r.inventory) + "\n" + plan_text(r);
  for (const std::string& n : r.notes) out += fmt::format("note: {}\n", n);
  if (!r.problems.empty()) {
    out += fmt::format("\n{} problem{}:\n  {}\n", r.problems.total, r.problems.total == 1 ? "" : "s",
                       r.problems.summary(100));
  }
  return out;
}

std::string as_json(const InspectReport& r) {
  const auto known = checkpoint::recognise(r.config, r.inventory.storage);
  nlohmann::ordered_json j = {{"model", r.where}, {"title", title(r)}};
  j["geometry"] = known ? nlohmann::ordered_json(known->name) : nlohmann::ordered_json(nullptr);
  j["files"] = r.files;
  j["tensors"] = r.inventory.tensors();
  j["bytes"] = r.inventory.bytes();
  j["parameters"] = r.inventory.trunk_parameters();
  j["active_parameters"] = static_cast<std::uint64_t>(r.inventory.active_parameters());
  j["token_bytes"] = static_cast<std::uint64_t>(r.inventory.token_bytes());
  j["formats"] = {{"experts", name_of(r.inventory.storage.expert)},
                  {"linear", name_of(r.inventory.storage.linear)},
                  {"scales", name_of(r.inventory.storage.scale)}};
  j["config"] = config_json(r.config);
  j["groups"] = groups_json(r.inventory.trunk);
  j["draft_groups"] = groups_json(r.inventory.draft);
  j["plan"] = plan_json(r);
  j["notes"] = r.notes;
  j["n_problems"] = r.problems.total;
  j["problems"] = nlohmann::ordered_json::array();
  for (const checkpoint::Problem& p : r.problems.list) {
    j["problems"].push_back({{"file", p.file}, {"tensor", p.tensor}, {"found", p.found}, {"expected", p.expected}});
  }
  return j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace fathom::cli
