// A progress bar on standard error, where that is a terminal; elsewhere nothing is printed.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fathom::cli {

enum class ProgressUnit : std::uint8_t { kCount, kBytes };

// One thread. The line is gone when the bar is.
class ProgressBar {
 public:
  ProgressBar(std::string what, ProgressUnit unit);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();

  // Draws after the first moments, then at most ten times a second.
  void update(std::uint64_t done, std::uint64_t all);

 private:
  std::string what_;
  ProgressUnit unit_;
  bool shown_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace fathom::cli
