// The subcommands of `fathom`. Each lives in a file of its own; main.cc lists them. No other room reads flags or the
// environment.
#pragma once

namespace CLI {
class App;
}

namespace fathom::cli {

// What the process will exit with; the chosen subcommand's callback sets it.
struct ExitCode {
  static constexpr int kOk = 0;
  static constexpr int kFailed = 1;  // the work failed: a message is on standard error
  static constexpr int kUsage = 2;   // the command line makes no sense
  int value = kOk;
};

// Each adds one subcommand to `app` with a callback that runs it and sets `exit`, which must outlive the parse.
void add_run(CLI::App& app, ExitCode& exit);
void add_bench(CLI::App& app, ExitCode& exit);
void add_eval(CLI::App& app, ExitCode& exit);
void add_inspect(CLI::App& app, ExitCode& exit);
void add_logits(CLI::App& app, ExitCode& exit);
void add_serve(CLI::App& app, ExitCode& exit);
void add_synthesize(CLI::App& app, ExitCode& exit);
void add_tokenize(CLI::App& app, ExitCode& exit);
void add_detokenize(CLI::App& app, ExitCode& exit);
void add_parse(CLI::App& app, ExitCode& exit);
void add_render(CLI::App& app, ExitCode& exit);

}  // namespace fathom::cli
