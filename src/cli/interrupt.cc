#include "cli/interrupt.h"

#include <unistd.h>
#include <csignal>

#include <atomic>

namespace fathom::cli {
namespace {

// A signal handler has no argument to reach anything else by.
std::atomic<bool> flag{false};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

void on_interrupt(int) {
  if (flag.exchange(true)) ::_exit(128 + SIGINT);
}

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no SA_RESTART: a person at a prompt is heard at once
  ::sigaction(SIGINT, &action, nullptr);
}

bool interrupted() { return flag.load(); }
void clear_interrupt() { flag.store(false); }

}  // namespace fathom::cli
