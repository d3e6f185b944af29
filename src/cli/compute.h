// The flags that say what computes and in which numerics, and the model they load. Shared by run, logits and eval.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cache/sequence.h"
#include "checkpoint/checkpoint.h"
#include "model/model.h"
#include "ops/backend.h"

namespace CLI {
class App;
}

namespace fathom::cli {

struct ComputeOptions {
  std::string device = "auto";  // "cpu", "cuda", "cuda:N"; auto: the first GPU where one can be used, else the CPU
  std::string backend;          // "" or "ref", "cpu": names what --device would choose
  std::string numerics;         // "": official on the CPU, official-bf16 on a GPU
  int threads = 0;              // 0: the cores this process may use
  std::string instruction_set;  // of a CPU, at most (ops/instruction_set.h); "": all that it has
  std::vector<std::string> kernels_off;  // of a GPU, by name (ops/kernel_table.h)
};
void add_compute_options(CLI::App& command, ComputeOptions& options);

// A model on a backend. Members are destroyed in the right order: model, backend, checkpoint.
struct LoadedModel {
  checkpoint::Checkpoint checkpoint;
  std::unique_ptr<ops::Backend> backend;
  std::unique_ptr<model::Model> model;
};

// Where `auto` meets a GPU backend that cannot be used, one line on stderr says why, and the CPU computes. Errors:
// kUnavailable, kInvalid.
Result<std::unique_ptr<ops::Backend>> make_backend(const ComputeOptions& compute);

// options.numerics of `model` is set from `compute`. Errors: those of opening and loading; kInvalid for a device,
// backend or combination that does not exist.
Result<LoadedModel> load_model(checkpoint::Checkpoint checkpoint, const ComputeOptions& compute,
                               model::ModelOptions model);
Result<LoadedModel> load_model(checkpoint::Checkpoint checkpoint, std::unique_ptr<ops::Backend> backend,
                               const ComputeOptions& compute, model::ModelOptions model);
Result<LoadedModel> load_model(const std::filesystem::path& folder, const ComputeOptions& compute,
                               model::ModelOptions model);

// Runs tokens at the end of a sequence, step by step.
struct FeedOptions {
  std::int32_t step = 0;                  // tokens of a step; 0: as many as the model takes
  model::Rows rows = model::Rows::kLast;  // kLast: of the last token alone
};

// `run(chunk, at)` runs the step whose first token is ids[at], and advances the sequence.
template <class Run>
Result<> in_steps(const model::Model& m, cache::Sequence& sequence, std::span<const std::int32_t> ids, FeedOptions o,
                  const Run& run) {
  const std::int32_t limit = o.rows == model::Rows::kAll
                                 ? std::min(m.options().max_step_tokens, m.options().max_logit_rows)
                                 : m.options().max_step_tokens;
  const auto step = static_cast<std::size_t>(o.step == 0 ? limit : std::min(o.step, limit));
  for (std::size_t at = 0; at < ids.size(); at += step) {
    const auto part = ids.subspan(at, std::min(step, ids.size() - at));
    const bool last = at + part.size() == ids.size();
    FATHOM_TRY(sequence.reserve(static_cast<std::int32_t>(part.size())));
    const model::Chunk chunk{.ids = part,
                             .start = sequence.length(),
                             .slot = sequence.slot(),
                             .pages = sequence.pages(),
                             .logits = o.rows == model::Rows::kLast && !last ? model::Rows::kNone : o.rows};
    FATHOM_TRY(run(chunk, at));
  }
  return {};
}

// Hands each step's logits to `each`, which gets the index of the step's first token and the logits asked for (host
// memory, [rows, V]).
template <class Each>
Result<> feed(model::Model& m, cache::Sequence& sequence, std::span<const std::int32_t> ids, FeedOptions o,
              const Each& each) {
  std::vector<float> host;
  return in_steps(m, sequence, ids, o, [&](const model::Chunk& chunk, std::size_t at) -> Result<> {
    FATHOM_ASSIGN(const Mat<const float> logits, m.forward(std::span(&chunk, 1)));
    sequence.advance(chunk.tokens());
    host.resize(static_cast<std::size_t>(logits.rows * logits.cols));
    m.backend().copy_out(host.data(), reinterpret_cast<const std::byte*>(logits.data), host.size() * sizeof(float));
    return each(static_cast<std::int64_t>(at), Mat<const float>{host.data(), logits.rows, logits.cols, logits.cols});
  });
}

}  // namespace fathom::cli
