#include "ops/cuda/backend.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "base/thread_pool.h"
#include "ops/cuda/codes.h"
#include "ops/cuda/context.h"
#include "ops/cuda/graphs.h"
#include "ops/cuda/matmul.h"
#include "ops/cuda/memory.h"
#include "ops/cuda/ops.h"
#include "ops/cuda/pinned.h"
#include "ops/cuda/upload.h"
#include "ops/kernel_table.h"

namespace fathom::ops::cuda {
namespace {

constexpr int kLeastMajor = 8;                        // sm_80: bf16 tensor units, asynchronous copies
constexpr std::size_t kSmall = std::size_t{1} << 20;  // weights below are not worth a thread's attention
constexpr int kMostReaders = 8;                       // as many as fill the bus

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::string name, bool replay) : name_(std::move(name)), replay_(replay) {}
  ~CudaBackend() override {
    if (context_.stream != nullptr) static_cast<void>(cudaStreamSynchronize(context_.stream));
  }

  Result<> open(const CudaOptions& options, const cudaDeviceProp& device) {
    device_ = options.device;
    context_.multiprocessors = device.multiProcessorCount;
    context_.capability = 10 * device.major + device.minor;
    const bool hopper_code = std::string_view(FATHOM_CUDA_ARCHITECTURES).find("90a") != std::string_view::npos;
    context_.kernels = KernelChoice(context_.capability, hopper_code, options.off);
    context_.early_launch = context_.kernels.uses(Leaf::kEarlyLaunch);
    context_.blame = options.blame;
    if (const cudaError_t s = context_.open(); s != cudaSuccess) {
      return fail(Code::kUnavailable, "CUDA device {} cannot be used: {}", options.device, cudaGetErrorString(s));
    }
    upload_.open(options.device, std::min(usable_cores(), kMostReaders));
    if (const cudaError_t s = copies_.open(); s != cudaSuccess) {
      return fail(Code::kExhausted, "cannot pin {} bytes of host memory: {}", copies_.bytes(), cudaGetErrorString(s));
    }
    return {};
  }

  std::string_view name() const override { return name_; }

  Result<Buffer> allocate(std::size_t bytes) override {
    use_device();
    return pool_.allocate(bytes, context_);
  }
  std::size_t free_bytes() override {
    use_device();
    std::size_t free = 0;
    std::size_t total = 0;
    context_.fault.note(cudaMemGetInfo(&free, &total), "asking for free memory");
    return free + pool_.free_bytes();
  }
  void copy_in(std::byte* to, const void* from, std::size_t bytes) override {
    use_device();
    send(to, from, bytes);
  }
  void copy_out(void* to, const std::byte* from, std::size_t bytes) override {
    use_device();
    settle();
    context_.follows_kernel = false;
    Fault& fault = context_.fault;
    if (!fault.set()) fault.note(copies_.fetch(to, from, bytes, context_.stream), context_.last);
    if (fault.set()) std::memset(to, 0, bytes);
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    use_device();
    settle();
    if (context_.fault.set()) return;
    context_.follows_kernel = false;
    context_.fault.note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, context_.stream),
                        "copying on the device");
  }
  Result<const std::byte*> adopt(std::span<const std::byte> weights) override {
    use_device();
    FATHOM_ASSIGN(std::byte* const memory, store_.allocate(weights.size()));
    if (weights.size() < kSmall) {
      send(memory, weights.data(), weights.size());
    } else {
      upload_.add(memory, weights.data(), weights.size());
    }
    return memory;
  }

  void prepare(const Weight& w) override {
    use_device();
    settle();
    if (takes_codes(context_, w)) pack_weight(context_, w);
    else prepare_fp4(context_, w);
  }

  std::uint64_t launches() const override { return context_.launches; }
  Result<> finish() override {
    use_device();
    settle();
    Fault& fault = context_.fault;
    if (!fault.set()) fault.note(cudaStreamSynchronize(context_.stream), context_.last);
    if (!fault.set()) return {};
    if (fault.status() == cudaErrorMemoryAllocation) {
      return fail(Code::kExhausted, "{} is out of memory: {}", name_, fault.what());
    }
    return fail(Code::kInternal, "{} failed at or before \"{}\": {}", name_, fault.what(),
                cudaGetErrorString(fault.status()));
  }

  void replay(std::uint64_t key, const std::function<void()>& step) override {
    use_device();
    settle();
    if (replay_) {
      graphs_.run(key, step, context_);
    } else {
      step();
    }
  }

  void beside(const std::function<void()>& work) override {
    use_device();
    settle();
    context_.beside(work);
  }
  void meet() override {
    use_device();
    context_.meet();
  }

  void embed(const Embed& op) override { launch(op); }
  void linear(const Linear& op) override { launch(op); }
  void linears(std::span<const Linear> ops) override { launch(ops); }
  void rms_norm(const RmsNorm& op) override { launch(op); }
  void rope_table(const RopeTable& op) override { launch(op); }
  void hc_pre(const HcPre& op) override { launch(op); }
  void hc_post(const HcPost& op) override { launch(op); }
  void hc_post_pre(const HcPostPre& op) override { launch(op); }
  void hc_head(const HcHead& op) override { launch(op); }
  void stream_mean(const StreamMean& op) override { launch(op); }
  void query_heads(const QueryHeads& op) override { launch(op); }
  void window_entries(const WindowEntries& op) override { launch(op); }
  void attention_inputs(const AttentionInputs& op) override { launch(op); }
  void queries(const Queries& op) override { launch(op); }
  void sparse_attention(const SparseAttention& op) override { launch(op); }
  void attend(const Attend& op) override { launch(op); }
  void store_window(const StoreWindow& op) override { launch(op); }
  void compress(const Compress& op) override { launch(op); }
  void index_query(const IndexQuery& op) override { launch(op); }
  void index_select(const IndexSelect& op) override { launch(op); }
  void route(const Route& op) override { launch(op); }
  void experts(const Experts& op) override { launch(op); }
  void mtp_input(const MtpInput& op) override { launch(op); }
  void choose(const Choose& op) override { launch(op); }

 private:
  // The thread that drives a backend may change; which device a thread means is the thread's own.
  void use_device() { context_.fault.note(cudaSetDevice(device_), "choosing the device"); }
  void send(std::byte* to, const void* from, std::size_t bytes) {
    context_.follows_kernel = false;
    if (context_.fault.set()) return;
    context_.fault.note(copies_.send(to, from, bytes, context_.stream), "copying to the device");
  }
  // What comes next may read weights.
  void settle() {
    if (upload_.under_way()) upload_.wait(context_.fault);
  }
  template <class Op>
  void launch(const Op& op) {
    use_device();
    settle();
    run(context_, op);
  }

  std::string name_;
  bool replay_;
  int device_ = 0;
  Context context_;
  PinnedRing copies_{4, std::size_t{4} << 20};
  Store store_;
  Upload upload_;  // before the store it writes to is gone
  Pool pool_;
  Graphs graphs_;
};

// The driver's library, looked for before the runtime does, which only says that something is too old.
Result<> find_driver() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    return fail(Code::kUnavailable, "no CUDA driver on this machine: libcuda.so.1 cannot be loaded ({})", dlerror());
  }
  dlclose(driver);
  return {};
}

// The device's properties, once it is known to be there and able.
Result<cudaDeviceProp> find_device(int device) {
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    return fail(Code::kUnavailable, "the CUDA driver finds no device");
  }
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0;
    static_cast<void>(cudaDriverGetVersion(&driver));
    return fail(Code::kUnavailable, "the CUDA driver serves version {}.{}, at least {}.{} is required", driver / 1000,
                driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  }
  if (status != cudaSuccess)
    return fail(Code::kUnavailable, "the CUDA driver does not answer: {}", cudaGetErrorString(status));
  if (device >= count)
    return fail(Code::kUnavailable, "CUDA device {} was asked for, found {} (counted from 0)", device, count);
  cudaDeviceProp found{};
  status = cudaGetDeviceProperties(&found, device);
  if (status == cudaSuccess) status = cudaSetDevice(device);
  if (status != cudaSuccess) return fail(Code::kUnavailable, "CUDA device {}: {}", device, cudaGetErrorString(status));
  if (found.major < kLeastMajor) {
    return fail(Code::kUnavailable, "CUDA device {} ({}) has compute capability {}.{}, at least {}.0 is required",
                device, found.name, found.major, found.minor, kLeastMajor);
  }
  if (!has_code()) {
    return fail(Code::kUnavailable, "CUDA device {} ({}) has compute capability {}.{}; this build holds code for {}",
                device, found.name, found.major, found.minor, FATHOM_CUDA_ARCHITECTURES);
  }
  return found;
}

}  // namespace

Result<std::unique_ptr<Backend>> open(const CudaOptions& options) {
  FATHOM_TRY(find_driver());
  FATHOM_ASSIGN(const cudaDeviceProp device, find_device(options.device));
  auto backend = std::make_unique<CudaBackend>(
      fmt::format("cuda:{} ({}{})", options.device, device.name, describe_off(options.off)), options.replay);
  FATHOM_TRY(backend->open(options, device));
  return backend;
}

}  // namespace fathom::ops::cuda

// The one symbol that the plug-in shows.
extern "C" const fathom::ops::CudaPlugin* fathom_cuda_plugin();
extern "C" __attribute__((visibility("default"))) const fathom::ops::CudaPlugin* fathom_cuda_plugin() {
  static constexpr fathom::ops::CudaPlugin kPlugin = {.stamp = FATHOM_BUILD_STAMP, .open = &fathom::ops::cuda::open};
  return &kPlugin;
}
