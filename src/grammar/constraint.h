// The constraint of an answer: when it begins, and what it is then. prompt-encoding.md 3.5 and 3.6.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "grammar/compiler.h"

namespace fathom::grammar {

// One after another: free, up to and with `begins_behind`; then the `forced` ids; then what the program allows; then
// the end of the turn.
struct Plan {
  std::int32_t begins_behind = -1;            // -1: nothing is free
  std::vector<std::int32_t> not_before = {};  // ids that may not come while it is free
  std::vector<std::int32_t> forced = {};
  std::shared_ptr<const Program> program = nullptr;  // nullptr: nothing, all is free behind the forced ids
  std::string begun = {};  // text that the prompt has already and the program is to have seen; only without free tokens
};

// Error: kInvalid, `begun` is not the beginning of what the program allows.
Result<std::unique_ptr<engine::Constraint>> make_constraint(Plan plan, std::int32_t vocab);

}  // namespace fathom::grammar
