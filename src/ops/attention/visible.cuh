// What a token attends to, and where those rows lie: sparse_attention.h for kernels.
#pragma once

#include <algorithm>

#include "ops/attention/sparse_attention.h"
#include "ops/cuda/entry.cuh"

namespace fathom::ops::cuda {

// What one token sees.
struct Visible {
  const Segment& segment;
  const std::int32_t* selected;
  int first;  // first window position
  int n_window;
  int n;  // rows in all

  __device__ Visible(const SparseAttention& op, const Segment& s, std::int64_t t) : segment(s), selected(nullptr) {
    const int position = op.batch.positions[t];
    const bool block = op.pattern == Pattern::kDraftBlock;
    first = max(0, (block ? s.start : position + 1) - op.window);
    n_window = (block ? s.start + s.tokens : position + 1) - first;
    n = n_window;
    if (op.entries.ratio == 0) return;
    const int exist = (position + 1) / op.entries.ratio;
    if (op.selected.data != nullptr) {
      selected = op.selected.data + t * op.selected.ld;
      n += min(exist, static_cast<int>(op.selected.cols));
    } else {
      n += exist;
    }
  }

  // Where visible row r lies: as f32 in this step's rows, or stored.
  struct Place {
    const float* values;
    const std::byte* stored;
    bool in_ring;
  };
  __device__ Place place(const SparseAttention& op, const DeviceRing& ring, const DevicePages& pages, int r) const {
    if (r >= n_window) {
      const int entry = selected != nullptr ? selected[r - n_window] : r - n_window;
      return {nullptr, pages.at(segment, entry), false};
    }
    const int position = first + r;
    if (position < segment.start) return {nullptr, ring.at(segment.slot, position), true};
    return {op.kv.data + static_cast<std::int64_t>(segment.first_row + position - segment.start) * op.kv.ld, nullptr,
            false};
  }
};

// The most rows that a token of this step can see.
inline std::int64_t most_rows(const SparseAttention& op) {
  const std::int64_t n = op.window + (op.pattern == Pattern::kDraftBlock ? op.batch.tokens : 0);
  if (op.entries.ratio == 0) return n;
  const std::int64_t exist = op.batch.longest / op.entries.ratio;
  return n + (op.selected.data != nullptr ? std::min<std::int64_t>(exist, op.selected.cols) : exist);
}

}  // namespace fathom::ops::cuda
