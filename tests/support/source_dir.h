// FATHOM_SOURCE_DIR: where the project's files are, for tests; a const char*. Included into every test by the build.
//
// A function, not a string on the command line: clones in different folders then compile tests alike, and ccache serves
// one from the other.
#pragma once

namespace fathom {
const char* test_source_dir();
}  // namespace fathom

#define FATHOM_SOURCE_DIR (::fathom::test_source_dir())
