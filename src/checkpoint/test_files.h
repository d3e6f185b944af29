// For tests of this room: folders that vanish, and checkpoints taken apart so that a test can spoil one thing and put
// the rest back together.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/writer.h"

namespace fathom::checkpoint {

// A folder of a test's own, empty at first, gone after it.
class Folder {
 public:
  explicit Folder(std::string_view name);
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }
  void write(std::string_view file, std::string_view text) const;

 private:
  std::filesystem::path path_;
};

// A tensor with bytes of its own.
struct LooseTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::string bytes;
};

// A checkpoint of one file, in parts.
struct LooseCheckpoint {
  std::string config;
  std::vector<LooseTensor> tensors;

  // From a folder under the source tree, which must be readable.
  static LooseCheckpoint load(std::string_view relative);

  LooseTensor& at(std::string_view name);
  void erase(std::string_view name);
  // Replaces one occurrence of `from`, which must be there.
  void edit_config(std::string_view from, std::string_view to);

  std::string file() const;  // model.safetensors
  void write(const Folder& folder) const;
};

}  // namespace fathom::checkpoint
