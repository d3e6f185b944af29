// fathom bench --serve: the engine under made-up load, in this process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "cli/compute.h"
#include "engine/core.h"

namespace CLI {
class App;
}

namespace fathom::cli {

struct ServeBenchOptions {
  bool load = false;                      // Poisson arrivals at several rates
  std::vector<double> rates;              // of them, requests a second; empty: shares of what the machine can do
  std::vector<std::int32_t> concurrency;  // so many requests at once, always
  std::vector<std::int32_t> histories;    // second turns after so many tokens, with and without reuse, and a restart
  std::int32_t requests = 100;            // for each rate and each concurrency, at most
  double seconds = 9;                     // for which they are asked, at most; 0: until all are
  std::int32_t slots = 16;
  double cache_gib = 1;
  std::uint32_t seed = 1;
  std::int32_t drafts = engine::CoreOptions().max_drafts;

  bool asked() const { return load || !concurrency.empty() || !histories.empty(); }
};

void add_serve_bench(CLI::App& command, ServeBenchOptions& options);

struct ServeBench {
  const ServeBenchOptions& options;
  const ComputeOptions& compute;
  std::string model;                                           // its name
  std::function<Result<checkpoint::Checkpoint>()> checkpoint;  // opens it, each time anew
  std::string svg;                                             // file; empty: none
  bool json = false;
};
// Measures and prints.
Result<> run_serve_bench(const ServeBench& bench);

}  // namespace fathom::cli
