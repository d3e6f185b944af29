// FATHOM_CHECK: an invariant of ours, checked in every build; a failure is a bug in Fathom and aborts with place and
// reason. Meant for O(1) work at the door of an operation. FATHOM_DCHECK is for inner loops and exists in debug builds
// only.
#pragma once

namespace fathom::detail {
[[noreturn]] void check_failed(const char* file, int line, const char* expr, const char* why);
}

#define FATHOM_CHECK(cond, why) \
  (static_cast<bool>(cond) ? void(0) : ::fathom::detail::check_failed(__FILE__, __LINE__, #cond, why))

#ifdef NDEBUG
#define FATHOM_DCHECK(cond, why) void(0)
#else
#define FATHOM_DCHECK(cond, why) FATHOM_CHECK(cond, why)
#endif
