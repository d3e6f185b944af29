#include "cli/synthetic_source.h"

#include <CLI/CLI.hpp>

#include "checkpoint/geometry.h"
#include "cli/progress.h"

namespace fathom::cli {

CLI::Option* add_synthetic_source(CLI::App& command, SyntheticSource& source) {
  auto* name = command.add_option("--synthetic", source.name,
                                  fmt::format("random weights in a published geometry, in a model's place: {}",
                                              fmt::join(checkpoint::published_names(), ", ")));
  name->type_name("NAME");
  add_synthetic_shape(command, source);
  for (const char* option : {"--layers", "--experts", "--seed"}) command.get_option(option)->needs(name);
  return name;
}

void add_synthetic_shape(CLI::App& command, SyntheticSource& source) {
  command.add_option("--layers", source.layers, "only the first N layers")->check(CLI::Range(1, 1 << 20));
  command.add_option("--experts", source.experts, "only N routed experts a layer")->check(CLI::Range(1, 1 << 20));
  command.add_option("--seed", source.seed, "other weights for every seed")->capture_default_str();
}

Result<checkpoint::SyntheticSpec> synthetic_spec(const SyntheticSource& source) {
  const auto geometry = checkpoint::published(source.name);
  if (!geometry) {
    return fail(Code::kInvalid, "synthetic model {}: expected one of {}", source.name,
                fmt::join(checkpoint::published_names(), ", "));
  }
  FATHOM_ASSIGN(const checkpoint::ModelConfig config,
                checkpoint::shrunk(geometry->config, source.layers, source.experts));
  return checkpoint::SyntheticSpec{.config = config, .storage = geometry->storage, .seed = source.seed};
}

Result<checkpoint::Checkpoint> make_synthetic(const SyntheticSource& source, ThreadPool& pool, bool one_expert) {
  FATHOM_ASSIGN(checkpoint::SyntheticSpec spec, synthetic_spec(source));
  spec.one_expert = one_expert;
  ProgressBar bar("random weights", ProgressUnit::kBytes);
  return checkpoint::synthesize(spec, pool, [&](std::uint64_t done, std::uint64_t all) { bar.update(done, all); });
}

}  // namespace fathom::cli
