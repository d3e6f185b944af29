#include "ops/cuda/graphs.h"

#include <algorithm>

namespace fathom::ops::cuda {

Graphs::~Graphs() {
  for (const auto& [key, entry] : entries_) {
    if (entry.graph != nullptr) cudaGraphExecDestroy(entry.graph);
  }
}

void Graphs::run(std::uint64_t key, const std::function<void()>& step, Context& context) {
  if (context.fault.set()) return;
  const auto known = entries_.find(key);
  if (known == entries_.end()) {
    if (entries_.size() >= kMost) drop_oldest();
    entries_[key] = {.used = ++now_};
    step();
    return;
  }
  Entry& entry = known->second;
  entry.used = ++now_;
  Fault& fault = context.fault;
  if (entry.graph == nullptr) {
    fault.note(cudaStreamBeginCapture(context.stream, cudaStreamCaptureModeThreadLocal), "recording a step");
    if (fault.set()) return;
    const bool blame = context.blame;
    context.follows_kernel = false;
    context.blame = false;  // what is recorded does not run, so there is nothing to wait for
    const std::uint64_t before = context.launches;
    step();
    entry.launches = context.launches - before;
    context.launches = before;
    context.blame = blame;
    cudaGraph_t graph = nullptr;
    fault.note(cudaStreamEndCapture(context.stream, &graph), "recording a step");
    if (!fault.set()) fault.note(cudaGraphInstantiate(&entry.graph, graph, 0), "recording a step");
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (fault.set()) return;
  }
  context.last = "a recorded step";
  context.follows_kernel = false;
  context.launches += entry.launches;
  fault.note(cudaGraphLaunch(entry.graph, context.stream), "a recorded step");
}

void Graphs::drop_oldest() {
  const auto oldest = std::min_element(entries_.begin(), entries_.end(),
                                       [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
  if (oldest->second.graph != nullptr) cudaGraphExecDestroy(oldest->second.graph);
  entries_.erase(oldest);
}

}  // namespace fathom::ops::cuda
