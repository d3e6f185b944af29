#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "cli/units.h"

namespace fathom::cli {
namespace {

constexpr int kCells = 30;
constexpr std::chrono::milliseconds kInterval{100};
constexpr std::chrono::milliseconds kPatience{400};  // what is done by then needs no bar

std::string amount(std::uint64_t n, ProgressUnit unit) {
  return unit == ProgressUnit::kBytes ? binary_bytes(n) : with_commas(n);
}

}  // namespace

ProgressBar::ProgressBar(std::string what, ProgressUnit unit)
    : what_(std::move(what)),
      unit_(unit),
      shown_(::isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      next_(start_ + kPatience) {}

ProgressBar::~ProgressBar() {
  if (drawn_) fmt::print(stderr, "\r\x1b[K");
}

void ProgressBar::update(std::uint64_t done, std::uint64_t all) {
  const auto now = std::chrono::steady_clock::now();
  if (!shown_ || now < next_ || all == 0) return;
  next_ = now + kInterval;
  drawn_ = true;
  const double share = static_cast<double>(done) / static_cast<double>(all);
  const int filled = static_cast<int>(share * kCells);
  const std::chrono::duration<double> spent = now - start_;
  const auto left = share > 0 ? static_cast<std::int64_t>(spent.count() * (1 - share) / share) : 0;
  fmt::print(stderr, "\r\x1b[K{} [{}{}] {:3.0f} %  {} of {}  {}:{:02} left", what_,
             std::string(static_cast<std::size_t>(filled), '#'),
             std::string(static_cast<std::size_t>(kCells - filled), ' '), 100 * share, amount(done, unit_),
             amount(all, unit_), left / 60, left % 60);
  std::fflush(stderr);
}

}  // namespace fathom::cli
