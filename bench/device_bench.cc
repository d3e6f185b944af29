// device_bench: how fast a device runs a published geometry on random weights. For each batch and context a decode step
// as one recorded piece, then every kind of operation of that step alone (all layers, so that nothing stays in the
// cache); at last prefill. Percent are of the bandwidth that a large copy reaches in the same run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "cache/sequence.h"
#include "model/forward.h"
#include "model/step_memory.h"
#include "ops/device_plugin.h"
#include "ops/rope/rope.h"
#include "synthetic_device.h"
#include "tap_backend.h"

namespace fathom::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Microseconds of one call, the median of a few rounds of `calls` calls each.
double time_us(ops::Backend& b, int calls, const std::function<void()>& call) {
  for (int i = 0; i < 2; ++i) call();  // run, record
  static_cast<void>(b.finish());
  std::vector<double> rounds;
  for (int r = 0; r < 5; ++r) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    static_cast<void>(b.finish());
    rounds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / calls);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

// Bytes per second of a copy on the device, read and written.
Result<double> copy_bandwidth(ops::Backend& b) {
  constexpr std::size_t kBytes = std::size_t{2} << 30;
  FATHOM_ASSIGN(const ops::Buffer from, b.allocate(kBytes));
  FATHOM_ASSIGN(const ops::Buffer to, b.allocate(kBytes));
  return 2.0 * kBytes / (time_us(b, 5, [&] { b.copy(to.get(), from.get(), kBytes); }) * 1e-6);
}

struct Bench {
  const checkpoint::ModelConfig& config;
  ops::Backend& backend;
  const model::Weights& weights;
  model::CacheLayout layout;
  model::Activations activations;
  model::StepMemory memory;
  ops::Buffer frequencies;
  ops::Buffer logits;
  double bandwidth;
  std::uint64_t key = 1;
  std::FILE* json = nullptr;

  model::ForwardContext context(ops::Backend& b) const {
    const auto* f = reinterpret_cast<const float*>(frequencies.get());
    return {.config = config,
            .weights = weights,
            .layout = layout,
            .numerics = ops::kOfficialBf16,
            .backend = b,
            .frequencies = f,
            .compressed_frequencies = f + config.rope_dim / 2};
  }
  // One step of the trunk, and logits of the first `rows` rows.
  void step(ops::Backend& b, const ops::Batch& batch, std::int64_t rows) const {
    const model::ForwardContext ctx = context(b);
    const model::ActivationViews a = activations.views().first(batch.tokens);
    model::Forward forward(ctx, a, batch);
    forward.trunk();
    forward.head_input(weights.hc_head, weights.norm, a.streams.slice(0, rows), a.x.slice(0, rows));
    forward.logits(a.x.slice(0, rows), mat(reinterpret_cast<float*>(logits.get()), rows, config.vocab));
  }
};

// A sequence of `length` tokens whose memory holds numbers like those of real entries.
Result<cache::Sequence> sequence_of(const Bench& b, std::int32_t length) {
  FATHOM_ASSIGN(cache::Sequence s, cache::Sequence::create(b.layout, b.backend));
  FATHOM_TRY(s.reserve(length));
  std::vector<std::byte> bytes(std::max(b.layout.slot_bytes, b.layout.page_bytes));
  std::uint32_t r = 12345;
  for (std::byte& v : bytes) {
    r = r * 1664525U + 1013904223U;
    v = static_cast<std::byte>(0x20U | (r >> 24 & 0x1fU));  // small positive in every format
  }
  b.backend.copy_in(s.slot(), bytes.data(), b.layout.slot_bytes);
  for (std::byte* page : s.pages()) b.backend.copy_in(page, bytes.data(), b.layout.page_bytes);
  return s;
}

Result<> decode(Bench& b, std::int32_t batch_size, std::int32_t context, bool table) {
  std::vector<cache::Sequence> sequences;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(batch_size));
  std::vector<model::Chunk> chunks;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    FATHOM_ASSIGN(cache::Sequence s, sequence_of(b, context));
    sequences.push_back(std::move(s));
    ids[i] = static_cast<std::int32_t>((i * 7919 + 17) % static_cast<std::size_t>(b.config.vocab));
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    // A step that completes an entry of 4 tokens, none of 128.
    chunks.push_back({.ids = std::span(ids).subspan(i, 1),
                      .start = context - 5,
                      .slot = sequences[i].slot(),
                      .pages = sequences[i].pages()});
  }
  FATHOM_ASSIGN(const ops::Batch batch, b.memory.upload(chunks));
  TapBackend tap(b.backend);
  b.step(tap, batch, batch.tokens);
  FATHOM_TRY(b.backend.finish());
  const std::vector<Tapped> all = tap.taken();
  const std::uint64_t key = ++b.key;
  const double us =
      time_us(b.backend, 10, [&] { b.backend.replay(key, [&] { b.step(b.backend, batch, batch.tokens); }); });
  const double eager = time_us(b.backend, 3, [&] { b.step(b.backend, batch, batch.tokens); });
  double bytes = 0;
  for (const Tapped& t : all) bytes += t.bytes;
  fmt::print(
      "decode batch {:3} context {:7}: {:9.1f} us a step, {:8.1f} tokens/s, {:5.1f} % of the copy's bandwidth; "
      "unrecorded {:9.1f} us, {} operations\n",
      batch_size, context, us, batch_size * 1e6 / us, 100 * bytes / (us * 1e-6) / b.bandwidth, eager, all.size());
  fmt::print(
      b.json,
      "{{\"decode\": {{\"batch\": {}, \"context\": {}, \"us\": {:.1f}, \"eager_us\": {:.1f}, \"bytes\": {:.0f}}}}}\n",
      batch_size, context, us, eager, bytes);
  if (!table) return b.backend.finish();

  std::map<std::string, std::vector<const Tapped*>> kinds;
  for (const Tapped& t : all) kinds[t.name].push_back(&t);
  std::vector<std::pair<double, std::string>> lines;
  double sum = 0;
  for (const auto& [name, list] : kinds) {
    const std::uint64_t kind_key = ++b.key;
    const double kind_us = time_us(b.backend, 10, [&, calls = &list] {
      b.backend.replay(kind_key, [&, calls] {
        for (const Tapped* t : *calls) t->run(b.backend);
      });
    });
    double kind_bytes = 0;
    for (const Tapped* t : list) kind_bytes += t->bytes;
    sum += kind_us;
    lines.emplace_back(kind_us, fmt::format("  {:36} {:4} x {:8.2f} us {:9.1f} us {:10.1f} MB {:6.1f} %", name,
                                            list.size(), kind_us / static_cast<double>(list.size()), kind_us,
                                            kind_bytes / 1e6, 100 * kind_bytes / (kind_us * 1e-6) / b.bandwidth));
    fmt::print(
        b.json,
        "{{\"operation\": \"{}\", \"batch\": {}, \"context\": {}, \"calls\": {}, \"us\": {:.2f}, \"bytes\": {:.0f}}}\n",
        name, batch_size, context, list.size(), kind_us, kind_bytes);
  }
  std::sort(lines.rbegin(), lines.rend());
  for (const auto& line : lines) fmt::print("{}\n", line.second);
  fmt::print("  sum of the operations alone {:.1f} us, {:.1f} MB\n", sum, bytes / 1e6);
  return b.backend.finish();
}

Result<> prefill(Bench& b, std::int32_t tokens, std::int32_t start) {
  FATHOM_ASSIGN(cache::Sequence s, sequence_of(b, start + tokens));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>((i * 7919 + 17) % static_cast<std::size_t>(b.config.vocab));
  const model::Chunk chunk{.ids = ids, .start = start, .slot = s.slot(), .pages = s.pages()};
  FATHOM_ASSIGN(const ops::Batch batch, b.memory.upload(std::span(&chunk, 1)));
  TapBackend tap(b.backend);
  b.step(tap, batch, 1);
  FATHOM_TRY(b.backend.finish());
  const std::vector<Tapped> all = tap.taken();
  const auto begin = Clock::now();
  b.step(b.backend, batch, 1);
  FATHOM_TRY(b.backend.finish());
  const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  fmt::print("prefill of {} tokens at {}: {:.1f} ms, {:.0f} tokens/s\n", tokens, start, us / 1e3, tokens * 1e6 / us);
  fmt::print(b.json, "{{\"prefill\": {{\"tokens\": {}, \"start\": {}, \"us\": {:.1f}}}}}\n", tokens, start, us);
  std::map<std::string, std::pair<double, int>> kinds;
  for (const Tapped& t : all) {
    const auto from = Clock::now();
    t.run(b.backend);
    FATHOM_TRY(b.backend.finish());
    auto& [total, calls] = kinds[t.name];
    total += std::chrono::duration<double, std::micro>(Clock::now() - from).count();
    ++calls;
  }
  std::vector<std::pair<double, std::string>> lines;
  for (const auto& [name, v] : kinds)
    lines.emplace_back(
        v.first, fmt::format("  {:36} {:4} x {:10.1f} us {:10.1f} us", name, v.second, v.first / v.second, v.first));
  std::sort(lines.rbegin(), lines.rend());
  for (const auto& line : lines) fmt::print("{}\n", line.second);
  return {};
}

struct Flags {
  std::string model = "v4-flash";
  std::int32_t layers = 0;
  std::int32_t experts = 160;
  std::int32_t device = 0;
  std::vector<std::string> decode = {"1:4096"};
  std::vector<std::string> prefill;
  bool table = false;
  std::string json = "/dev/null";
};

// "A:B" as two numbers.
std::pair<std::int32_t, std::int32_t> pair_of(const std::string& text) {
  const std::size_t colon = text.find(':');
  return {std::stoi(text.substr(0, colon)), std::stoi(text.substr(colon + 1))};
}

Result<> run(const Flags& f) {
  const auto geometry = checkpoint::published(f.model);
  if (!geometry) return fail(Code::kInvalid, "no published model is called {}", f.model);
  FATHOM_ASSIGN(checkpoint::ModelConfig config,
                checkpoint::shrunk(geometry->config, f.layers == 0 ? geometry->config.layers : f.layers, f.experts));
  config.draft = {};
  config.hash_layers = 0;
  FATHOM_ASSIGN(const auto backend, ops::open_cuda({.device = f.device}));
  FATHOM_ASSIGN(const double bandwidth, copy_bandwidth(*backend));
  fmt::print("{}: copy {:.0f} GB/s read and written\n", backend->name(), bandwidth / 1e9);
  const auto begin = Clock::now();
  FATHOM_ASSIGN(const auto synthetic, SyntheticDevice::make(config, *backend));
  fmt::print("{} layers, {} experts: {:.1f} GB of weights in {:.1f} s\n", config.layers, config.routed_experts,
             synthetic->bytes() / 1e9, std::chrono::duration<double>(Clock::now() - begin).count());

  std::int32_t most = 64;
  for (const std::string& p : f.prefill) most = std::max(most, pair_of(p).first);
  const auto main = ops::rope_frequencies(config.rope_theta, config.rope_dim, {});
  const auto compressed = ops::rope_frequencies(config.compress_rope_theta, config.rope_dim,
                                                {.factor = config.yarn.factor,
                                                 .beta_fast = config.yarn.beta_fast,
                                                 .beta_slow = config.yarn.beta_slow,
                                                 .original_positions = config.yarn.original_positions});
  const std::size_t n = main.size() * sizeof(float);
  FATHOM_ASSIGN(model::Activations activations, model::Activations::allocate(config, most, *backend));
  FATHOM_ASSIGN(ops::Buffer frequencies, backend->allocate(2 * n));
  backend->copy_in(frequencies.get(), main.data(), n);
  backend->copy_in(frequencies.get() + n, compressed.data(), n);
  FATHOM_ASSIGN(ops::Buffer logits, backend->allocate(sizeof(float) * 64 * static_cast<std::size_t>(config.vocab)));
  std::FILE* json = std::fopen(f.json.c_str(), "w");
  if (json == nullptr) return fail(Code::kNotFound, "{}: cannot be written", f.json);
  Bench b{.config = config,
          .backend = *backend,
          .weights = synthetic->weights(),
          .layout = model::plan_cache(config, ops::kOfficialBf16, 0),
          .activations = std::move(activations),
          .memory = model::StepMemory(*backend),
          .frequencies = std::move(frequencies),
          .logits = std::move(logits),
          .bandwidth = bandwidth,
          .json = json};
  for (const std::string& d : f.decode) {
    const auto [batch, context] = pair_of(d);
    FATHOM_TRY(decode(b, batch, context, f.table));
    std::fflush(stdout);
  }
  for (const std::string& p : f.prefill) {
    const auto [tokens, start] = pair_of(p);
    FATHOM_TRY(prefill(b, tokens, start));
    std::fflush(stdout);
  }
  std::fclose(json);
  return {};
}

}  // namespace
}  // namespace fathom::bench

int main(int argc, char** argv) {
  fathom::bench::Flags f;
  CLI::App app("Times decode steps, their operations and prefill on a CUDA device, on random weights");
  app.add_option("--model", f.model, "a published geometry");
  app.add_option("--layers", f.layers, "of the trunk; 0: all");
  app.add_option("--experts", f.experts, "routed experts; 0: all");
  app.add_option("--device", f.device);
  app.add_option("--decode", f.decode, "BATCH:CONTEXT ...")->delimiter(',');
  app.add_option("--prefill", f.prefill, "TOKENS:START ...")->delimiter(',');
  app.add_flag("--table", f.table, "also every kind of operation of each decode step alone");
  app.add_option("--json", f.json, "one JSON value a line");
  CLI11_PARSE(app, argc, argv);
  const auto done = fathom::bench::run(f);
  if (!done) std::fprintf(stderr, "device_bench: %s\n", done.error().what.c_str());
  return done ? 0 : 1;
}
