#include "cli/line_editor.h"

#include <histedit.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <system_error>
#include <utility>

#include "cli/interrupt.h"

namespace fathom::cli {
namespace {

constexpr int kHistoryLines = 1000;

}  // namespace

struct LineEditor::Terminal {
  explicit Terminal(std::filesystem::path history_path) : history_file(std::move(history_path)) {
    std::setlocale(LC_CTYPE, "");  // so that the editor counts characters, not bytes
    edit = el_init("fathom", stdin, stdout, stderr);
    history = history_init();
    HistEvent event;
    ::history(history, &event, H_SETSIZE, kHistoryLines);
    ::history(history, &event, H_SETUNIQUE, 1);
    el_set(edit, EL_CLIENTDATA, this);
    el_set(edit, EL_PROMPT, &Terminal::prompt_of);
    el_set(edit, EL_EDITOR, "emacs");
    el_set(edit, EL_HIST, ::history, history);
    el_set(edit, EL_SIGNAL, 1);
    el_source(edit, nullptr);  // ~/.editrc
    if (history_file.empty()) return;
    std::error_code ignored;  // a history that cannot be kept is no reason to stop
    std::filesystem::create_directories(history_file.parent_path(), ignored);
    ::history(history, &event, H_LOAD, history_file.c_str());
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    HistEvent event;
    if (!history_file.empty()) {
      ::history(history, &event, H_SAVE, history_file.c_str());
      make_private(history_file);
    }
    history_end(history);
    el_end(edit);
  }

  // What a person typed may be private: readable by them alone.
  static void make_private(const std::filesystem::path& path) {
    std::error_code ignored;
    std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write,
                                 ignored);
  }

  static char* prompt_of(EditLine* e) {
    Terminal* self = nullptr;
    el_get(e, EL_CLIENTDATA, &self);
    return self->prompt.data();
  }

  std::filesystem::path history_file;
  std::string prompt;
  EditLine* edit = nullptr;
  History* history = nullptr;
};

LineEditor::LineEditor(std::filesystem::path history) {
  if (::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0)
    terminal_ = std::make_unique<Terminal>(std::move(history));
}

LineEditor::~LineEditor() = default;

LineEditor::Event LineEditor::read(const std::string& prompt, std::string& line) {
  line.clear();
  std::string part;
  const std::string* shown = &prompt;
  const std::string more = "… ";
  for (;;) {
    const Event e = read_one(*shown, part);
    if (e != Event::kLine) return e == Event::kEnd && !line.empty() ? Event::kLine : e;
    const bool goes_on = !part.empty() && part.back() == '\\';
    if (goes_on) part.back() = '\n';
    line += part;
    if (!goes_on) return Event::kLine;
    shown = &more;
  }
}

LineEditor::Event LineEditor::read_one(const std::string& prompt, std::string& line) {
  if (terminal_ == nullptr) {
    if (!std::getline(std::cin, line)) return Event::kEnd;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return Event::kLine;
  }
  terminal_->prompt = prompt;
  int n = 0;
  const char* text = el_gets(terminal_->edit, &n);
  if (text == nullptr || n <= 0) {
    if (interrupted()) {
      clear_interrupt();
      std::fputs("\n", stdout);
      return Event::kInterrupted;
    }
    return Event::kEnd;
  }
  line.assign(text, static_cast<std::size_t>(n));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  if (!line.empty()) {
    HistEvent event;
    ::history(terminal_->history, &event, H_ENTER, line.c_str());
  }
  return Event::kLine;
}

std::optional<std::filesystem::path> default_history_file() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0') {
    return std::filesystem::path(state) / "fathom" / "history";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    return std::filesystem::path(home) / ".local" / "state" / "fathom" / "history";
  }
  return std::nullopt;
}

}  // namespace fathom::cli
