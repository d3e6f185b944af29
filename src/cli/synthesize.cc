// fathom synthesize: a checkpoint of random weights on disk, in any published geometry.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "checkpoint/synthetic.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/progress.h"
#include "cli/synthetic_source.h"
#include "cli/units.h"

namespace fathom::cli {
namespace {

struct Options {
  SyntheticSource source;
  std::string folder;
  int threads = 0;
  bool sparse = false;
};

int run(const Options& o) {
  const auto spec = synthetic_spec(o.source);
  if (!spec) return fail_with(spec.error());
  ThreadPool pool(o.threads > 0 ? o.threads : usable_cores());
  Result<> written;
  {
    ProgressBar bar("writing", ProgressUnit::kBytes);
    written = checkpoint::write_synthetic(*spec, o.folder, pool,
                                          o.sparse ? checkpoint::Payload::kHole : checkpoint::Payload::kRandom,
                                          [&](std::uint64_t done, std::uint64_t all) { bar.update(done, all); });
  }
  if (!written) return fail_with(written.error());
  Output out;
  out.line(fmt::format("{}: {} of {} weights, {} layers, {} experts", o.folder,
                       binary_bytes(checkpoint::synthetic_bytes(*spec)), o.sparse ? "unwritten" : "random",
                       spec->config.layers, spec->config.routed_experts));
  const auto finished = out.finish();
  return finished ? ExitCode::kOk : fail_with(finished.error());
}

}  // namespace

void add_synthesize(CLI::App& app, ExitCode& exit) {
  auto* command = app.add_subcommand("synthesize", "write a checkpoint of random weights");
  auto o = std::make_shared<Options>();
  command->add_option("NAME", o->source.name, "the published geometry, as for --synthetic elsewhere")->required();
  command->add_option("FOLDER", o->folder, "where to write; made if missing, must be empty")->required();
  add_synthetic_shape(*command, o->source);
  command->add_option("--threads", o->threads, "threads (default: all cores)")->check(CLI::Range(1, 1024));
  command->add_flag("--sparse", o->sparse, "headers only: files of full size that take no room, for inspect");
  command->footer(
      "Examples:\n"
      "  fathom synthesize v4-flash /models/flash-4 --layers 4\n"
      "  fathom synthesize v4-pro /tmp/pro --sparse && fathom inspect /tmp/pro");
  command->callback([o, &exit] { exit.value = run(*o); });
}

}  // namespace fathom::cli
