// --synthetic and what goes with it, on commands that can do without a checkpoint's files.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "checkpoint/synthetic.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace fathom::cli {

struct SyntheticSource {
  std::string name;         // empty: not asked for
  std::int32_t layers = 0;  // 0: all
  std::int32_t experts = 0;
  std::uint64_t seed = 1;
};

// Adds --synthetic NAME, --layers, --experts and --seed; returns the first, so that MODEL can exclude it.
CLI::Option* add_synthetic_source(CLI::App& command, SyntheticSource& source);
// Only the last three, for a command whose argument is the name.
void add_synthetic_shape(CLI::App& command, SyntheticSource& source);

// Errors: kInvalid (unknown name, with those that are known; more layers or experts than there are).
Result<checkpoint::SyntheticSpec> synthetic_spec(const SyntheticSource& source);

// The weights themselves, in memory, behind a progress bar. one_expert: as SyntheticSpec says. Errors: those of
// synthetic_spec() and synthesize().
Result<checkpoint::Checkpoint> make_synthetic(const SyntheticSource& source, ThreadPool& pool, bool one_expert);

}  // namespace fathom::cli
