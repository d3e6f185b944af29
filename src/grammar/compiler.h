// Compiler: from Rules to a Program, which says token by token what may come next. What xgrammar does is known in this
// room only, and its exceptions end here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "grammar/rules.h"
#include "text/chat_format.h"

namespace fathom::grammar {

// Compiled rules. Immutable; shared by all answers under the same rules.
class Program;

class TrialProcess;

struct CompilerOptions {
  std::shared_ptr<TrialProcess> trial = {};           // tries out everything first; nullptr: nobody does
  std::size_t cache_bytes = std::size_t{128} << 20U;  // of programs, the least recently used going first
  std::size_t max_waiting = 64;                       // compilations in line; more are refused
  int max_wait_ms = 60'000;                           // in line; then they are refused too
};

struct CompilerStats {
  std::uint64_t hits = 0;
  std::uint64_t compiled = 0;
  std::uint64_t refused = 0;  // rules that would not compile
  std::size_t waiting = 0;    // in line
  std::size_t programs = 0;
  std::size_t bytes = 0;
};

// Any thread.
class Compiler {
 public:
  using Done = std::function<void(Result<std::shared_ptr<const Program>>)>;

  // vocab: of the model, at least the tokenizer's. The format outlives it. Cheap: the vocabulary is prepared when the
  // first program is asked for.
  Compiler(const text::ChatFormat& format, std::int32_t vocab, CompilerOptions options = {});
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;
  ~Compiler();  // stops
  // Ends the trial that runs, waits for a compilation that does; those in line, and all that come later, end with
  // kCancelled.
  void stop();

  // Compiles in the calling thread, unless it is remembered. Errors: kInvalid, what the rules ask for is no grammar, is
  // too large, or takes too long to follow.
  Result<std::shared_ptr<const Program>> compile(const Rules& rules);
  // The same in a thread of its own, one after another: `done` is called there; or here and now where the program is
  // remembered. Further errors: kExhausted, too many are in line.
  void compile_later(Rules rules, Done done);

  CompilerStats stats() const;
  std::int32_t vocab() const;
  const text::ChatFormat& format() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom::grammar
