// Any text as model.safetensors.index.json.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "checkpoint/index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fathom::checkpoint;
  const auto index = parse_index({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!index) return 0;
  for (const std::string& file : index->files) {
    FATHOM_CHECK(file.find('/') == std::string::npos && file != "..", "files are looked for beside the index only");
  }
  for (std::size_t i = 0; i < index->entries.size(); ++i) {
    FATHOM_CHECK(index->entries[i].file < index->files.size(), "entries name files of the list");
    FATHOM_CHECK(i == 0 || index->entries[i - 1].tensor < index->entries[i].tensor, "entries are sorted and unique");
  }
  return 0;
}
