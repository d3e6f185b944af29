// How much memory there is and how much this process holds, as the kernel counts.
#pragma once

#include <cstdint>

namespace fathom {

struct MachineMemory {
  std::uint64_t total_bytes = 0;      // of the machine, or of the cgroup where that is less
  std::uint64_t available_bytes = 0;  // what can be had now without swapping, the page cache given back
};

// Zeros where the kernel does not say.
MachineMemory machine_memory();

// Resident pages of this process that no file backs. 0 where the kernel does not say.
std::uint64_t anonymous_bytes();

// The most memory this process ever had resident, mapped files included. 0 where the kernel does not say.
std::uint64_t peak_resident_bytes();

}  // namespace fathom
