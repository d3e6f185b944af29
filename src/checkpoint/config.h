// config.json -> ModelConfig. checkpoint.md 2.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "checkpoint/model_config.h"

namespace fathom::checkpoint {

// Largest config.json that is read; published ones are under 4 KB.
inline constexpr std::size_t kMaxConfigBytes = 1 << 20;

// Reads the published form and the one transformers 5.17 writes (checkpoint.md 2.3), told apart field by field; a field
// present in both forms must agree. The draft's kind and stage count are left open (the tensors decide,
// checkpoint.md 8.5); its DSpark constants are filled where the file has them. Every problem is reported, one line
// each. `what` names the file. Errors: kInvalid (not JSON; a field missing, of the wrong type or out of bounds; another
// architecture).
Result<ModelConfig> parse_config(std::string_view text, std::string_view what);

// The bounds every ModelConfig keeps, however it came to be; all violations, one line each. Errors: kInvalid.
Result<> validate(const ModelConfig& config);

// The published form, such that parse_config() gives `config` back (draft kind and stages aside).
std::string to_json(const ModelConfig& config);

}  // namespace fathom::checkpoint
