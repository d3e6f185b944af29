// Backend: who computes. One virtual per coarse operation, because one backend (CUDA) arrives by dlopen; the call costs
// nothing beside the work, and inside a backend everything is a direct call.
//
// Memory handed to an operation lives where the backend's memory lives: what allocate() gave, filled by copy_in(). Host
// backends take any host memory. Operations and copies are ordered: each sees what those before it wrote; a device may
// run them later, and only copy_out() and finish() wait for it. No operation allocates after warm-up; scratch memory
// grows to a high-water mark and stays.
//
// One thread drives a backend at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"
#include "ops/attention/attend.h"
#include "ops/attention/heads.h"
#include "ops/attention/inputs.h"
#include "ops/attention/sparse_attention.h"
#include "ops/compressor/compress.h"
#include "ops/draft/mtp_input.h"
#include "ops/hyper_connection/hyper_connection.h"
#include "ops/indexer/index_select.h"
#include "ops/linear/embed.h"
#include "ops/linear/linear.h"
#include "ops/moe/experts.h"
#include "ops/moe/route.h"
#include "ops/norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/sampling/choose.h"

namespace fathom::ops {

// Bytes of backend memory, aligned to 64; freed by the deleter the backend chose. Empty when default-made.
using Buffer = std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;
  // Whether its memory is the host's, to be read without copy_out().
  virtual bool on_host() const { return false; }

  // Zeroed memory. Error: kExhausted, with the bytes asked for.
  virtual Result<Buffer> allocate(std::size_t bytes) = 0;
  // What allocate() could still give, about; 0 where that is not known.
  virtual std::size_t free_bytes() { return 0; }
  virtual void copy_in(std::byte* to, const void* from, std::size_t bytes) = 0;    // host to backend
  virtual void copy_out(void* to, const std::byte* from, std::size_t bytes) = 0;   // backend to host
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;  // within backend memory, no overlap
  // Read-only weights in host memory: where the backend reads them from. Host backends read them where they are, so the
  // memory outlives such a backend; a device keeps a copy until it is destroyed, but may still be reading them until
  // finish(). Error: kExhausted.
  virtual Result<const std::byte*> adopt(std::span<const std::byte> weights) = 0;

  // Once for every matrix of adopted weights, before its first use: a device may reorder its bytes in place. Host backends
  // read the checkpoint as it is.
  virtual void prepare(const Weight& w) { static_cast<void>(w); }

  // Waits for everything asked so far. Error: kInternal where the device failed (kExhausted where its scratch memory
  // ran out), naming the operation; what was written since the last finish() is void then, and the backend of no
  // further use.
  virtual Result<> finish() { return {}; }

  // Kernels launched since the backend was made, each one of a recorded step counted; 0 where an operation is a call.
  virtual std::uint64_t launches() const { return 0; }

  // Runs `step`, which calls operations of this backend and nothing else of it. A device may record what they ask for
  // and, when the same key comes again, do that again without calling step: so the key must determine every argument of
  // every operation, and what changes from step to step must be in backend memory.
  virtual void replay(std::uint64_t key, const std::function<void()>& step) {
    static_cast<void>(key);
    step();
  }

  // Operations that `work` asks for may run at the same time as those asked for after it, up to the next meet(): none
  // of them writes what the others read or write. They see all that was written before. `work` does not call beside().
  // Host backends, which use all cores for one operation, run it at once.
  virtual void beside(const std::function<void()>& work) { work(); }
  virtual void meet() {}

  virtual void embed(const Embed& op) = 0;
  virtual void linear(const Linear& op) = 0;
  // None reads what another writes. A device reads the weights of all at once.
  virtual void linears(std::span<const Linear> ops) {
    for (const Linear& op : ops) linear(op);
  }
  virtual void rms_norm(const RmsNorm& op) = 0;
  virtual void rope_table(const RopeTable& op) = 0;
  virtual void hc_pre(const HcPre& op) = 0;
  virtual void hc_post(const HcPost& op) = 0;
  virtual void hc_post_pre(const HcPostPre& op) {
    hc_post(op.post);
    hc_pre(op.pre);
  }
  virtual void hc_head(const HcHead& op) = 0;
  virtual void stream_mean(const StreamMean& op) = 0;
  virtual void query_heads(const QueryHeads& op) = 0;
  virtual void window_entries(const WindowEntries& op) = 0;
  virtual void attention_inputs(const AttentionInputs& op) {
    rms_norm(op.latent);
    window_entries(op.window);
    if (op.store) store_window(*op.store);
    if (op.entries) compress(*op.entries);
    if (op.keys) compress(*op.keys);
  }
  virtual void queries(const Queries& op) {
    query_heads(op.heads);
    if (op.index) index_query(*op.index);
  }
  virtual void sparse_attention(const SparseAttention& op) = 0;
  virtual void attend(const Attend& op) {
    queries(op.queries);
    if (op.select) index_select(*op.select);
    sparse_attention(op.attention);
    linear(op.project);
  }
  virtual void store_window(const StoreWindow& op) = 0;
  virtual void compress(const Compress& op) = 0;
  virtual void index_query(const IndexQuery& op) = 0;
  virtual void index_select(const IndexSelect& op) = 0;
  virtual void route(const Route& op) = 0;
  virtual void experts(const Experts& op) = 0;
  virtual void mtp_input(const MtpInput& op) = 0;
  virtual void choose(const Choose& op) = 0;
};

// The plain one: every formula as the specification writes it, sums in double, one thread. The judge of the others.
std::unique_ptr<Backend> make_ref_backend();

struct CpuOptions {
  int threads = 0;       // 0: the usable cores (base/thread_pool.h)
  bool bf16_dot = true;  // use the processor's bf16 dot product where it gives the same bits; off: to compare
};

// The fast one for host memory: SIMD for the instruction set found at run time, threads. `float` and `official`
// numerics; `official-bf16` runs on the plain reference. Results do not depend on the number of threads
// (simd/lanes-inl.h).
std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options = {});

}  // namespace fathom::ops
