// Writing safetensors files. A file appears under its name whole or not at all: it is written beside it and renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/safetensors.h"
#include "tensor/view.h"

namespace fathom::checkpoint {

using Metadata = std::vector<std::pair<std::string, std::string>>;

struct OutTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;  // row-major, size_of(dtype) times the product of shape
};

// Writes all of them, larger elements first, so that every tensor lies aligned. Errors: kInvalid (a name twice; the
// target exists and is no regular file), kExhausted (disk full), kNotFound (folder missing, no permission).
Result<> write_safetensors(const std::filesystem::path& path, std::vector<OutTensor> tensors,
                           const Metadata& metadata = {});

// A file that appears on commit() and vanishes if that never comes. One thread.
class AtomicFile {
 public:
  // Errors: kNotFound (folder missing, no permission), kInvalid (target is no regular file).
  static Result<AtomicFile> create(const std::filesystem::path& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  ~AtomicFile();

  // Errors of all three: kExhausted (disk full, file size limit), kInternal (other failures of the disk).
  Result<> write(std::span<const std::byte> bytes);
  Result<> extend(std::uint64_t bytes);  // as many zeros that take no room on disk; only commit() may follow
  // `durable`: on disk before it has its name, so that not even a power failure leaves half a file there.
  Result<> commit(bool durable = true);

 private:
  AtomicFile() = default;
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  int fd_ = -1;
};

Result<> write_text_file(const std::filesystem::path& path, std::string_view text);

// The header of a file that holds `tensors` in this order, without their bytes (they need not be there): length and
// JSON, padded so that the payload starts at a multiple of 8.
std::string header_text(std::span<const OutTensor> tensors, const Metadata& metadata);

}  // namespace fathom::checkpoint
