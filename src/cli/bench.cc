// fathom bench: how fast a model is read in and goes on, against the memory bandwidth measured in the same run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/bandwidth.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "checkpoint/inventory.h"
#include "checkpoint/writer.h"
#include "cli/bench_cases.h"
#include "cli/bench_serve.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/compute.h"
#include "cli/progress.h"
#include "cli/svg_plot.h"
#include "cli/synthetic_source.h"

namespace fathom::cli {
namespace {

constexpr std::uint64_t kCacheSized = std::uint64_t{64} << 20;  // models below this are about as large as caches

struct Options {
  std::string model;
  SyntheticSource synthetic;
  ComputeOptions compute;
  std::vector<std::int32_t> prefill = {128, 512};
  std::vector<std::int32_t> contexts = {1, 1024, 4096};
  std::vector<std::int32_t> batches = {1, 4};
  std::int32_t steps = 16;
  std::int32_t chunk = 0;  // 0: what suits the device
  bool operations = false;
  std::string svg;
  bool json = false;
  ServeBenchOptions serve;
};

struct Report {
  std::string model;
  std::int32_t layers = 0;
  std::int32_t all_layers = 0;  // of the published geometry that a synthetic model has some layers of
  std::string device;
  int threads = 0;  // of a CPU
  std::string numerics;
  bool on_host = true;
  double bandwidth = 0;  // bytes per second: of reading on a CPU, of copying on a device
  std::uint64_t weight_bytes = 0;
  double load_seconds = 0;  // until the model is ready, made-up weights made before
  std::vector<BenchRow> rows;
};

void print_row(const Report& r, const BenchRow& row) {
  const bool decode = row.what == "decode";
  fmt::print("{:<8} {:>9} {:>6} ", row.what, decode ? row.context : row.tokens, decode ? row.tokens : 1);
  if (!row.fits) {
    fmt::print("  does not fit in the memory\n");
    return;
  }
  const double rate = row.step_bytes / row.seconds;
  fmt::print("{:>12.1f} {:>11.2f} {:>8} {:>9}{}\n", row.per_second(), 1000 * row.seconds,
             decode ? fmt::format("{:.1f}", rate / 1e9) : "",
             decode ? fmt::format("{:.0f} %", 100 * rate / r.bandwidth) : "",
             row.full_seconds > 0 ? fmt::format("  {:.2f} tokens/s", row.tokens / row.full_seconds) : "");
}

void print_operations(const Report& r, const BenchRow& row) {
  fmt::print("\nThe operations of a decode step, batch {}, context {}, each kind alone:\n", row.tokens, row.context);
  fmt::print("{:<36} {:>6} {:>9} {:>11} {:>11} {:>10} {:>8} {:>9}\n", "", "calls", r.on_host ? "" : "launches",
             "us a call", "us in all", "MB", "GB/s", "of limit");
  double seconds = 0;
  double bytes = 0;
  const auto line = [&](const std::string& name, std::string calls, std::uint64_t launches, double each, double all,
                        double moved) {
    fmt::print("{:<36} {:>6} {:>9} {:>11} {:>11.1f} {:>10.2f} {:>8.1f} {:>7.0f} %\n", name, calls,
               r.on_host ? "" : fmt::format("{}", launches), each > 0 ? fmt::format("{:.2f}", 1e6 * each) : "",
               1e6 * all, moved / 1e6, moved / all / 1e9, 100 * moved / all / r.bandwidth);
  };
  for (const OperationRow& o : row.operations) {
    line(o.name, fmt::format("{}", o.calls), o.launches, o.seconds / static_cast<double>(o.calls), o.seconds, o.bytes);
    seconds += o.seconds;
    bytes += o.bytes;
  }
  line("their sum", "", row.launches, 0, seconds, bytes);
  line("the step", "", row.launches, 0, row.seconds, bytes);
}

void print(const Report& r) {
  fmt::print("{}, {} layers, {}{}, numerics {}\n", r.model, r.layers, r.device,
             r.on_host ? fmt::format(", {} threads", r.threads) : "", r.numerics);
  fmt::print("{}, measured: {:.1f} GB/s\n\n",
             r.on_host ? "memory read bandwidth" : "device memory, a large copy's reads and writes", r.bandwidth / 1e9);
  const bool estimated = r.all_layers > r.layers;
  fmt::print("{:<8} {:>9} {:>6} {:>12} {:>11} {:>8} {:>9}{}\n", "", "tokens", "batch", "tokens/s", "ms", "GB/s",
             "of limit", estimated ? fmt::format("  estimate, {} layers", r.all_layers) : "");
  for (const BenchRow& row : r.rows) print_row(r, row);
  for (const BenchRow& row : r.rows) {
    if (!row.operations.empty()) print_operations(r, row);
  }
  fmt::print("\nprefill: a prompt of so many tokens. decode: a step at a context of so many, made-up, tokens.\n");
  if (r.on_host && r.weight_bytes < kCacheSized)
    fmt::print("The weights fit in this processor's caches: memory is no limit to them.\n");
  if (estimated) {
    fmt::print("The estimate scales a decode step by the bytes that all layers read, a prompt by their parameters.\n");
  }
}

Json as_json(const Report& r, const BenchRow& row) {
  Json j{{"what", row.what}, {"tokens", row.tokens}, {"context", row.context}, {"fits", row.fits}};
  if (!row.fits) return j;
  j["seconds"] = row.seconds;
  j["tokens_per_second"] = row.per_second();
  if (row.what == "decode") {
    j["bytes_per_step"] = row.step_bytes;
    j["bytes_per_second"] = row.step_bytes / row.seconds;
    j["of_bandwidth"] = row.step_bytes / row.seconds / r.bandwidth;
    if (!r.on_host) j["launches"] = row.launches;
  }
  if (row.full_seconds > 0) j["estimated_tokens_per_second_all_layers"] = row.tokens / row.full_seconds;
  for (const OperationRow& o : row.operations) {
    j["operations"].push_back(Json{{"name", o.name},
                                   {"calls", o.calls},
                                   {"launches", o.launches},
                                   {"seconds", o.seconds},
                                   {"bytes", o.bytes},
                                   {"of_bandwidth", o.bytes / o.seconds / r.bandwidth}});
  }
  return j;
}

Json as_json(const Report& r) {
  Json rows = Json::array();
  for (const BenchRow& row : r.rows) rows.push_back(as_json(r, row));
  return Json{{"model", r.model},
              {"layers", r.layers},
              {"all_layers", r.all_layers},
              {"device", r.device},
              {"threads", r.threads},
              {"numerics", r.numerics},
              {"bandwidth", r.bandwidth},
              {"weight_bytes", r.weight_bytes},
              {"load_seconds", r.load_seconds},
              {"rows", std::move(rows)}};
}

std::string plot(const Report& r) {
  Plot p{.title = "Decode, " + r.model, .x_label = "context (tokens)", .y_label = "tokens/s", .series = {}};
  for (const BenchRow& row : r.rows) {
    if (row.what != "decode" || !row.fits) continue;
    const std::string name = fmt::format("batch {}", row.tokens);
    auto at = std::find_if(p.series.begin(), p.series.end(), [&](const Series& s) { return s.name == name; });
    if (at == p.series.end()) at = p.series.insert(p.series.end(), Series{.name = name, .points = {}});
    at->points.emplace_back(row.context, row.per_second());
  }
  return svg(std::span(&p, 1));
}

Result<checkpoint::Checkpoint> open_or_make(const Options& o, ThreadPool& pool, Report& report) {
  if (o.synthetic.name.empty()) {
    FATHOM_ASSIGN(const auto folder, model_folder(o.model));
    report.model = folder.filename().string();
    return checkpoint::Checkpoint::open(folder);
  }
  report.model = "synthetic " + o.synthetic.name;
  report.all_layers = checkpoint::published(o.synthetic.name)->config.layers;
  return make_synthetic(o.synthetic, pool, /*one_expert=*/!report.on_host);
}

Result<> run_cases(const Options& o, BenchCases& bench, const checkpoint::ModelConfig& full,
                   const checkpoint::Inventory& here, const checkpoint::Inventory& all, Report& report) {
  ProgressBar progress("cases", ProgressUnit::kCount);
  const std::size_t cases = o.prefill.size() + o.batches.size() * o.contexts.size();
  const bool estimate = report.all_layers > report.layers;
  for (const std::int32_t tokens : o.prefill) {
    FATHOM_ASSIGN(BenchRow row, bench.prefill(tokens));
    if (estimate) row.full_seconds = row.seconds * all.active_parameters() / here.active_parameters();
    report.rows.push_back(row);
    progress.update(report.rows.size(), cases);
  }
  for (const std::int32_t batch : o.batches) {
    for (const std::int32_t context : o.contexts) {
      FATHOM_ASSIGN(BenchRow row, bench.decode(batch, context, o.steps, o.operations));
      if (estimate) row.full_seconds = row.seconds * bench.step_bytes(full, all, batch, context) / row.step_bytes;
      report.rows.push_back(std::move(row));
      progress.update(report.rows.size(), cases);
    }
  }
  return {};
}

Result<> run_serve(const Options& o) {
  ThreadPool pool(o.compute.threads > 0 ? o.compute.threads : usable_cores());
  Report report;
  const auto checkpoint = [&] { return open_or_make(o, pool, report); };
  std::string name = "synthetic " + o.synthetic.name;
  if (o.synthetic.name.empty()) {
    FATHOM_ASSIGN(const auto folder, model_folder(o.model));
    name = folder.filename().string();
  }
  return run_serve_bench({.options = o.serve,
                          .compute = o.compute,
                          .model = std::move(name),
                          .checkpoint = checkpoint,
                          .svg = o.svg,
                          .json = o.json});
}

Result<> run(const Options& o) {
  if (o.serve.asked()) return run_serve(o);
  FATHOM_ASSIGN(auto device, make_backend(o.compute));
  Report report;
  report.device = device->name();
  report.on_host = device->on_host();
  report.threads = o.compute.threads > 0 ? o.compute.threads : usable_cores();
  ThreadPool pool(report.threads);
  FATHOM_ASSIGN(auto checkpoint, open_or_make(o, pool, report));
  report.bandwidth = report.on_host ? measure_read_bandwidth(pool) : measure_copy_bandwidth(*device);
  const std::int32_t most = *std::max_element(o.batches.begin(), o.batches.end());
  const std::int32_t chunk = o.chunk != 0 ? o.chunk : report.on_host ? 256 : 4096;
  auto tap = std::make_unique<TapBackend>(std::move(device));
  TapBackend& backend = *tap;
  const auto start = std::chrono::steady_clock::now();
  FATHOM_ASSIGN(LoadedModel loaded, load_model(std::move(checkpoint), std::move(tap), o.compute,
                                               {.max_step_tokens = std::max(chunk, most), .max_logit_rows = most}));
  report.load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  model::Model& m = *loaded.model;
  report.layers = m.config().layers;
  report.numerics = ops::name_of(m.options().numerics);

  // What all layers would read and multiply, beside what these do.
  const checkpoint::Inventory here = checkpoint::take_inventory(loaded.checkpoint);
  checkpoint::ModelConfig full = m.config();
  checkpoint::Inventory all = here;
  if (report.all_layers > report.layers) {
    FATHOM_ASSIGN(full, checkpoint::shrunk(checkpoint::published(o.synthetic.name)->config, 0, o.synthetic.experts));
    all = checkpoint::take_inventory(full, here.storage);
  }
  report.weight_bytes = here.bytes();
  BenchCases bench(m, backend, here);
  FATHOM_TRY(run_cases(o, bench, full, here, all, report));
  if (!o.svg.empty()) FATHOM_TRY(checkpoint::write_text_file(o.svg, plot(report)));
  if (o.json) {
    Output out;
    out.line(as_json(report).dump(2));
    return out.finish();
  }
  print(report);
  return {};
}

}  // namespace

void add_bench(CLI::App& app, ExitCode& exit) {
  auto* command = app.add_subcommand("bench", "measure prefill and decode speed against the memory's");
  auto o = std::make_shared<Options>();
  auto* model = command->add_option("model", o->model, "folder of the checkpoint (default: the embedded model)")
                    ->type_name("MODEL");
  model->excludes(add_synthetic_source(*command, o->synthetic));
  const auto list = [&](const std::string& flag, std::vector<std::int32_t>& values, const std::string& help) {
    command->add_option(flag, values, help)->delimiter(',')->check(CLI::Range(1, 1 << 20))->capture_default_str();
  };
  list("--prefill", o->prefill, "prompt lengths");
  list("--context", o->contexts, "tokens that a decoding sequence holds");
  list("--batch", o->batches, "sequences that decode together");
  command->add_option("--steps", o->steps, "decode steps timed; the median counts")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command->add_option("--chunk", o->chunk, "tokens of a prefill step (default: 256, on a GPU 4096)")
      ->check(CLI::Range(1, 1 << 16));
  command->add_flag("--operations", o->operations, "also every kind of operation of the decode steps alone");
  command->add_option("--svg", o->svg, "also write a plot of decode speed, or of --serve")->type_name("FILE");
  command->add_flag("--json", o->json, "one JSON object");
  add_serve_bench(*command, o->serve);
  add_compute_options(*command, o->compute);
  command->footer(
      "Examples:\n"
      "  fathom bench\n"
      "  fathom bench --serve --concurrent 1,4,16,64 --history 2048,8192 --svg load.svg\n"
      "  fathom bench --synthetic v4-flash --layers 4 --experts 32 --context 1,4096,32768 --batch 1 --svg decode.svg\n"
      "  fathom bench --device cuda --synthetic v4-flash --experts 160 --context 4096,131072 --operations\n"
      "  fathom bench /models/DeepSeek-V4-Flash --prefill 2048 --json");
  command->callback([o, &exit] {
    const auto done = run(*o);
    exit.value = done ? ExitCode::kOk : fail_with(done.error());
  });
}

}  // namespace fathom::cli
