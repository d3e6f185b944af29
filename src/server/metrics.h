// Metrics: what has happened, as Prometheus reads it. http-api.md 10: the names that vLLM's dashboards know.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core.h"
#include "grammar/compiler.h"
#include "server/answer.h"

namespace fathom::server {

// Any number of threads. Not prometheus-cpp: most values are totals that the engine keeps itself, which that library's
// counters, that can only be incremented, cannot take over; what remains is this text.
class Metrics {
 public:
  Metrics();
  void answered(int status);
  void ended(const AnswerReport& report);
  std::string text(std::string_view model, const engine::CoreStats& engine,
                   const grammar::CompilerStats& grammars) const;

 private:
  struct Histogram {
    std::string name;
    std::vector<double> bounds;
    std::vector<std::uint64_t> counts;  // one more than bounds
    double sum = 0;
    void add(double value);
  };

  mutable std::mutex mutex_;  // guards all below
  std::map<int, std::uint64_t> answers_;
  std::map<std::string, std::uint64_t, std::less<>> ended_;
  std::vector<Histogram> histograms_;
};

}  // namespace fathom::server
