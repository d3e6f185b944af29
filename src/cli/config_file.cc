#include "cli/config_file.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <system_error>
#include <vector>

#include "cli/common.h"

namespace fathom::cli {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 20U;

std::string trimmed(const std::string& s) {
  const auto from = s.find_first_not_of(" \t\r");
  return from == std::string::npos ? std::string() : s.substr(from, s.find_last_not_of(" \t\r") + 1 - from);
}

bool is_key(const CLI::Option& o) { return o.get_configurable() && (!o.get_lnames().empty() || o.get_positional()); }

std::string key_of(const CLI::Option& o) { return o.get_lnames().empty() ? o.get_name() : o.get_lnames().front(); }

CLI::Option* option_of(CLI::App& command, const std::string& key) {
  for (CLI::Option* o : command.get_options()) {
    if (is_key(*o) && key_of(*o) == key) return o;
  }
  return nullptr;
}

// The key that `wrong` may have meant: one that differs in hyphens and underscores only, or begins as it does.
std::string meant(CLI::App& command, std::string wrong) {
  std::replace(wrong.begin(), wrong.end(), '_', '-');
  for (CLI::Option* o : command.get_options()) {
    const std::string key = is_key(*o) ? key_of(*o) : std::string();
    if (!key.empty() && (key == wrong || (wrong.size() > 2 && key.rfind(wrong, 0) == 0)))
      return fmt::format("; did you mean {}?", key);
  }
  return "; see fathom serve --help";
}

class Reader {
 public:
  Reader(CLI::App& command, const std::string& path) : command_(command), path_(path) {}

  Result<> line(int number, const std::string& text) {
    number_ = number;
    if (text.empty() || text[0] == '#') return {};
    if (text[0] == '[') {
      if (text == "[" + command_.get_name() + "]" && seen_.empty()) return {};
      return wrong(fmt::format("table {}: only [{}], before all keys, is known", text, command_.get_name()));
    }
    if (text.find('=') == std::string::npos)
      return wrong(fmt::format("expected KEY = VALUE, found {}", text.substr(0, 60)));
    std::istringstream one(text);
    std::vector<CLI::ConfigItem> items;
    try {
      items = CLI::ConfigTOML().from_config(one);
    } catch (const CLI::Error& e) {
      return wrong(e.what());
    }
    if (items.size() != 1 || !items[0].parents.empty() || items[0].inputs.empty())
      return wrong(fmt::format("expected KEY = VALUE, found {}", text.substr(0, 60)));
    return set(items[0]);
  }

 private:
  Result<> set(const CLI::ConfigItem& item) {
    CLI::Option* option = option_of(command_, item.name);
    if (option == nullptr) return wrong(fmt::format("unknown key {}{}", item.name, meant(command_, item.name)));
    if (const auto [first, fresh] = seen_.emplace(item.name, number_); !fresh)
      return wrong(fmt::format("{} was given in line {} already", item.name, first->second));
    if (option->count() > 0) return {};  // the command line wins
    try {
      if (option->get_expected_min() == 0) {
        const std::string value = CLI::detail::to_lower(item.inputs[0]);
        if (item.inputs.size() != 1 || (value != "true" && value != "false"))
          return wrong(fmt::format("{}: expected true or false, found {}", item.name, item.inputs[0]));
        if (value == "true") option->add_result(option->get_flag_value(item.name, "true"));
      } else {
        option->add_result(item.inputs);
      }
      if (option->count() > 0) option->run_callback();
    } catch (const CLI::Error& e) {
      return wrong(fmt::format("{}: {}", item.name, e.what()));
    }
    return {};
  }

  Result<> wrong(const std::string& what) const { return fail(Code::kInvalid, "{}:{}: {}", path_, number_, what); }

  CLI::App& command_;
  const std::string& path_;
  int number_ = 0;
  std::map<std::string, int> seen_;  // key to line
};

std::string value_of(const std::string& text, const CLI::Option& o) {
  if (o.get_expected_min() == 0) return text.empty() || text == "false" ? "false" : "true";
  const std::string type = o.get_type_name();
  const bool number = type.rfind("INT", 0) == 0 || type.rfind("UINT", 0) == 0 || type.rfind("FLOAT", 0) == 0;
  return number ? text : json_string(text);
}

}  // namespace

void add_config_flags(CLI::App& command, ConfigFlags& flags) {
  command.add_option("--config", flags.path, "file with these options, as `port = 8000`; flags given here win")
      ->type_name("FILE")
      ->configurable(false);
  command.add_flag("--print-config", flags.print, "print the options as they are in effect, as such a file, and end")
      ->configurable(false);
  command.get_help_ptr()->configurable(false);
}

Result<> read_config(CLI::App& command, const std::string& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) return fail(Code::kNotFound, "--config {}: {}", path, error.message());
  if (bytes > kMaxBytes) return fail(Code::kInvalid, "{}: larger than {} bytes", path, kMaxBytes);
  FATHOM_ASSIGN(const std::string text, read_input(path));
  std::istringstream lines(text);
  Reader reader(command, path);
  int number = 0;
  for (std::string line; std::getline(lines, line);) FATHOM_TRY(reader.line(++number, trimmed(line)));
  return {};
}

std::string print_config(const CLI::App& command) {
  std::string out = fmt::format("# fathom {}\n", command.get_name());
  for (const CLI::Option* o : command.get_options()) {
    if (!is_key(*o)) continue;
    out += fmt::format("\n# {}\n", o->get_description());
    const bool flag = o->get_expected_min() == 0;
    const std::string value = o->count() > 0 ? o->results().front() : o->get_default_str();
    if (value.empty() && !flag) out += fmt::format("# {} =\n", key_of(*o));
    else out += fmt::format("{} = {}\n", key_of(*o), value_of(value, *o));
  }
  return out;
}

}  // namespace fathom::cli
