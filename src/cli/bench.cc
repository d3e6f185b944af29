// fathom bench: how fast a model is read in and goes on, against the memory bandwidth measured in the same run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
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
#include "ops/fma_peak.h"

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
  double fma_peak = 0;   // f32 operations per second of a CPU; 0 on a device
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
  const auto share = [&](double amount, double limit) -> std::pair<std::string, std::string> {
    if (amount == 0 || limit == 0) return {};
    return {fmt::format("{:.1f}", amount / row.seconds / 1e9),
            fmt::format("{:.0f} %", 100 * amount / row.seconds / limit)};
  };
  const auto [rate, of_bandwidth] = share(row.step_bytes, r.bandwidth);
  const auto [flops, of_peak] = share(row.flops, r.fma_peak);
  fmt::print("{:>12.1f} {:>11.2f} {:>8} {:>9} {:>8} {:>8}{}\n", row.per_second(), 1000 * row.seconds, rate,
             of_bandwidth, flops, of_peak,
             row.full_seconds > 0 ? fmt::format("  {:.2f} tokens/s", row.tokens / row.full_seconds) : "");
}

void print_operations(const Report& r, const BenchRow& row) {
  if (row.what == "decode") {
    fmt::print("\nThe operations of a decode step, batch {}, context {}, each kind alone:\n", row.tokens, row.context);
  } else {
    fmt::print("\nThe operations of the last step, {} tokens, of a prompt of {}, each kind alone:\n", row.last_step,
               row.tokens);
  }
  fmt::print("{:<36} {:>6} {:>9} {:>11} {:>11} {:>10} {:>8} {:>9} {:>8} {:>8}\n", "", "calls",
             r.on_host ? "" : "launches", "us a call", "us in all", "MB", "GB/s", "of limit",
             r.on_host ? "GFLOP/s" : "", r.on_host ? "of FMA" : "");
  OperationRow sum{.name = "their sum"};
  const auto line = [&](const OperationRow& o) {
    const auto per_call = 1e6 * o.seconds / static_cast<double>(o.calls);
    const bool flops = o.flops > 0 && r.fma_peak > 0;
    fmt::print("{:<36} {:>6} {:>9} {:>11} {:>11.1f} {:>10.2f} {:>8.1f} {:>7.0f} % {:>8} {:>8}\n", o.name,
               o.calls > 0 ? fmt::format("{}", o.calls) : "", r.on_host ? "" : fmt::format("{}", o.launches),
               o.calls > 0 ? fmt::format("{:.2f}", per_call) : "", 1e6 * o.seconds, o.bytes / 1e6,
               o.bytes / o.seconds / 1e9, 100 * o.bytes / o.seconds / r.bandwidth,
               flops ? fmt::format("{:.1f}", o.flops / o.seconds / 1e9) : "",
               flops ? fmt::format("{:.0f} %", 100 * o.flops / o.seconds / r.fma_peak) : "");
  };
  for (const OperationRow& o : row.operations) {
    line(o);
    sum.launches += o.launches;
    sum.seconds += o.seconds;
    sum.bytes += o.bytes;
    sum.flops += o.flops;
  }
  line(sum);
  if (row.what != "decode") return;
  sum.name = "the step";
  sum.launches = row.launches;
  sum.seconds = row.seconds;
  line(sum);
}

void print(const Report& r) {
  fmt::print("{}, {} layers, {}{}, numerics {}\n", r.model, r.layers, r.device,
             r.on_host ? fmt::format(", {} threads", r.threads) : "", r.numerics);
  fmt::print("{}, measured: {:.1f} GB/s\n",
             r.on_host ? "memory read bandwidth" : "device memory, a large copy's reads and writes", r.bandwidth / 1e9);
  if (r.fma_peak > 0) fmt::print("f32 fused multiply-adds, measured: {:.1f} GFLOP/s\n", r.fma_peak / 1e9);
  const bool estimated = r.all_layers > r.layers;
  fmt::print("\n{:<8} {:>9} {:>6} {:>12} {:>11} {:>8} {:>9} {:>8} {:>8}{}\n", "", "tokens", "batch", "tokens/s", "ms",
             "GB/s", "of limit", r.on_host ? "GFLOP/s" : "", r.on_host ? "of FMA" : "",
             estimated ? fmt::format("  estimate, {} layers", r.all_layers) : "");
  for (const BenchRow& row : r.rows) print_row(r, row);
  for (const BenchRow& row : r.rows) {
    if (!row.operations.empty()) print_operations(r, row);
  }
  fmt::print("\nprefill: a prompt of so many tokens. decode: a step at a context of so many, made-up, tokens.\n");
  if (r.on_host && r.weight_bytes < kCacheSized)
    fmt::print("The weights fit in this processor's caches: memory is no limit to them.\n");
  if (estimated) {
    fmt::print("The estimate scales a decode step by the bytes that all layers read, a prompt by the products it takes.\n");
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
  if (row.flops > 0) {
    j["flops_per_second"] = row.flops / row.seconds;
    j["of_fma_peak"] = row.flops / row.seconds / r.fma_peak;
  }
  if (row.full_seconds > 0) j["estimated_tokens_per_second_all_layers"] = row.tokens / row.full_seconds;
  for (const OperationRow& o : row.operations) {
    j["operations"].push_back(Json{{"name", o.name},
                                   {"calls", o.calls},
                                   {"launches", o.launches},
                                   {"seconds", o.seconds},
                                   {"bytes", o.bytes},
                                   {"of_bandwidth", o.bytes / o.seconds / r.bandwidth}});
    if (o.flops > 0 && r.fma_peak > 0) j["operations"].back()["of_fma_peak"] = o.flops / o.seconds / r.fma_peak;
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
              {"fma_peak", r.fma_peak},
              {"weight_bytes", r.weight_bytes},
              {"load_seconds", r.load_seconds},
              {"rows", std::move(rows)}};
}

void add_point(Plot& p, const std::string& series, double x, double y) {
  auto at = std::find_if(p.series.begin(), p.series.end(), [&](const Series& s) { return s.name == series; });
  if (at == p.series.end()) at = p.series.insert(p.series.end(), Series{.name = series, .points = {}});
  at->points.emplace_back(x, y);
}

// Speeds, and where they would be if nothing but the limits measured in this run held them back.
std::string plot(const Report& r) {
  Plot decode{.title = "Decode, " + r.model, .x_label = "context (tokens)", .y_label = "tokens/s", .series = {}};
  Plot prefill{.title = "Prefill, " + r.model, .x_label = "prompt (tokens)", .y_label = "tokens/s", .series = {}};
  const bool in_memory = r.on_host && r.weight_bytes >= kCacheSized;
  for (const BenchRow& row : r.rows) {
    if (!row.fits) continue;
    if (row.what == "decode") {
      add_point(decode, fmt::format("batch {}", row.tokens), row.context, row.per_second());
      if (in_memory) {
        add_point(decode, fmt::format("memory, batch {}", row.tokens), row.context,
                  row.tokens * r.bandwidth / row.step_bytes);
      }
    } else {
      add_point(prefill, "prompt", row.tokens, row.per_second());
      if (r.fma_peak > 0) add_point(prefill, "f32 FMA peak", row.tokens, row.tokens * r.fma_peak / row.flops);
    }
  }
  const std::array<Plot, 2> both = {std::move(decode), std::move(prefill)};
  return svg(both);
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

// Parameters that a prompt is multiplied with, each as often as it is; the head sees the last token alone.
double prompt_parameters(const checkpoint::Inventory& inventory, std::int32_t tokens) {
  const double head = inventory.of(checkpoint::Group::kHead).token_parameters;
  return tokens * (inventory.active_parameters() - head) + head;
}

Result<> run_cases(const Options& o, BenchCases& bench, const checkpoint::ModelConfig& full,
                   const checkpoint::Inventory& here, const checkpoint::Inventory& all, Report& report) {
  ProgressBar progress("cases", ProgressUnit::kCount);
  const std::size_t cases = o.prefill.size() + o.batches.size() * o.contexts.size();
  const bool estimate = report.all_layers > report.layers;
  for (const std::int32_t tokens : o.prefill) {
    FATHOM_ASSIGN(BenchRow row, bench.prefill(tokens, o.operations));
    if (estimate) row.full_seconds = row.seconds * prompt_parameters(all, tokens) / prompt_parameters(here, tokens);
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
  if (report.on_host) report.fma_peak = ops::measure_fma_peak(pool);
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
  command->add_flag("--operations", o->operations, "also every kind of operation of the steps alone");
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
