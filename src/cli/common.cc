#include "cli/common.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "cli/commands.h"
#include "text/json_reader.h"

namespace fathom::cli {
namespace {

constexpr std::size_t kMaxInput = std::size_t{1} << 30;

struct Close {
  void operator()(std::FILE* f) const {
    if (f != stdin) std::fclose(f);
  }
};
using File = std::unique_ptr<std::FILE, Close>;

Result<File> open_input(const std::string& path) {
  if (path.empty() || path == "-") return File(stdin);
  File file(std::fopen(path.c_str(), "rb"));
  if (!file) return fail(Code::kNotFound, "{}: cannot open: {}", path, std::strerror(errno));
  return file;
}

// What getline(3) allocates and grows.
struct GetlineBuffer {
  GetlineBuffer() = default;
  GetlineBuffer(const GetlineBuffer&) = delete;
  GetlineBuffer& operator=(const GetlineBuffer&) = delete;
  ~GetlineBuffer() { std::free(data); }
  char* data = nullptr;
  std::size_t capacity = 0;
};

}  // namespace

void print_error(std::string_view message) {
  std::string line(message);
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  fmt::print(stderr, "fathom: {}\n", line);
}

int fail_with(const Error& error) {
  print_error(error.what);
  return ExitCode::kFailed;
}

Result<std::filesystem::path> model_folder(const std::string& named) {
  std::error_code ignored;
  if (!named.empty()) {
    if (std::filesystem::is_directory(named, ignored)) return std::filesystem::path(named);
    return fail(Code::kNotFound, "{}: no such model folder", named);
  }
  if (const char* env = std::getenv("FATHOM_MODEL"); env != nullptr && *env != '\0') {
    if (std::filesystem::is_directory(env, ignored)) return std::filesystem::path(env);
    return fail(Code::kNotFound, "{}: no such model folder (named by FATHOM_MODEL)", env);
  }
  if (std::filesystem::is_directory(FATHOM_DEFAULT_MODEL, ignored)) return std::filesystem::path(FATHOM_DEFAULT_MODEL);
  return fail(Code::kNotFound, "no model named, FATHOM_MODEL is not set, and the model of the source tree is not at {}",
              FATHOM_DEFAULT_MODEL);
}

void add_text_source(CLI::App& command, TextSource& source) {
  auto* model = command.add_option("MODEL", source.model, "model folder (default: $FATHOM_MODEL, else fathom-tiny)");
  command.add_option("--tokenizer", source.tokenizer, "a folder with just a tokenizer.json, in a model's place")
      ->type_name("DIR")
      ->excludes(model);
}

Result<std::filesystem::path> text_folder(const TextSource& source) {
  if (!source.tokenizer.empty()) return std::filesystem::path(source.tokenizer);
  return model_folder(source.model);
}

Result<std::string> read_input(const std::string& path) {
  FATHOM_ASSIGN(const File file, open_input(path));
  std::string text;
  std::size_t have = 0;
  for (;;) {
    text.resize(have + std::max<std::size_t>(have, 1U << 16));
    const std::size_t n = std::fread(text.data() + have, 1, text.size() - have, file.get());
    have += n;
    if (n == 0) break;
    if (have > kMaxInput) return fail(Code::kInvalid, "the input is larger than {} bytes", kMaxInput);
  }
  if (std::ferror(file.get()) != 0) return fail(Code::kNotFound, "cannot read the input: {}", std::strerror(errno));
  text.resize(have);
  return text;
}

void Output::write(std::string_view bytes) {
  failed_ = failed_ || std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size();
}

void Output::line(std::string_view text) {
  write(text);
  write("\n");
}

Result<> Output::finish() {
  failed_ = std::fflush(stdout) != 0 || failed_;
  if (failed_) return fail(Code::kExhausted, "cannot write to standard output: {}", std::strerror(errno));
  return {};
}

int answer_lines(const std::string& path, const std::function<Result<std::string>(std::string_view)>& answer) {
  auto file = open_input(path);
  if (!file) return fail_with(file.error());
  Output out;
  std::size_t n_lines = 0;
  std::size_t n_failed = 0;
  GetlineBuffer buffer;
  for (;;) {
    const ssize_t n = ::getline(&buffer.data, &buffer.capacity, file->get());
    if (n < 0) break;
    std::string_view line(buffer.data, static_cast<std::size_t>(n));
    if (line.ends_with('\n')) line.remove_suffix(1);
    ++n_lines;
    if (const auto result = answer(line)) {
      out.line(*result);
    } else {
      ++n_failed;
      out.line(fmt::format("{{\"error\": {}}}", json_string(result.error().what)));
    }
    if (file->get() == stdin) std::fflush(stdout);
  }
  if (const auto written = out.finish(); !written) return fail_with(written.error());
  if (n_failed == 0) return ExitCode::kOk;
  print_error(fmt::format("{} of {} lines could not be answered", n_failed, n_lines));
  return ExitCode::kFailed;
}

std::string json_string(std::string_view s) {
  std::string out = "\"";
  text::append_json_escaped(s, out);
  return out + "\"";
}

}  // namespace fathom::cli
