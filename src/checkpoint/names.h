// Tensor names as transformers saves them -> official names. checkpoint.md 7.1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fathom::checkpoint {

// Experts that transformers keeps in one tensor.
enum class Merged : std::uint8_t {
  kNo,
  kGateUp,  // [E, 2I, ...]: per expert the rows of w1, then those of w3
  kDown,    // [E, d, ...]: per expert w2
};

struct OfficialName {
  std::string name;    // kNo: the official name. Else the block's prefix, "layers.3.ffn.experts."
  std::string suffix;  // merged only: "weight" or "scale"
  Merged merged = Merged::kNo;
};

// Whether a name belongs to the transformers convention at all ("model." prefix, or "lm_head.").
bool is_transformers_name(std::string_view name);

// Translates one; a name that the table does not know comes back unchanged.
OfficialName official_name(std::string_view stored);

// The names of the tensors inside a merged one.
std::string merged_part(const OfficialName& merged, std::int64_t expert, std::string_view matrix);

}  // namespace fathom::checkpoint
