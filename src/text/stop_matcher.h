// StopMatcher: finds the client's stop strings in text that arrives in pieces. prompt-encoding.md 4.5.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fathom::text {

// The string that is complete first wins; of two complete at one character the longer. Linear in the text times the
// number of stop strings. Sends text as soon as it cannot be the beginning of a match.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  // Appends to `out` what can be sent. On a match: everything before it, and the index of the stop string; the rest of
  // `text` is not looked at.
  std::optional<std::size_t> push(std::string_view text, std::string& out);
  // Gives back what is held and forgets it: no match goes across.
  void release(std::string& out);

  const std::string& stop(std::size_t i) const { return stops_[i].text; }

 private:
  struct Stop {
    std::string text;
    std::vector<std::size_t> border;  // [n]: longest proper prefix of the first n + 1 bytes that is also their suffix
    std::size_t matched = 0;          // bytes of `text` that end here
  };
  std::vector<Stop> stops_;
  std::string held_;
};

}  // namespace fathom::text
