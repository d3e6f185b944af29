// fathom: the program. Lists the subcommands; everything else is in their files.
#include <CLI/CLI.hpp>

#include "base/mapping_guard.h"
#include "cli/commands.h"
#include "cli/common.h"

namespace {

// One line of ours in place of the library's two.
std::string usage_error(const CLI::App* app, const CLI::Error& error) {
  return "fathom: " + std::string(error.what()) + " (see " + app->get_name() + " --help)\n";
}

}  // namespace

int main(int argc, char** argv) {
  using fathom::cli::ExitCode;
  fathom::install_mapping_guard();
  CLI::App app("Fathom serves DeepSeek-V4 models.", "fathom");
  app.set_version_flag("--version", "fathom " FATHOM_VERSION);
  app.require_subcommand(1);
  app.failure_message(usage_error);
  ExitCode exit;
  fathom::cli::add_run(app, exit);
  fathom::cli::add_bench(app, exit);
  fathom::cli::add_logits(app, exit);
  fathom::cli::add_eval(app, exit);
  fathom::cli::add_inspect(app, exit);
  fathom::cli::add_serve(app, exit);
  fathom::cli::add_synthesize(app, exit);
  fathom::cli::add_tokenize(app, exit);
  fathom::cli::add_detokenize(app, exit);
  fathom::cli::add_parse(app, exit);
  fathom::cli::add_render(app, exit);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    // Help and version are "errors" with code 0 to the library.
    return app.exit(e) == 0 ? ExitCode::kOk : ExitCode::kUsage;
  }
  return exit.value;
}
