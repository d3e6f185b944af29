#include "checkpoint/test_files.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/check.h"

namespace fathom::checkpoint {

Folder::Folder(std::string_view name)
    : path_(std::filesystem::path(testing::TempDir()) / fmt::format("fathom-{}-{}", name, ::getpid())) {
  std::filesystem::remove_all(path_);
  std::filesystem::create_directories(path_);
}

void Folder::write(std::string_view file, std::string_view text) const {
  std::ofstream out(path_ / file, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  FATHOM_CHECK(out.good(), "a test can write its own folder");
}

LooseCheckpoint LooseCheckpoint::load(std::string_view relative) {
  const std::filesystem::path folder = std::filesystem::path(FATHOM_SOURCE_DIR) / relative;
  LooseCheckpoint c;
  c.config = read_text_file(folder / "config.json", kMaxConfigBytes).value();
  const SafetensorsFile file = SafetensorsFile::open(folder / "model.safetensors").value();
  for (const TensorInfo& t : file.header().tensors) {
    const auto bytes = file.bytes(t);
    c.tensors.push_back({t.name, t.dtype, t.shape, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}});
  }
  return c;
}

LooseTensor& LooseCheckpoint::at(std::string_view name) {
  const auto it = std::find_if(tensors.begin(), tensors.end(), [&](const LooseTensor& t) { return t.name == name; });
  FATHOM_CHECK(it != tensors.end(), "the test names a tensor that is there");
  return *it;
}

void LooseCheckpoint::erase(std::string_view name) { tensors.erase(tensors.begin() + (&at(name) - tensors.data())); }

void LooseCheckpoint::edit_config(std::string_view from, std::string_view to) {
  const std::size_t at = config.find(from);
  FATHOM_CHECK(at != std::string::npos, "the test edits what the config has");
  config.replace(at, from.size(), to);
}

std::string LooseCheckpoint::file() const {
  std::vector<OutTensor> out;
  for (const LooseTensor& t : tensors) out.push_back({t.name, t.dtype, t.shape, {}});
  std::string text = header_text(out, {});
  for (const LooseTensor& t : tensors) text += t.bytes;
  return text;
}

void LooseCheckpoint::write(const Folder& folder) const {
  folder.write("config.json", config);
  folder.write("model.safetensors", file());
}

}  // namespace fathom::checkpoint
