// fathom bench: how fast a model is read in and goes on, against the memory bandwidth measured in the same run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/bandwidth.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "checkpoint/inventory.h"
#include "checkpoint/plan.h"
#include "checkpoint/writer.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/compute.h"
#include "cli/progress.h"
#include "cli/svg_plot.h"
#include "cli/synthetic_source.h"

namespace fathom::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kCacheSized = std::uint64_t{64} << 20;  // models below this are about as large as caches

struct Options {
  std::string model;
  SyntheticSource synthetic;
  ComputeOptions compute;
  std::vector<std::int32_t> prefill = {128, 512};
  std::vector<std::int32_t> contexts = {1, 1024, 4096};
  std::vector<std::int32_t> batches = {1, 4};
  std::int32_t steps = 16;
  std::int32_t chunk = 256;
  std::string svg;
  bool json = false;
};

struct Row {
  std::string what;          // "prefill", "decode"
  std::int32_t tokens = 0;   // prefill: of the prompt; decode: sequences
  std::int32_t context = 0;  // decode
  double seconds = 0;        // of the prompt or of a step, the median
  double step_bytes = 0;     // decode: read per step
  double full_seconds = 0;   // the same with all layers, estimated; 0: nothing to estimate

  double per_second() const { return tokens / seconds; }
};

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

// Sequences whose memory holds made-up tokens: what they hold decides no speed, and computing it would take hours.
class MadeUp {
 public:
  MadeUp(const model::Model& m, std::uint32_t seed)
      : m_(m), rng_(seed), page_(m.layout().page_bytes), slot_(m.layout().slot_bytes) {
    for (const model::LayerCache& l : m.layout().layers) {
      for (std::int32_t i = 0; i < l.window.capacity; ++i)
        encode(l.window.codec, slot_.data() + l.window.offset + i * stride(l.window.codec));
      for (const ops::CompressorRing* ring : {&l.compressor, &l.index_compressor}) {
        for (std::int32_t i = 0; i < 2 * ring->width * ring->capacity; ++i) {
          reinterpret_cast<float*>(slot_.data() + ring->offset)[i] = normal_(rng_);
        }
      }
      for (const ops::EntryPages* pages : {&l.entries, &l.index_keys}) {
        for (std::int32_t i = 0; pages->ratio != 0 && i < ops::kPageTokens / pages->ratio; ++i) {
          encode(pages->codec, page_.data() + pages->offset + i * stride(pages->codec));
        }
      }
    }
  }

  Result<cache::Sequence> sequence(std::int32_t length, std::int32_t more) {
    FATHOM_ASSIGN(auto s, cache::Sequence::create(m_.layout(), m_.backend()));
    FATHOM_TRY(s.reserve(length + more));
    m_.backend().copy_in(s.slot(), slot_.data(), slot_.size());
    for (std::byte* page : s.pages()) m_.backend().copy_in(page, page_.data(), page_.size());
    s.advance(length);
    return s;
  }

 private:
  static std::int64_t stride(const quant::EntryCodec& codec) { return static_cast<std::int64_t>(codec.bytes()); }
  void encode(const quant::EntryCodec& codec, std::byte* to) {
    values_.resize(static_cast<std::size_t>(codec.dim));
    for (float& v : values_) v = normal_(rng_);
    codec.encode(values_, to);
  }

  const model::Model& m_;
  std::mt19937 rng_;
  std::normal_distribution<float> normal_;
  std::vector<std::byte> page_;
  std::vector<std::byte> slot_;
  std::vector<float> values_;
};

class Bench {
 public:
  Bench(const Options& o, model::Model& m, checkpoint::Inventory inventory)
      : o_(o), m_(m), inventory_(std::move(inventory)) {
    const ops::Numerics n = m.options().numerics;
    format_.entries = !n.quantise ? quant::EntryFormat::kF32
                                  : (n.carrier == ops::Carrier::kBf16 ? quant::EntryFormat::kFp8RopeBf16
                                                                      : quant::EntryFormat::kFp8RopeF32);
    format_.index_keys = n.quantise ? quant::EntryFormat::kFp4 : quant::EntryFormat::kF32;
  }

  Result<Row> prefill(std::int32_t tokens) {
    std::vector<double> seconds;
    for (int round = 0; round < 3; ++round) {
      FATHOM_ASSIGN(auto s, cache::Sequence::create(m_.layout(), m_.backend()));
      const std::vector<std::int32_t> ids = random_ids(tokens);
      const auto start = Clock::now();
      FATHOM_TRY(feed(m_, s, ids, {}, [](std::int64_t, Mat<const float>) -> Result<> { return {}; }));
      seconds.push_back(since(start));
    }
    return Row{.what = "prefill", .tokens = tokens, .context = 0, .seconds = median(seconds), .step_bytes = 0};
  }

  Result<Row> decode(std::int32_t sequences, std::int32_t context) {
    MadeUp made_up(m_, 1);
    std::vector<cache::Sequence> all;
    for (std::int32_t i = 0; i < sequences; ++i) {
      FATHOM_ASSIGN(auto s, made_up.sequence(context, o_.steps + 1));
      all.push_back(std::move(s));
    }
    std::vector<double> seconds;
    for (std::int32_t step = 0; step <= o_.steps; ++step) {
      const std::vector<std::int32_t> ids = random_ids(sequences);
      std::vector<model::Chunk> chunks;
      for (std::int32_t i = 0; i < sequences; ++i) {
        auto& s = all[static_cast<std::size_t>(i)];
        chunks.push_back({.ids = std::span(ids).subspan(static_cast<std::size_t>(i), 1),
                          .start = s.length(),
                          .slot = s.slot(),
                          .pages = s.pages()});
      }
      const auto start = Clock::now();
      FATHOM_TRY(m_.forward(chunks));
      if (step > 0) seconds.push_back(since(start));  // the first step warms up
      for (auto& s : all) s.advance(1);
    }
    return Row{.what = "decode",
               .tokens = sequences,
               .context = context,
               .seconds = median(seconds),
               .step_bytes = step_bytes(m_.config(), inventory_, sequences, context)};
  }

  double step_bytes(const checkpoint::ModelConfig& c, const checkpoint::Inventory& inventory, std::int32_t sequences,
                    std::int32_t context) const {
    checkpoint::PlanRequest r;
    r.cache = format_;
    r.context = context;
    r.sequences = sequences;
    r.device.name = "cpu";
    return checkpoint::make_plan(c, inventory, r).step_bytes;
  }

 private:
  static double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
  std::vector<std::int32_t> random_ids(std::int32_t n) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
    for (auto& id : ids) id = static_cast<std::int32_t>(rng_() % static_cast<std::uint32_t>(m_.config().vocab));
    return ids;
  }

  const Options& o_;
  model::Model& m_;
  checkpoint::Inventory inventory_;
  checkpoint::CacheFormat format_;
  std::mt19937 rng_{7};
};

struct Report {
  std::string model;
  std::int32_t layers = 0;
  std::int32_t all_layers = 0;  // of the published geometry that a synthetic model has some layers of
  int threads = 0;
  std::string numerics;
  double bandwidth = 0;
  std::uint64_t weight_bytes = 0;
  std::vector<Row> rows;
};

void print(const Report& r) {
  fmt::print("{}, {} layers, {} threads, numerics {}\n", r.model, r.layers, r.threads, r.numerics);
  fmt::print("memory read bandwidth, measured: {:.1f} GB/s\n\n", r.bandwidth / 1e9);
  const bool estimated = r.all_layers > r.layers;
  fmt::print("{:<8} {:>9} {:>6} {:>12} {:>11} {:>8} {:>9}{}\n", "", "tokens", "batch", "tokens/s", "ms", "GB/s",
             "of limit", estimated ? fmt::format("  estimate, {} layers", r.all_layers) : "");
  for (const Row& row : r.rows) {
    const bool decode = row.what == "decode";
    const double rate = row.step_bytes / row.seconds;
    fmt::print("{:<8} {:>9} {:>6} {:>12.1f} {:>11.2f} {:>8} {:>9}{}\n", row.what, decode ? row.context : row.tokens,
               decode ? row.tokens : 1, row.per_second(), 1000 * row.seconds,
               decode ? fmt::format("{:.1f}", rate / 1e9) : "",
               decode ? fmt::format("{:.0f} %", 100 * rate / r.bandwidth) : "",
               row.full_seconds > 0 ? fmt::format("  {:.2f} tokens/s", row.tokens / row.full_seconds) : "");
  }
  fmt::print("\nprefill: a prompt of so many tokens. decode: a step at a context of so many, made-up, tokens.\n");
  if (r.weight_bytes < kCacheSized)
    fmt::print("The weights fit in this processor's caches: memory is no limit to them.\n");
  if (estimated) {
    fmt::print("The estimate scales a decode step by the bytes that all layers read, a prompt by their parameters.\n");
  }
}

Json as_json(const Report& r) {
  Json rows = Json::array();
  for (const Row& row : r.rows) {
    Json j{{"what", row.what},
           {"tokens", row.tokens},
           {"context", row.context},
           {"seconds", row.seconds},
           {"tokens_per_second", row.per_second()}};
    if (row.what == "decode") {
      j["bytes_per_step"] = row.step_bytes;
      j["bytes_per_second"] = row.step_bytes / row.seconds;
      j["of_read_bandwidth"] = row.step_bytes / row.seconds / r.bandwidth;
    }
    if (row.full_seconds > 0) j["estimated_tokens_per_second_all_layers"] = row.tokens / row.full_seconds;
    rows.push_back(std::move(j));
  }
  return Json{{"model", r.model},       {"layers", r.layers},     {"all_layers", r.all_layers},
              {"threads", r.threads},   {"numerics", r.numerics}, {"read_bandwidth", r.bandwidth},
              {"rows", std::move(rows)}};
}

std::string plot(const Report& r) {
  Plot p{.title = "Decode, " + r.model, .x_label = "context (tokens)", .y_label = "tokens/s", .series = {}};
  for (const Row& row : r.rows) {
    if (row.what != "decode") continue;
    const std::string name = fmt::format("batch {}", row.tokens);
    auto at = std::find_if(p.series.begin(), p.series.end(), [&](const Series& s) { return s.name == name; });
    if (at == p.series.end()) at = p.series.insert(p.series.end(), Series{.name = name, .points = {}});
    at->points.emplace_back(row.context, row.per_second());
  }
  return svg(p);
}

Result<checkpoint::Checkpoint> open_or_make(const Options& o, ThreadPool& pool, Report& report) {
  if (o.synthetic.name.empty()) {
    FATHOM_ASSIGN(const auto folder, model_folder(o.model));
    report.model = folder.filename().string();
    return checkpoint::Checkpoint::open(folder);
  }
  FATHOM_ASSIGN(const checkpoint::SyntheticSpec spec, synthetic_spec(o.synthetic));
  report.model = "synthetic " + o.synthetic.name;
  report.all_layers = checkpoint::published(o.synthetic.name)->config.layers;
  ProgressBar progress("making weights", ProgressUnit::kBytes);
  return checkpoint::synthesize(spec, pool, [&](std::uint64_t done, std::uint64_t all) { progress.update(done, all); });
}

Result<> run(Options o) {
  Report report;
  report.threads = o.compute.threads > 0 ? o.compute.threads : usable_cores();
  report.numerics = o.compute.numerics;
  ThreadPool pool(report.threads);
  FATHOM_ASSIGN(auto checkpoint, open_or_make(o, pool, report));
  const std::int32_t most = *std::max_element(o.batches.begin(), o.batches.end());
  FATHOM_ASSIGN(LoadedModel loaded, load_model(std::move(checkpoint), o.compute,
                                               {.max_step_tokens = std::max(o.chunk, most), .max_logit_rows = most}));
  model::Model& m = *loaded.model;
  report.layers = m.config().layers;
  report.bandwidth = measure_read_bandwidth(pool);

  // What all layers would read and multiply, beside what these do.
  const checkpoint::Inventory here = checkpoint::take_inventory(loaded.checkpoint);
  checkpoint::ModelConfig full = m.config();
  checkpoint::Inventory all = here;
  if (report.all_layers > report.layers) {
    FATHOM_ASSIGN(full, checkpoint::shrunk(checkpoint::published(o.synthetic.name)->config, 0, o.synthetic.experts));
    all = checkpoint::take_inventory(full, here.storage);
  }
  report.weight_bytes = here.bytes();
  Bench bench(o, m, here);
  ProgressBar progress("cases", ProgressUnit::kCount);
  const std::size_t cases = o.prefill.size() + o.batches.size() * o.contexts.size();
  for (const std::int32_t tokens : o.prefill) {
    FATHOM_ASSIGN(Row row, bench.prefill(tokens));
    if (report.all_layers > report.layers)
      row.full_seconds = row.seconds * all.active_parameters() / here.active_parameters();
    report.rows.push_back(row);
    progress.update(report.rows.size(), cases);
  }
  for (const std::int32_t batch : o.batches) {
    for (const std::int32_t context : o.contexts) {
      FATHOM_ASSIGN(Row row, bench.decode(batch, context));
      if (report.all_layers > report.layers)
        row.full_seconds = row.seconds * bench.step_bytes(full, all, batch, context) / row.step_bytes;
      report.rows.push_back(row);
      progress.update(report.rows.size(), cases);
    }
  }
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
  command->add_option("--chunk", o->chunk, "tokens of a prefill step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--svg", o->svg, "also write a plot of decode speed")->type_name("FILE");
  command->add_flag("--json", o->json, "one JSON object");
  add_compute_options(*command, o->compute);
  command->footer(
      "Examples:\n"
      "  fathom bench\n"
      "  fathom bench --synthetic v4-flash --layers 4 --experts 32 --context 1,4096,32768 --batch 1 --svg decode.svg\n"
      "  fathom bench /models/DeepSeek-V4-Flash --prefill 2048 --json");
  command->callback([o, &exit] {
    const auto done = run(*o);
    exit.value = done ? ExitCode::kOk : fail_with(done.error());
  });
}

}  // namespace fathom::cli
