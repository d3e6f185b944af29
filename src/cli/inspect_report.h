// What `fathom inspect` found, and its two forms.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "checkpoint/inventory.h"
#include "checkpoint/plan.h"
#include "checkpoint/schema.h"

namespace fathom::cli {

struct InspectReport {
  std::string where;
  std::size_t files = 0;
  checkpoint::ModelConfig config;
  checkpoint::Inventory inventory;
  checkpoint::Problems problems;
  std::vector<std::string> notes;
  std::string numerics;
  checkpoint::PlanRequest request;
  checkpoint::Plan plan;
};

std::string as_text(const InspectReport& report);
// One object, ending in a newline; sizes in bytes, speeds in tokens/s. Members are only ever added.
std::string as_json(const InspectReport& report);

}  // namespace fathom::cli
