// TrialProcess: a process beside this one that compiles rules first. What makes a grammar take minutes or gigabytes
// cannot be seen by looking at it, and the library cannot be told to stop; a process can. Each trial is a fork with
// limits of its own, so what passes is known to take little here too.
#pragma once

#include <cstddef>
#include <memory>

#include "base/result.h"
#include "grammar/rules.h"
#include "text/chat_format.h"

namespace fathom::grammar {

struct TrialLimits {
  int cpu_seconds = 10;
  std::size_t more_bytes = std::size_t{2} << 30U;  // of address space; none under sanitizers, which take it all
};

class TrialProcess {
 public:
  // Forks this process: to be called before it makes any thread. The format outlives it. Error: kUnavailable.
  static Result<std::unique_ptr<TrialProcess>> start(const text::ChatFormat& format, TrialLimits limits = {});
  TrialProcess(const TrialProcess&) = delete;
  TrialProcess& operator=(const TrialProcess&) = delete;
  ~TrialProcess();  // ends the process

  // One at a time. Errors: those of Compiler::compile; kInvalid where it takes longer, or more memory, than it may;
  // kUnavailable where the process is gone, or interrupted.
  Result<> run(const Rules& rules);
  // From any thread: run() returns soon, now and from now on.
  void interrupt();

 private:
  TrialProcess(int pid, int socket) : pid_(pid), socket_(socket) {}
  const int pid_;
  const int socket_;
};

}  // namespace fathom::grammar
