// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace fathom::cli {

std::string with_commas(std::uint64_t n);       // 69,187
std::string binary_bytes(std::uint64_t bytes);  // 148.65 GiB, 12.0 KiB, 17 B
std::string decimal_count(double n);            // 284.3 B, 13.3 M: thousands, millions, billions (10^9), trillions

}  // namespace fathom::cli
