// fathom inspect: what a checkpoint is, what running it needs and how fast it can be, from headers alone.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/content.h"
#include "checkpoint/inventory.h"
#include "checkpoint/plan.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/inspect_report.h"
#include "cli/kernel_report.h"
#include "cli/progress.h"
#include "cli/synthetic_source.h"
#include "model/cache_layout.h"
#include "model/model.h"

namespace fathom::cli {
namespace {

struct Options {
  std::string model;
  SyntheticSource synthetic;
  std::int64_t context = 32768;
  std::int32_t sequences = 1;
  std::string device = "cpu";
  std::string numerics;
  double bandwidth_gb = 0;
  double memory_gib = 0;
  bool values = false;
  bool kernels = false;
  std::vector<std::string> kernels_off;
  bool json = false;
};

quant::EntryFormat entry_format(ops::Numerics n) {
  if (!n.quantise) return quant::EntryFormat::kF32;
  return n.carrier == ops::Carrier::kBf16 ? quant::EntryFormat::kFp8RopeBf16 : quant::EntryFormat::kFp8RopeF32;
}

// Headers of a folder, or the table of a synthetic model.
Result<> look(const Options& o, InspectReport& report) {
  if (!o.synthetic.name.empty()) {
    FATHOM_ASSIGN(const checkpoint::SyntheticSpec spec, synthetic_spec(o.synthetic));
    report.where = "synthetic " + o.synthetic.name;
    report.config = spec.config;
    report.inventory = checkpoint::take_inventory(spec.config, spec.storage);
    return {};
  }
  FATHOM_ASSIGN(const std::filesystem::path folder, model_folder(o.model));
  FATHOM_ASSIGN(const checkpoint::Checkpoint c,
                checkpoint::Checkpoint::open(folder, {.access = checkpoint::Access::kHeaders}));
  report.where = folder.string();
  report.files = c.files().size();
  report.config = c.config();
  report.inventory = checkpoint::take_inventory(c);
  report.problems = c.problems();
  report.notes.assign(c.notes().begin(), c.notes().end());
  if (o.values && report.problems.empty()) {
    ThreadPool pool(usable_cores());
    ProgressBar bar("reading", ProgressUnit::kBytes);
    checkpoint::check_ids(c, report.problems);
    checkpoint::check_values(c, pool, report.problems,
                             [&](std::uint64_t done, std::uint64_t all) { bar.update(done, all); });
  }
  return {};
}

Result<> plan(const Options& o, InspectReport& report) {
  FATHOM_ASSIGN(checkpoint::Device device, checkpoint::parse_device(o.device));
  if (o.memory_gib > 0) device.memory_bytes = static_cast<std::uint64_t>(o.memory_gib * 1024 * 1024 * 1024);
  if (o.bandwidth_gb > 0) device.bandwidth = o.bandwidth_gb * 1e9;
  const std::string numerics = !o.numerics.empty() ? o.numerics : device.is_gpu() ? "official-bf16" : "official";
  const auto n = ops::numerics_by_name(numerics);
  if (!n) return fail(Code::kInvalid, "numerics {}: expected float, official or official-bf16", numerics);
  report.numerics = numerics;
  report.request.cache = {entry_format(*n), n->quantise ? quant::EntryFormat::kFp4 : quant::EntryFormat::kF32};
  report.request.context = o.context;
  report.request.sequences = o.sequences;
  const model::CacheLayout layout = model::plan_cache(report.config, *n, /*rollback=*/0);
  report.request.one_sequence_bytes =
      layout.slot_bytes + static_cast<std::uint64_t>(model::CacheLayout::pages_for(o.context)) * layout.page_bytes;
  const model::ModelOptions defaults;
  report.request.workspace_bytes =
      checkpoint::workspace_bytes(report.config, defaults.max_step_tokens, defaults.max_logit_rows);
  report.request.device = device;
  report.plan = checkpoint::make_plan(report.config, report.inventory, report.request);
  return {};
}

int run_kernels(const Options& o) {
  const auto off = ops::leaves_named(o.kernels_off);
  if (!off) return fail_with(off.error());
  Output out;
  out.write(o.json ? kernels_as_json(*off) : kernels_as_text(*off));
  if (const auto finished = out.finish(); !finished) return fail_with(finished.error());
  return ExitCode::kOk;
}

int run(const Options& o) {
  if (o.kernels) return run_kernels(o);
  InspectReport report;
  if (const auto seen = look(o, report); !seen) return fail_with(seen.error());
  if (const auto planned = plan(o, report); !planned) return fail_with(planned.error());
  Output out;
  out.write(o.json ? as_json(report) : as_text(report));
  if (const auto finished = out.finish(); !finished) return fail_with(finished.error());
  if (report.problems.empty()) return ExitCode::kOk;
  print_error(fmt::format("{}: {} problems", report.where, report.problems.total));
  return ExitCode::kFailed;
}

}  // namespace

void add_inspect(CLI::App& app, ExitCode& exit) {
  auto* command = app.add_subcommand("inspect", "what a checkpoint is, whether it fits, how fast it can be");
  auto o = std::make_shared<Options>();
  auto* model = command->add_option("MODEL", o->model, "model folder (default: $FATHOM_MODEL, else fathom-tiny)");
  add_synthetic_source(*command, o->synthetic)->excludes(model);
  command->add_option("--context", o->context, "tokens each sequence holds")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--concurrency", o->sequences, "sequences decoded at once")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--device", o->device, "cpu, or GPUs and how many: h200, h200x8")->capture_default_str();
  command->add_option("--bandwidth", o->bandwidth_gb, "memory bandwidth of each device (default: nominal, GPUs only)")
      ->type_name("GB/s")
      ->check(CLI::Range(0.001, 1e6));
  command->add_option("--memory", o->memory_gib, "memory of each device (default: nominal; for cpu, this machine's)")
      ->type_name("GiB")
      ->check(CLI::Range(0.001, 1e6));
  command->add_option("--numerics", o->numerics,
                      "float, official or official-bf16 (default: official on cpu, official-bf16 on GPUs)");
  command->add_flag("--values", o->values, "also read every weight: NaN, infinities, scales and ids out of range")
      ->excludes(command->get_option("--synthetic"));
  auto* kernels =
      command->add_flag("--kernels", o->kernels, "no model: which kernel computes what on which GPU, in this build");
  kernels->excludes(model);
  command
      ->add_option("--disable-kernel", o->kernels_off,
                   "with --kernels: as if this one were turned off; may be repeated")
      ->envname("FATHOM_DISABLE_KERNELS")
      ->delimiter(',')
      ->type_name("NAME");
  command->add_flag("--json", o->json, "everything as one JSON object");
  command->footer(
      "Exits with 1 where the checkpoint is broken; every problem is listed.\n"
      "Examples:\n"
      "  fathom inspect /models/DeepSeek-V4-Flash --device h200x4 --context 131072 --concurrency 32\n"
      "  fathom inspect --synthetic v4-pro --device h200x8\n"
      "  fathom inspect --synthetic v4-flash --device cpu --memory 256 --bandwidth 200 --json");
  command->callback([o, &exit] { exit.value = run(*o); });
}

}  // namespace fathom::cli
