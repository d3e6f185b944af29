#include "text/pretokenizer.h"

#include "text/char_class.h"

namespace fathom::text {
namespace {

bool ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_word(CharClass c) { return c == kLetter || c == kMark; }
bool is_symbol(CharClass c) { return c == kPunctuation || c == kSymbol; }
bool is_space(CharClass c) { return c == kSpace || c == kLineBreak; }

// Stages one and two cut around numbers and around CJK runs; the rules of stage three, which also apply inside such a
// run, see nothing beyond those cuts.
class Scanner {
 public:
  Scanner(const CharClassTable& classes, std::string_view text) : classes_(classes), text_(text) {}

  std::size_t piece_end(std::size_t begin) {
    const auto first = classes_.at(text_, begin);
    const std::size_t next = begin + first.length;
    cjk_ = first.cjk;
    switch (first.cls) {
      case kNumber: return numbers(next);
      case kLetter:
      case kMark: return run(next, is_word);
      case kPunctuation:
      case kSymbol:
        if (first.length == 1 && next < text_.size() && ascii_letter(text_[next])) return ascii_letters(next);
        return symbols(begin);
      case kSpace:
      case kOther:
        if (const CharClass c = class_at(next); is_word(c)) return run(next, is_word);
        else if (text_[begin] == ' ' && is_symbol(c)) return symbols(next);
        return first.cls == kSpace ? white_space(begin) : gap(next);
      case kLineBreak: return white_space(begin);
      case kNothing: break;
    }
    return next;
  }

 private:
  CharClass class_at(std::size_t i) const {
    if (i == text_.size()) return kNothing;
    const auto c = classes_.at(text_, i);
    return c.cjk == cjk_ && c.cls != kNumber ? c.cls : kNothing;
  }

  template <class Belongs>
  std::size_t run(std::size_t i, Belongs belongs) const {
    while (i < text_.size()) {
      const auto c = classes_.at(text_, i);
      if (!belongs(c.cls) || c.cjk != cjk_) break;
      i += c.length;
    }
    return i;
  }

  // Runs of numbers are cut into threes from the left; one has been taken.
  std::size_t numbers(std::size_t i) const {
    for (int taken = 1; taken < 3 && i < text_.size(); ++taken) {
      const auto c = classes_.at(text_, i);
      if (c.cls != kNumber) break;
      i += c.length;
    }
    return i;
  }

  std::size_t ascii_letters(std::size_t i) const {
    while (i < text_.size() && ascii_letter(text_[i])) ++i;
    return i;
  }

  std::size_t symbols(std::size_t i) const {
    i = run(i, is_symbol);
    while (!cjk_ && i < text_.size() && (text_[i] == '\r' || text_[i] == '\n')) ++i;
    return i;
  }

  // Rules d to f. A run with line breaks is taken through the last one; a run at the end of its stage whole; else the
  // last character is left for the word or symbol behind it, unless it is the only one.
  std::size_t white_space(std::size_t begin) const {
    std::size_t after_break = 0;
    std::size_t last = begin;
    std::size_t i = begin;
    while (i < text_.size()) {
      const auto c = classes_.at(text_, i);
      if (!is_space(c.cls)) break;
      last = i;
      i += c.length;
      if (c.cls == kLineBreak) after_break = i;
    }
    if (after_break != 0) return after_break;
    return class_at(i) == kNothing || last == begin ? i : last;
  }

  // Characters that no rule takes: up to the next one that some rule does.
  std::size_t gap(std::size_t i) const {
    while (i < text_.size()) {
      const auto c = classes_.at(text_, i);
      if (c.cls != kOther || c.cjk != cjk_ || is_word(class_at(i + c.length))) break;
      i += c.length;
    }
    return i;
  }

  const CharClassTable& classes_;
  std::string_view text_;
  bool cjk_ = false;  // of the piece being measured
};

}  // namespace

PreTokenizer::PreTokenizer() : classes_(&CharClassTable::get()) {}

std::size_t PreTokenizer::piece_end(std::string_view text, std::size_t begin) const {
  return Scanner(*classes_, text).piece_end(begin);
}

}  // namespace fathom::text
