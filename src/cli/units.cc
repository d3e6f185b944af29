#include "cli/units.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace fathom::cli {

std::string with_commas(std::uint64_t n) {
  std::string digits = fmt::format("{}", n);
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string binary_bytes(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  auto v = static_cast<double>(bytes);
  for (; v >= 1024 && unit + 1 < kUnits.size(); ++unit) v /= 1024;
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", v, unit >= 3 ? 2 : 1, kUnits[unit]);
}

std::string decimal_count(double n) {
  constexpr std::array<std::string_view, 5> kUnits = {"", " K", " M", " B", " T"};
  std::size_t unit = 0;
  for (; n >= 1000 && unit + 1 < kUnits.size(); ++unit) n /= 1000;
  return fmt::format("{:.{}f}{}", n, unit == 0 ? 0 : 1, kUnits[unit]);
}

}  // namespace fathom::cli
