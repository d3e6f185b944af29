// A header of any content against a fixed config.json: names are translated, experts taken apart and all compared with
// the table, as opening a folder does.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include <unistd.h>

#include "base/check.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "checkpoint/writer.h"

namespace {

using namespace fathom::checkpoint;

// Two layers (ratios 4 and 128), the first routed by id, one expert: the whole table fits a few kilobytes.
ModelConfig small_config() {
  ModelConfig c;
  c.vocab = 8;
  c.hidden = 32;
  c.layers = 2;
  c.heads = 2;
  c.head_dim = 8;
  c.rope_dim = 4;
  c.q_rank = 8;
  c.o_groups = 2;
  c.o_rank = 4;
  c.window = 4;
  c.compress_ratios = {4, 128};
  c.index_heads = 2;
  c.index_dim = 8;
  c.index_topk = 4;
  c.routed_experts = 1;
  c.active_experts = 1;
  c.expert_inner = 32;
  c.hash_layers = 1;
  c.swiglu_limit = 10;
  c.streams = 4;
  c.sinkhorn_iters = 20;
  c.norm_eps = 1e-6F;
  c.hc_eps = 1e-6F;
  c.rope_theta = 1e4;
  c.compress_rope_theta = 1e5;
  c.max_positions = 1024;
  return c;
}

// A folder of this process, with the config in it; gone when the process ends.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("fathom-fuzz-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
    FATHOM_CHECK(write_text_file(path_ / "config.json", to_json(small_config())).has_value(),
                 "the folder can be written");
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder here;
  const std::filesystem::path& folder = here.path();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // A plain write: the file need not survive a crash of the machine.
  std::FILE* f = std::fopen((folder / "model.safetensors").c_str(), "wb");
  FATHOM_CHECK(f != nullptr && std::fwrite(text.data(), 1, text.size(), f) == text.size() && std::fclose(f) == 0,
               "written");
  for (const Access access : {Access::kHeaders, Access::kData}) {
    const auto c = Checkpoint::open(folder, {.access = access});
    if (!c) continue;
    FATHOM_CHECK(access == Access::kHeaders || c->problems().empty(), "no data access to a broken checkpoint");
    for (const Tensor& t : c->tensors()) {
      std::int64_t n = 0;
      FATHOM_CHECK(element_count(t.shape, n) && static_cast<std::size_t>(n) * size_of(t.dtype) == t.bytes.size(),
                   "views have the size of their shape");
    }
  }
  return 0;
}
