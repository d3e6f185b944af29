// Numerics: which rounding points of the specification exist. A property of the loaded model, not of a backend.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "quant/bf16.h"

namespace fathom::ops {

// What a value becomes when one operation hands it to the next.
enum class Carrier : std::uint8_t { kF32, kBf16 };

inline float carry(double x, Carrier c) {
  const auto f = static_cast<float>(x);
  return c == Carrier::kBf16 ? quant::round_bf16(f) : f;
}

struct Numerics {
  bool quantise = false;  // activations in front of FP8/FP4 weights, cache entries, index queries and keys: model.md 9
  Carrier carrier = Carrier::kF32;
  bool operator==(const Numerics&) const = default;
};

// model.md 0.3: mode F, mode Q ("q32"), mode S ("qbf16").
inline constexpr Numerics kFloat = {false, Carrier::kF32};
inline constexpr Numerics kOfficial = {true, Carrier::kF32};
inline constexpr Numerics kOfficialBf16 = {true, Carrier::kBf16};

constexpr std::optional<Numerics> numerics_by_name(std::string_view name) {
  if (name == "float") return kFloat;
  if (name == "official") return kOfficial;
  if (name == "official-bf16") return kOfficialBf16;
  return std::nullopt;
}

constexpr std::string_view name_of(const Numerics& n) {
  if (!n.quantise) return "float";
  return n.carrier == Carrier::kBf16 ? "official-bf16" : "official";
}

}  // namespace fathom::ops
