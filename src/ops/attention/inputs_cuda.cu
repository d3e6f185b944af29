// AttentionInputs in one launch, each of its operations by blocks of their own; alone they are launches of the same
// kernel.
#include <algorithm>
#include <array>

#include "ops/attention/inputs.h"
#include "ops/compressor/compress.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ops.h"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = kCompressThreads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kHalf = kThreads / 2;
static_assert(kWarps == 8);

enum Role : std::uint8_t { kEntries, kKeys, kWindow, kLatent, kKeepEntries, kKeepKeys, kRoles };

struct Work {
  int end[kRoles] = {};    // blocks before this one have this or an earlier role
  int tokens_a_block = 1;  // of kEntries, kKeys
  RmsNorm latent;
  WindowEntries window;
  bool stores = false;
  Batch batch;  // where it does
  DeviceRing ring{WindowRing{}};
  DeviceCompress entries{Compress{}};
  DeviceCompress keys{Compress{}};
};

// Four warps a token, two tokens a block.
__device__ void window_entries(const Work& work, int block) {
  __shared__ float squares[kWarps];
  const WindowEntries& op = work.window;
  const auto dim = static_cast<int>(op.kv.cols);
  const int plain = dim - 2 * static_cast<int>(op.cos.cols);
  const auto thread = static_cast<int>(threadIdx.x);
  const std::int64_t t = block * 2L + thread / kHalf;
  const bool live = t < op.kv.rows;
  const int i = 4 * (thread % kHalf);
  const bool mine = live && i < dim;
  const bool turns = mine && i >= plain;
  const float4 weight = mine ? load4(op.norm_weight + i) : float4{0, 0, 0, 0};
  std::byte* stored = nullptr;
  if (work.stores && live) {
    const Segment& s = work.batch.segments[work.batch.segment_of[t]];
    const int position = work.batch.positions[t];
    if (s.tokens - (position - s.start) <= work.ring.capacity) stored = work.ring.at(s.slot, position);
  }
  await_results();
  float* kv = op.kv.data + t * op.kv.ld + i;
  float4 x = mine ? load4(kv) : float4{0, 0, 0, 0};
  const auto angles = [&](const Mat<const float>& table) {
    return turns ? *reinterpret_cast<const float2*>(table.data + t * table.ld + (i - plain) / 2) : float2{0, 0};
  };
  const float2 cos = angles(op.cos);
  const float2 sin = angles(op.sin);
  const float sum = warp_sum(dot4(x, x, 0.0F));
  if (thread % kWarp == 0) squares[thread / kWarp] = sum;
  __syncthreads();
  const float* mine_of = squares + thread / kHalf * (kWarps / 2);
  const float rho = rms_scale((mine_of[0] + mine_of[1]) + (mine_of[2] + mine_of[3]), dim, op.eps);
  x = norm4(x, weight, rho, op.carrier);
  if (turns) rotate4(x, cos, sin, op.carrier);
  if (op.quantise) {
    const float4 rounded = fp8_round_trip4(x, i, plain);
    if (i < plain) x = rounded;
  }
  if (mine) store4(kv, x);
  if (stored != nullptr) encode4(work.ring.codec, x, i, stored);
}

__device__ void make_entries(const DeviceCompress& c, int block, int tokens_a_block, CompressShared& shared) {
  for (int k = 0; k < tokens_a_block; ++k) {
    const std::int64_t t = static_cast<std::int64_t>(block) * tokens_a_block + k;
    if (t >= c.op.batch.tokens) return;
    if (k > 0) __syncthreads();  // the last entry has been made
    make_entry(c, t, shared);
  }
}

__global__ void __launch_bounds__(kThreads, 2) attention_inputs(const __grid_constant__ Work work) {
  __shared__ CompressShared shared;
  allow_next();
  int role = 0;
  while (static_cast<int>(blockIdx.x) >= work.end[role]) ++role;
  const int block = static_cast<int>(blockIdx.x) - (role > 0 ? work.end[role - 1] : 0);
  const auto thread = static_cast<int>(threadIdx.x);
  switch (role) {
    case kEntries:
    case kKeys: make_entries(role == kEntries ? work.entries : work.keys, block, work.tokens_a_block, shared); break;
    case kWindow: window_entries(work, block); break;
    case kLatent: {
      const RmsNorm& op = work.latent;
      norm_row<kThreads>(op.x.data + block * op.x.ld, op.w, op.y.data + block * op.y.ld, static_cast<int>(op.x.cols),
                         op.eps, op.carrier);
      break;
    }
    default:
      keep_four(role == kKeepEntries ? work.entries.op : work.keys.op,
                static_cast<std::int64_t>(block) * kThreads + thread);
  }
  await_results();  // those too that had nothing to read: a kernel ends after the one in front
}

// Blocks of each role, in order.
struct Blocks {
  std::array<std::int64_t, kRoles> of = {};
  void launch_with(Context& c, const char* name, Work& work) const {
    std::int64_t sum = 0;
    for (std::size_t r = 0; r < of.size(); ++r) work.end[r] = static_cast<int>(sum += of[r]);
    launch(c, name, attention_inputs, dim3(static_cast<unsigned>(sum)), kThreads, 0, work);
  }
};

void check(const WindowEntries& op) {
  const std::int64_t plain = op.kv.cols - 2 * op.cos.cols;
  FATHOM_CHECK(plain >= 0 && plain % 4 == 0 && op.kv.cols <= 4 * kHalf, "a row with a rotated part, both in fours");
  FATHOM_CHECK(op.cos.cols % 2 == 0 && op.cos.ld % 2 == 0 && op.sin.ld % 2 == 0 && op.kv.ld % 4 == 0, "aligned rows");
}

void check(const Compress& op) {
  const int dim = op.entries.codec.dim;
  FATHOM_CHECK(op.kv.cols == op.ring.width && op.score.cols == op.ring.width, "projections of the ring's width");
  FATHOM_CHECK(op.rope_dim <= kMostAngles && op.rope_dim % 4 == 0, "entries of a few rotated dims");
  FATHOM_CHECK((dim - op.rope_dim) % 4 == 0 && dim <= 4 * kThreads, "entries in fours");
  FATHOM_CHECK(op.kind == EntryKind::kMain || (dim <= 4 * kWarp && (dim & (dim - 1)) == 0),
               "a Hadamard transform by one warp needs a power of two");
  FATHOM_CHECK(op.entries.ratio > 0 && op.ring.width % dim == 0, "whole rows");
  FATHOM_CHECK(op.kv.ld % 4 == 0 && op.score.ld % 4 == 0 && op.ring.offset % 16 == 0, "aligned rows");
}

std::int64_t keep_blocks(const Compress& op) {
  return ceil_div(static_cast<std::int64_t>(op.batch.tokens) * (op.ring.width / 4), kThreads);
}

// What is there of AttentionInputs.
void run_inputs(Context& c, const char* name, const RmsNorm* latent, const WindowEntries* window,
                const StoreWindow* store, const Compress* entries, const Compress* keys) {
  Work work;
  Blocks now;
  Blocks after;
  if (latent != nullptr) {
    work.latent = *latent;
    now.of[kLatent] = latent->x.rows;
  }
  if (window != nullptr) {
    check(*window);
    work.window = *window;
    now.of[kWindow] = ceil_div(window->kv.rows, 2);
  }
  if (store != nullptr) {
    FATHOM_CHECK(store->kv.data == window->kv.data && store->ring.codec.dim == window->kv.cols, "the window's rows");
    work.stores = true;
    work.batch = store->batch;
    work.ring = DeviceRing(store->ring);
  }
  const auto add = [&](const Compress* op, DeviceCompress& to, Role make, Role keep) {
    if (op == nullptr) return;
    check(*op);
    to = DeviceCompress(*op);
    constexpr int kFew = 64;
    work.tokens_a_block = op->batch.tokens <= kFew ? 1 : 4;  // most tokens end no window
    now.of[make] = ceil_div(op->batch.tokens, work.tokens_a_block);
    const int span = op->ring.width / op->entries.codec.dim * op->entries.ratio;
    (may_store_first(op->batch, op->ring.capacity, span) ? now : after).of[keep] = keep_blocks(*op);
  };
  add(entries, work.entries, kEntries, kKeepEntries);
  add(keys, work.keys, kKeys, kKeepKeys);
  now.launch_with(c, name, work);
  after.launch_with(c, "compress_keep", work);
}

}  // namespace

void run(Context& c, const WindowEntries& op) {
  run_inputs(c, "window_entries", nullptr, &op, nullptr, nullptr, nullptr);
}

void run(Context& c, const Compress& op) { run_inputs(c, "compress", nullptr, nullptr, nullptr, &op, nullptr); }

void run(Context& c, const AttentionInputs& op) {
  FATHOM_CHECK(op.latent.x.cols % 4 == 0 && op.latent.x.ld % 4 == 0 && op.latent.y.ld % 4 == 0, "aligned rows");
  run_inputs(c, "attention_inputs", &op.latent, &op.window, op.store ? &*op.store : nullptr,
             op.entries ? &*op.entries : nullptr, op.keys ? &*op.keys : nullptr);
}

}  // namespace fathom::ops::cuda
