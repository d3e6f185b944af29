// What subcommands share: errors, input and output, finding the model.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/tokenizer.h"

namespace CLI {
class App;
}

namespace fathom::cli {

// "fathom: MESSAGE" on standard error, on one line.
void print_error(std::string_view message);
// Prints the error and returns ExitCode::kFailed.
int fail_with(const Error& error);

// The folder of a model: `named` if not empty, else $FATHOM_MODEL, else the model that comes with the source. Errors:
// kNotFound, saying where it looked.
Result<std::filesystem::path> model_folder(const std::string& named);

// [MODEL] or --tokenizer DIR, on commands that need no more of a model than its text files.
struct TextSource {
  std::string model;
  std::string tokenizer;
};
void add_text_source(CLI::App& command, TextSource& source);
Result<std::filesystem::path> text_folder(const TextSource& source);

// All of a file, or of standard input where `path` is empty or "-". Errors: kNotFound; kInvalid above 1 GiB.
Result<std::string> read_input(const std::string& path);

// Standard output, checked: a full disk is an error, not silence.
class Output {
 public:
  void write(std::string_view bytes);
  void line(std::string_view text);
  Result<> finish();

 private:
  bool failed_ = false;
};

// Calls `answer` with every line of the input (without its end) and prints what it returns; a line it cannot answer
// gives {"error": "..."} in its place, and the exit code says so at the end. Output is flushed line by line where
// standard input is a terminal or pipe, so that two programs can talk.
int answer_lines(const std::string& path, const std::function<Result<std::string>(std::string_view)>& answer);

// `text` as a JSON string with its quotes.
std::string json_string(std::string_view text);

}  // namespace fathom::cli
