#include "cli/compute.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "base/numa.h"
#include "cli/progress.h"
#include "ops/device_plugin.h"
#include "ops/instruction_set.h"

namespace fathom::cli {
namespace {

// N of "cuda:N"; 0 for "cuda" alone.
std::optional<std::int32_t> cuda_device(std::string_view name) {
  if (name == "cuda") return 0;
  if (name.substr(0, 5) != "cuda:") return std::nullopt;
  name.remove_prefix(5);
  std::int32_t device = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), device);
  if (error != std::errc() || end != name.data() + name.size() || device < 0) return std::nullopt;
  return device;
}

std::string check_device(const std::string& name) {
  if (name == "auto" || name == "cpu" || cuda_device(name)) return {};
  return fmt::format("\"{}\" is no device: auto, cpu, cuda or cuda:N", name);
}

// The first GPU, or, with a line that says why, nothing.
std::unique_ptr<ops::Backend> try_cuda(const ops::LeafSet& off) {
  auto backend = ops::open_cuda({.off = off});
  if (backend) return std::move(*backend);
  fmt::print(stderr, "computing on the CPU: {}\n", backend.error().what);
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<ops::Backend>> make_backend(const ComputeOptions& o) {
  if (!o.instruction_set.empty()) FATHOM_TRY(ops::limit_instruction_set(o.instruction_set));
  FATHOM_ASSIGN(const ops::LeafSet off, ops::leaves_named(o.kernels_off));
  if (o.backend == "ref") return ops::make_ref_backend();
  if (o.backend.empty()) {
    if (const auto device = cuda_device(o.device)) return ops::open_cuda({.device = *device, .off = off});
    if (o.device == "auto") {
      if (auto backend = try_cuda(off)) return backend;
    }
  }
  interleave_memory(usable_processors());  // weights are files mapped into memory: read in from here on
  return ops::make_cpu_backend({.threads = o.threads});
}

void add_compute_options(CLI::App& command, ComputeOptions& o) {
  command
      .add_option("--device", o.device,
                  "what computes: cpu, cuda, cuda:N (the Nth GPU), or auto: a GPU if there is one")
      ->envname("FATHOM_DEVICE")
      ->check(CLI::Validator(check_device, "DEVICE"))
      ->capture_default_str()
      ->group("Compute");
  command.add_option("--backend", o.backend, "ref (the plain reference, slow) or cpu; overrides --device")
      ->check(CLI::IsMember({"ref", "cpu"}))
      ->group("Compute");
  command
      .add_option("--numerics", o.numerics,
                  "float, official or official-bf16 (default: official, on a GPU official-bf16)")
      ->check(CLI::IsMember({"float", "official", "official-bf16"}))
      ->group("Compute");
  command
      .add_option(
          "--disable-kernel", o.kernels_off,
          "on a GPU, use the portable kernels in place of this one, to find out which is wrong; may be repeated "
          "(fathom inspect --kernels lists them; all: every one)")
      ->envname("FATHOM_DISABLE_KERNELS")
      ->delimiter(',')
      ->type_name("NAME")
      ->group("Compute");
  command.add_option("--threads", o.threads, "threads (default: the cores this process may use)")
      ->check(CLI::Range(1, 1024))
      ->group("Compute");
  command.add_option("--instruction-set", o.instruction_set, "on a CPU, use no wider one than this")
      ->envname("FATHOM_INSTRUCTION_SET")
      ->check(CLI::IsMember(ops::instruction_sets()))
      ->group("Compute");
}

Result<LoadedModel> load_model(const std::filesystem::path& folder, const ComputeOptions& compute,
                               model::ModelOptions options) {
  FATHOM_ASSIGN(auto checkpoint, checkpoint::Checkpoint::open(folder));
  return load_model(std::move(checkpoint), compute, options);
}

Result<LoadedModel> load_model(checkpoint::Checkpoint checkpoint, const ComputeOptions& compute,
                               model::ModelOptions options) {
  FATHOM_ASSIGN(auto backend, make_backend(compute));
  return load_model(std::move(checkpoint), std::move(backend), compute, options);
}

Result<LoadedModel> load_model(checkpoint::Checkpoint checkpoint, std::unique_ptr<ops::Backend> backend,
                               const ComputeOptions& compute, model::ModelOptions options) {
  options.numerics = backend->on_host() ? ops::kOfficial : ops::kOfficialBf16;
  if (!compute.numerics.empty()) {
    const auto numerics = ops::numerics_by_name(compute.numerics);
    if (!numerics) return fail(Code::kInvalid, "--numerics {}: float, official or official-bf16", compute.numerics);
    options.numerics = *numerics;
  }
  LoadedModel m{.checkpoint = std::move(checkpoint), .backend = std::move(backend), .model = nullptr};
  ProgressBar bar("loading", ProgressUnit::kBytes);
  FATHOM_ASSIGN(m.model, model::Model::load(m.checkpoint, *m.backend, options,
                                            [&bar](std::uint64_t done, std::uint64_t all) { bar.update(done, all); }));
  // Loading may take minutes; what a device holds now is what was checked only if nobody wrote to the files meanwhile.
  FATHOM_TRY(m.checkpoint.check_unchanged());
  return m;
}

}  // namespace fathom::cli
