#include "base/mapping_guard.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace fathom {
namespace {

// All of this runs inside a signal handler: plain system calls, no allocation, no library state.

// Reads "<hex>" at p up to `end`; stops at the first other character.
std::uintptr_t hex(const char*& p, const char* end) {
  std::uintptr_t v = 0;
  for (; p != end; ++p) {
    if (*p >= '0' && *p <= '9') v = v * 16 + static_cast<std::uintptr_t>(*p - '0');
    else if (*p >= 'a' && *p <= 'f') v = v * 16 + static_cast<std::uintptr_t>(*p - 'a' + 10);
    else break;
  }
  return v;
}

// The path of a line of /proc/self/maps ("from-to perms offset device inode   path") if the line covers `address` and
// has one, else nullptr. The line ends with a zero.
const char* path_if_covering(const char* line, std::size_t length, std::uintptr_t address) {
  const char* p = line;
  const char* end = line + length;
  const std::uintptr_t from = hex(p, end);
  if (p == end || *p++ != '-') return nullptr;
  const std::uintptr_t to = hex(p, end);
  if (address < from || address >= to) return nullptr;
  return std::strchr(p, '/');
}

void say(const char* text) {
  // Nothing is left to do if even this fails.
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text, std::strlen(text));
}

// Ends the process if a mapped file covers the address.
void name_the_file(std::uintptr_t address) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return;
  std::array<char, 8192> line{};
  std::size_t used = 0;
  char c = 0;
  while (::read(maps, &c, 1) == 1) {
    if (c != '\n') {
      if (used + 1 < line.size()) line[used++] = c;
      continue;
    }
    line[used] = 0;
    if (const char* path = path_if_covering(line.data(), used, address)) {
      say("fathom: ");
      say(path);
      say(": was cut short while it was in use; restore the file and start again\n");
      ::_exit(kMappingLostExit);
    }
    used = 0;
  }
  ::close(maps);
}

void on_sigbus(int signal, siginfo_t* info, void*) {
  name_the_file(reinterpret_cast<std::uintptr_t>(info->si_addr));
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(signal, &standard, nullptr);  // returning repeats the access, now fatally
}

}  // namespace

void install_mapping_guard() {
  struct sigaction action = {};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  FATHOM_CHECK(::sigaction(SIGBUS, &action, nullptr) == 0, "SIGBUS takes a handler");
}

}  // namespace fathom
