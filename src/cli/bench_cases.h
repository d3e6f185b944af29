// What fathom bench times: prompts and decode steps of a loaded model, and the operations of a step one by one.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/inventory.h"
#include "checkpoint/plan.h"
#include "cli/tap_backend.h"
#include "model/model.h"

namespace fathom::cli {

// One kind of operation of a decode step: all calls of it in the step, run alone.
struct OperationRow {
  std::string name;
  std::int64_t calls = 0;
  std::uint64_t launches = 0;  // kernels, of all calls; 0 on a CPU
  double seconds = 0;          // of all calls
  double bytes = 0;            // that they have to move
  double flops = 0;            // of the products in them
};

struct BenchRow {
  std::string what;                        // "prefill", "decode"
  std::int32_t tokens = 0;                 // prefill: of the prompt; decode: sequences
  std::int32_t context = 0;                // decode
  std::int32_t last_step = 0;              // prefill: tokens of the step whose operations were timed
  bool fits = true;                        // false: there is no memory for it, and nothing was timed
  double seconds = 0;                      // of the prompt or of a step, the median
  double step_bytes = 0;                   // decode: read per step
  double flops = 0;                        // of a prompt's products; 0 on a device, which does not count them
  double full_seconds = 0;                 // the same with all layers, estimated; 0: nothing to estimate
  std::uint64_t launches = 0;              // decode: kernels of a step; 0 on a CPU
  std::vector<OperationRow> operations{};  // where asked for; slowest first

  double per_second() const { return tokens / seconds; }
};

class BenchCases {
 public:
  // `m` computes on `backend`. Both outlive the cases.
  BenchCases(model::Model& m, TapBackend& backend, checkpoint::Inventory inventory);

  // A prompt of made-up tokens, the median of three; with `operations` also every kind of operation of its last
  // step. Errors: those of the model.
  Result<BenchRow> prefill(std::int32_t tokens, bool operations);
  // `steps` steps of `sequences` sequences that hold `context` made-up tokens each; with `operations` also every kind
  // of operation of the last step. Errors: those of the model; no room for the sequences is none.
  Result<BenchRow> decode(std::int32_t sequences, std::int32_t context, std::int32_t steps, bool operations);

  // What a decode step of any model of this numerics reads.
  double step_bytes(const checkpoint::ModelConfig& c, const checkpoint::Inventory& inventory, std::int32_t sequences,
                    std::int32_t context) const;

 private:
  std::vector<std::int32_t> random_ids(std::int32_t n);
  Result<std::vector<OperationRow>> time_operations(const std::vector<Tapped>& all);

  model::Model& m_;
  TapBackend& backend_;
  checkpoint::Inventory inventory_;
  checkpoint::CacheFormat format_;
  std::mt19937 rng_{7};
  std::uint64_t next_key_ = 0;
};

// Bytes per second that memory of the device is read and written with when a large piece is copied. 0 where the device
// has no room for it.
double measure_copy_bandwidth(ops::Backend& backend);

}  // namespace fathom::cli
