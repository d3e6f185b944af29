// The options of a command from a file: `name = value` lines, named as the flags without their dashes, TOML's way to
// write strings, numbers, true and false. Comments begin with #. One table may be named, that of the command.
#pragma once

#include <string>

#include "base/result.h"

namespace CLI {
class App;
}

namespace fathom::cli {

// Adds --config and --print-config, which are no keys of the file themselves.
struct ConfigFlags {
  std::string path;
  bool print = false;
};
void add_config_flags(CLI::App& command, ConfigFlags& flags);

// Gives every option of `command`, which has been parsed, that was not on the command line its value from the file.
// Errors: kNotFound; kInvalid, naming file, line and key.
Result<> read_config(CLI::App& command, const std::string& path);

// All options as such a file: what was given or is the default; what has no fixed default is a comment.
std::string print_config(const CLI::App& command);

}  // namespace fathom::cli
