#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace fathom::detail {

void check_failed(const char* file, int line, const char* expr, const char* why) {
  std::fprintf(stderr, "fathom: internal error at %s:%d: %s (%s)\n", file, line, why, expr);
  std::abort();
}

}  // namespace fathom::detail
