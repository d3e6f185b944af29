#include "cli/compute.h"

#include <CLI/CLI.hpp>
#include <string>

namespace fathom::cli {
namespace {

Result<std::unique_ptr<ops::Backend>> make_backend(const ComputeOptions& o) {
  std::string name = o.backend.empty() ? o.device : o.backend;
  if (name == "auto") name = "cpu";
  if (name == "ref") return ops::make_ref_backend();
  if (name == "cpu") return ops::make_cpu_backend({.threads = o.threads});
  return fail(Code::kInvalid, "--device {}: this build has the devices auto and cpu", name);
}

}  // namespace

void add_compute_options(CLI::App& command, ComputeOptions& o) {
  command.add_option("--device", o.device, "what computes: auto, cpu")->capture_default_str()->group("Compute");
  command.add_option("--backend", o.backend, "ref (the plain reference, slow) or cpu; overrides --device")
      ->check(CLI::IsMember({"ref", "cpu"}))
      ->group("Compute");
  command.add_option("--numerics", o.numerics, "float, official or official-bf16")
      ->check(CLI::IsMember({"float", "official", "official-bf16"}))
      ->capture_default_str()
      ->group("Compute");
  command.add_option("--threads", o.threads, "threads (default: the cores this process may use)")
      ->check(CLI::Range(1, 1024))
      ->group("Compute");
}

Result<LoadedModel> load_model(const std::filesystem::path& folder, const ComputeOptions& compute,
                               model::ModelOptions options) {
  FATHOM_ASSIGN(auto checkpoint, checkpoint::Checkpoint::open(folder));
  return load_model(std::move(checkpoint), compute, options);
}

Result<LoadedModel> load_model(checkpoint::Checkpoint checkpoint, const ComputeOptions& compute,
                               model::ModelOptions options) {
  const auto numerics = ops::numerics_by_name(compute.numerics);
  if (!numerics) return fail(Code::kInvalid, "--numerics {}: float, official or official-bf16", compute.numerics);
  options.numerics = *numerics;
  FATHOM_ASSIGN(auto backend, make_backend(compute));
  LoadedModel m{.checkpoint = std::move(checkpoint), .backend = std::move(backend), .model = nullptr};
  FATHOM_ASSIGN(m.model, model::Model::load(m.checkpoint, *m.backend, options));
  return m;
}

}  // namespace fathom::cli
