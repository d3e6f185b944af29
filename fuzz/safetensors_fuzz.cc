// Any bytes as a safetensors file. What is accepted must keep every promise of checkpoint/safetensors.h.
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string_view>

#include "base/check.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fathom::checkpoint;
  const auto header = parse_header(std::as_bytes(std::span(data, size)), "fuzz");
  if (!header) {
    FATHOM_CHECK(!header.error().what.empty(), "a refusal says why");
    return 0;
  }
  std::uint64_t at = 0;
  std::set<std::string_view> names;
  for (const TensorInfo& t : header->tensors) {
    std::int64_t n = 0;
    FATHOM_CHECK(element_count(t.shape, n), "shapes have a product");
    FATHOM_CHECK(t.begin <= t.end && t.end <= size, "extents lie inside the file");
    FATHOM_CHECK(t.end - t.begin == static_cast<std::uint64_t>(n) * size_of(t.dtype), "extents fit the shape");
    FATHOM_CHECK(at == 0 || t.begin == at, "payloads follow each other");
    FATHOM_CHECK(names.insert(t.name).second, "names are unique");
    at = t.end;
  }
  FATHOM_CHECK(header->tensors.empty() || at == size, "the last payload ends the file");
  return 0;
}
