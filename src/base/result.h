// Result<T>: a value, or an error that says what was wrong in a sentence a user can act on.
//
// Three kinds of wrong (see CONTRIBUTING.md): the world (files, requests, full caches) is a Result; our own bug is a
// FATHOM_CHECK (base/check.h); a device fault ends the process. No exception crosses a room; what a library throws is
// caught where it enters. Names follow std::expected, so that leaving tl::expected is a rename.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace fathom {

enum class Code : std::uint8_t {
  kInvalid,      // the caller asked for something that cannot be: fix the request
  kNotFound,     // a file, tensor or id that should exist does not
  kCorrupt,      // bytes that contradict their own format
  kExhausted,    // memory, pages, queue places or disk ran out
  kCancelled,    // the caller went away or asked to stop
  kUnavailable,  // this machine or build cannot do it (no such device, no such instruction)
  kInternal,     // should not happen
};

struct Error {
  Code code = Code::kInternal;
  std::string what;
};

template <class T = void>
using Result = tl::expected<T, Error>;

template <class... A>
tl::unexpected<Error> fail(Code code, fmt::format_string<A...> format, A&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<A>(args)...)});
}

// The error of `r`, to be returned from a function with another value type.
template <class T>
tl::unexpected<Error> pass_on(Result<T>&& r) {
  return tl::unexpected<Error>(std::move(r).error());
}

}  // namespace fathom

// Returns the error of a Result<> expression, if it has one.
#define FATHOM_TRY(expr)                                                            \
  do {                                                                              \
    if (auto fathom_try_result = (expr); !fathom_try_result) {                      \
      return tl::unexpected<::fathom::Error>(std::move(fathom_try_result).error()); \
    }                                                                               \
  } while (false)

// NOLINTBEGIN(bugprone-macro-parentheses): a declaration cannot stand in parentheses.
#define FATHOM_CONCAT_INNER(a, b) a##b
#define FATHOM_CONCAT(a, b) FATHOM_CONCAT_INNER(a, b)

// FATHOM_ASSIGN(auto x, expr): declares x from a Result<T> expression's value, or returns its error.
#define FATHOM_ASSIGN(decl, expr) FATHOM_ASSIGN_INNER(FATHOM_CONCAT(fathom_assign_, __LINE__), decl, expr)
#define FATHOM_ASSIGN_INNER(tmp, decl, expr)                                \
  auto tmp = (expr);                                                        \
  if (!tmp) return tl::unexpected<::fathom::Error>(std::move(tmp).error()); \
  decl = std::move(tmp).value()
// NOLINTEND(bugprone-macro-parentheses)
