// Internal to this room: a program is the library's compiled grammar.
#pragma once

#include <time.h>

#include <xgrammar/xgrammar.h>

#include <utility>

#include "grammar/compiler.h"

namespace fathom::grammar {

class Program {
 public:
  Program(xgrammar::CompiledGrammar grammar, std::int32_t vocab, std::int32_t end)
      : grammar_(std::move(grammar)), vocab_(vocab), end_(end) {}
  const xgrammar::CompiledGrammar& grammar() const { return grammar_; }
  std::int32_t vocab() const { return vocab_; }
  std::int32_t end() const { return end_; }  // the token that may follow where the rules are satisfied

 private:
  xgrammar::CompiledGrammar grammar_;
  std::int32_t vocab_;
  std::int32_t end_;
};

// A matcher with its mask. Throws what the library throws.
class Matcher {
 public:
  explicit Matcher(const Program& program)
      : matcher_(program.grammar()),
        words_((static_cast<std::size_t>(program.vocab()) + 63) / 64),
        width_(program.vocab()) {
    width_ = (width_ + 31) / 32;
  }

  // Bit id%64 of word id/64. Bits at and above the vocabulary are not meant.
  std::span<const std::uint64_t> fill() {
    std::int64_t shape[1] = {width_};
    DLTensor mask = {};
    mask.data = words_.data();
    mask.device = {kDLCPU, 0};
    mask.ndim = 1;
    mask.dtype = xgrammar::GetBitmaskDLType();
    mask.shape = shape;
    matcher_.FillNextTokenBitmask(&mask);
    return words_;
  }
  bool accept(std::int32_t id) { return matcher_.AcceptToken(id); }
  bool accept_text(const std::string& text) { return matcher_.AcceptString(text); }
  void take_back() { matcher_.Rollback(1); }
  bool ended() const { return matcher_.IsTerminated(); }

 private:
  xgrammar::GrammarMatcher matcher_;
  std::vector<std::uint64_t> words_;
  std::int64_t width_;
};

// Of this thread, so that a busy machine is not taken for a slow grammar.
inline double cpu_ms() {
  timespec t = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

}  // namespace fathom::grammar
