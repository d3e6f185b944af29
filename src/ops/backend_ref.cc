#include "ops/backend.h"
#include "ops/host_memory.h"

namespace fathom::ops {
namespace {

class RefBackend final : public Backend {
 public:
  std::string_view name() const override { return "ref"; }
  bool on_host() const override { return true; }

  Result<Buffer> allocate(std::size_t bytes) override { return allocate_host(bytes); }
  void copy_in(std::byte* to, const void* from, std::size_t bytes) override { copy_host(to, from, bytes); }
  void copy_out(void* to, const std::byte* from, std::size_t bytes) override { copy_host(to, from, bytes); }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override { copy_host(to, from, bytes); }
  Result<const std::byte*> adopt(std::span<const std::byte> weights) override { return weights.data(); }

  void embed(const Embed& op) override { ref::run(op); }
  void linear(const Linear& op) override { ref::run(op); }
  void rms_norm(const RmsNorm& op) override { ref::run(op); }
  void rope_table(const RopeTable& op) override { ref::run(op); }
  void hc_pre(const HcPre& op) override { ref::run(op); }
  void hc_post(const HcPost& op) override { ref::run(op); }
  void hc_head(const HcHead& op) override { ref::run(op); }
  void stream_mean(const StreamMean& op) override { ref::run(op); }
  void query_heads(const QueryHeads& op) override { ref::run(op); }
  void window_entries(const WindowEntries& op) override { ref::run(op); }
  void sparse_attention(const SparseAttention& op) override { ref::run(op); }
  void store_window(const StoreWindow& op) override { ref::run(op); }
  void compress(const Compress& op) override { ref::run(op); }
  void index_query(const IndexQuery& op) override { ref::run(op); }
  void index_select(const IndexSelect& op) override { ref::run(op); }
  void route(const Route& op) override { ref::run(op); }
  void experts(const Experts& op) override { ref::run(op); }
  void mtp_input(const MtpInput& op) override { ref::run(op); }
  void choose(const Choose& op) override { ref::run(op); }
};

}  // namespace

std::unique_ptr<Backend> make_ref_backend() { return std::make_unique<RefBackend>(); }

}  // namespace fathom::ops
