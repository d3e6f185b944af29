#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace fathom::text {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    Stop& s = stops_.emplace_back();
    s.text = std::move(text);
    s.border.assign(s.text.size(), 0);
    for (std::size_t i = 1, n = 0; i < s.text.size(); ++i) {
      while (n > 0 && s.text[i] != s.text[n]) n = s.border[n - 1];
      if (s.text[i] == s.text[n]) ++n;
      s.border[i] = n;
    }
  }
}

std::optional<std::size_t> StopMatcher::push(std::string_view text, std::string& out) {
  if (stops_.empty()) {
    out += text;
    return std::nullopt;
  }
  held_ += text;
  std::size_t held = 0;  // bytes at the end of what has been read that may begin a match
  for (std::size_t i = held_.size() - text.size(); i < held_.size(); ++i) {
    held = 0;
    std::optional<std::size_t> best;
    for (std::size_t k = 0; k < stops_.size(); ++k) {
      Stop& s = stops_[k];
      while (s.matched > 0 && s.text[s.matched] != held_[i]) s.matched = s.border[s.matched - 1];
      if (s.text[s.matched] == held_[i]) ++s.matched;
      if (s.matched == s.text.size()) {
        if (!best || s.text.size() > stops_[*best].text.size()) best = k;
        s.matched = s.border[s.matched - 1];
      }
      held = std::max(held, s.matched);
    }
    if (best) {
      out.append(held_, 0, i + 1 - stops_[*best].text.size());
      held_.clear();
      return best;
    }
  }
  out.append(held_, 0, held_.size() - held);
  held_.erase(0, held_.size() - held);
  return std::nullopt;
}

void StopMatcher::release(std::string& out) {
  out += held_;
  held_.clear();
  for (Stop& s : stops_) s.matched = 0;
}

}  // namespace fathom::text
