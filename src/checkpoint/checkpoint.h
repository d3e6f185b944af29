// A checkpoint folder: config.json and the tensors of its safetensors files, mapped and checked. checkpoint.md.
//
//   FATHOM_ASSIGN(Checkpoint ckpt, Checkpoint::open(folder));
//   const Tensor* w = ckpt.find("layers.3.attn.wkv.weight");
//
// Tensors go by their official names, whatever the file calls them: names that transformers saves are translated, and
// the experts it merges appear one by one as views. Nothing is copied but what could not be used in place: a multi-byte
// tensor that lies misaligned in its file, and an F32 parameter that was saved as BF16 (widened, exactly). FP8, FP4 and
// E8M0 bytes are always the file's own pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "checkpoint/model_config.h"
#include "checkpoint/schema.h"
#include "tensor/view.h"

namespace fathom::checkpoint {

struct Tensor {
  std::string name;  // official
  DType dtype = DType::kF32;
  Shape shape;                       // as stored: [out, in] for a linear weight, [out, in/2] where dtype is kFp4x2
  std::span<const std::byte> bytes;  // aligned to size_of(dtype); valid while the Checkpoint lives, moved or not
  std::uint32_t file = 0;            // position in Checkpoint::files()
  std::string stored;                // the name in the file; empty where it is the official one
  std::string_view stored_name() const { return stored.empty() ? std::string_view(name) : std::string_view(stored); }
};

struct ShardInfo {
  std::string name;  // file name inside the folder
  std::uint64_t bytes = 0;
};

enum class Access : std::uint8_t {
  kData,  // everything is checked, ids included; the first wrong thing makes open() fail, with all others in its report
  kHeaders,  // only headers are read; problems() says what is wrong; views may be misaligned and are not for use
};

struct OpenOptions {
  Access access = Access::kData;
  bool draft = true;  // false: tensors of mtp.* are left out, files that hold nothing else are not opened
};

// Movable; const use from several threads is safe.
class Checkpoint {
 public:
  // Errors: kNotFound (no folder, config.json or weights), kInvalid (config.json), kCorrupt (index, headers, tensors:
  // all problems in one report, each with file, tensor, found, expected), kExhausted.
  static Result<Checkpoint> open(const std::filesystem::path& folder, OpenOptions options = {});

  const ModelConfig& config() const { return config_; }
  const std::filesystem::path& path() const { return path_; }

  // By official name; nullptr where there is none. The pointer stays valid while the Checkpoint lives, moved or not.
  const Tensor* find(std::string_view name) const;
  std::span<const Tensor> tensors() const { return tensors_; }  // sorted by name
  std::span<const ShardInfo> files() const { return files_; }
  std::string_view file_of(const Tensor& t) const { return files_[t.file].name; }

  // What is wrong; always empty after Access::kData.
  const Problems& problems() const { return problems_; }
  // Remarks that stop nothing ("model.safetensors is ignored: the index does not name it").
  std::span<const std::string> notes() const { return notes_; }

  std::uint64_t tensor_bytes() const;                           // payload of all tensors as stored
  std::uint64_t copied_bytes() const { return copied_bytes_; }  // anonymous memory held for copies and widened tensors

  // Whether the files still are what was opened. A file that is replaced keeps its old contents here; one that is cut
  // short or overwritten in place does not. Errors: kCorrupt, naming the file.
  Result<> check_unchanged() const;

 private:
  friend class CheckpointBuilder;
  friend class SyntheticBuilder;  // synthetic.cc
  Checkpoint() = default;

  std::filesystem::path path_;
  ModelConfig config_;
  std::vector<ShardInfo> files_;
  std::vector<MappedFile> maps_;
  std::vector<Tensor> tensors_;
  std::vector<std::unique_ptr<std::byte[]>> owned_;
  std::uint64_t copied_bytes_ = 0;
  Problems problems_;
  std::vector<std::string> notes_;
};

}  // namespace fathom::checkpoint
