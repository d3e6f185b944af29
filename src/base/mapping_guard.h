// What happens when a mapped file is cut short under us: reading past its new end is a SIGBUS, which no check
// beforehand can rule out. With the guard the process ends saying which file it was, instead of dumping core.
#pragma once

namespace fathom {

inline constexpr int kMappingLostExit = 74;  // EX_IOERR

// Installs the handler for the whole process; called once, by main(). A SIGBUS that no mapped file explains takes its
// default course.
void install_mapping_guard();

}  // namespace fathom
