#include "ops/backend.h"
#include "ops/cpu.h"
#include "ops/host_memory.h"

namespace fathom::ops {
namespace {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuOptions& options)
      : pool_(options.threads > 0 ? options.threads : usable_cores()), bf16_dot_(options.bf16_dot) {}

  std::string_view name() const override { return "cpu"; }
  bool on_host() const override { return true; }

  Result<Buffer> allocate(std::size_t bytes) override { return allocate_host(bytes); }
  void copy_in(std::byte* to, const void* from, std::size_t bytes) override { copy_host(to, from, bytes); }
  void copy_out(void* to, const std::byte* from, std::size_t bytes) override { copy_host(to, from, bytes); }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override { copy_host(to, from, bytes); }
  Result<const std::byte*> adopt(std::span<const std::byte> weights) override { return weights.data(); }

  void embed(const Embed& op) override { run(op); }
  void linear(const Linear& op) override { run(op); }
  void rms_norm(const RmsNorm& op) override { run(op); }
  void rope_table(const RopeTable& op) override { run(op); }
  void hc_pre(const HcPre& op) override { run(op); }
  void hc_post(const HcPost& op) override { run(op); }
  void hc_head(const HcHead& op) override { run(op); }
  void stream_mean(const StreamMean& op) override { run(op); }
  void query_heads(const QueryHeads& op) override { run(op); }
  void window_entries(const WindowEntries& op) override { run(op); }
  void sparse_attention(const SparseAttention& op) override { run(op); }
  void store_window(const StoreWindow& op) override { run(op); }
  void compress(const Compress& op) override { run(op); }
  void index_query(const IndexQuery& op) override { run(op); }
  void index_select(const IndexSelect& op) override { run(op); }
  void route(const Route& op) override { run(op); }
  void experts(const Experts& op) override { run(op); }
  void mtp_input(const MtpInput& op) override { run(op); }
  void choose(const Choose& op) override { run(op); }

 private:
  // Rounding every value to bf16 between operations is what GPUs do; here the plain reference shows what that gives.
  template <class Op>
  void run(const Op& op) {
    if constexpr (requires { op.carrier; }) {
      if (op.carrier == Carrier::kBf16) return ref::run(op);
    }
    scratch_.reset();
    cpu::Context context = {pool_, scratch_, bf16_dot_};
    cpu::run(op, context);
  }

  ThreadPool pool_;
  cpu::Scratch scratch_;
  bool bf16_dot_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) { return std::make_unique<CpuBackend>(options); }

}  // namespace fathom::ops
