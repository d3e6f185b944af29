// Memory of machines with several nodes. On one node nothing here does anything.
#pragma once

#include <vector>

#include "base/topology.h"

namespace fathom {

// Bit n is set for every node n that memory of these processors lies on; empty where that is one node.
std::vector<unsigned long> nodes_to_interleave(const std::vector<Processor>& processors);

// From now on the pages that this thread, and those it starts later, are the first to touch lie on the nodes in turn,
// those of files that they read in among them: every node's memory serves every thread's reading alike, instead of one
// node's all of it. False where there is one node or the system refuses; nothing has changed then.
bool interleave_memory(const std::vector<Processor>& processors);

// From now on the pages that this thread is the first to touch lie on the node that it runs on.
void use_near_memory();

}  // namespace fathom
