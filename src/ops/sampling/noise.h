// The noise that tokens compete with: counted, not drawn, and the same bits on every processor.
//
// Token `id` of a row is worth (logit - the row's largest) / temperature + noise(key, id), where the noise is Gumbel
// distributed; the token worth most is distributed as the softmax of the tempered logits. All arithmetic is double, by
// operations that IEEE 754 rounds in one way only, and compiled without contraction; so hosts and GPUs agree on every
// winner.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define FATHOM_ANYWHERE __host__ __device__
#else
#define FATHOM_ANYWHERE
#endif

namespace fathom::ops {

namespace noise {

inline constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ULL;
inline constexpr double kLn2 = 0.693147180559945309;

// splitmix64's finaliser: a bijection of 64 bits in which every input bit reaches every output bit.
FATHOM_ANYWHERE constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

// Of token `index` of an answer with this seed.
FATHOM_ANYWHERE constexpr std::uint64_t key(std::uint64_t seed, std::int64_t index) {
  return mix(mix(seed + kGolden) + static_cast<std::uint64_t>(index) * kGolden);
}

FATHOM_ANYWHERE constexpr std::uint64_t bits(std::uint64_t key, std::int32_t id) {
  return mix(key + (static_cast<std::uint64_t>(id) + 1) * kGolden);
}

// 2 artanh(s), |s| <= 0.172: the series, whose remainder is below half a unit in the last place.
FATHOM_ANYWHERE constexpr double twice_artanh(double s) {
  const double z = s * s;
  double p = 2.0 / 21;
  p = p * z + 2.0 / 19;
  p = p * z + 2.0 / 17;
  p = p * z + 2.0 / 15;
  p = p * z + 2.0 / 13;
  p = p * z + 2.0 / 11;
  p = p * z + 2.0 / 9;
  p = p * z + 2.0 / 7;
  p = p * z + 2.0 / 5;
  p = p * z + 2.0 / 3;
  return s * 2 + s * (z * p);
}

// log x within a few units in the last place; x positive and normal.
FATHOM_ANYWHERE constexpr double log(double x) {
  const auto u = __builtin_bit_cast(std::uint64_t, x);
  int exponent = static_cast<int>(u >> 52U) - 1023;
  double m = __builtin_bit_cast(double, (u & 0xfffffffffffffULL) | 0x3ff0000000000000ULL);  // [1, 2)
  if (m > 1.41421356237309515) {
    m *= 0.5;
    ++exponent;
  }
  return exponent * kLn2 + twice_artanh((m - 1) / (m + 1));
}

// With v the 64 bits, u = 1 - (v + 1/2) / 2^64 is uniform and the noise is -log(-log u).
FATHOM_ANYWHERE constexpr double value(std::uint64_t bits) {
  const double wanted = (static_cast<double>(bits) + 0.5) * 0x1p-64;
  // Rounding may reach 1, whose noise would be -inf; the largest double below it stands for it.
  const double complement = wanted < 1 - 0x1p-53 ? wanted : 1 - 0x1p-53;
  const double minus_log_u = complement < 0.25 ? twice_artanh(complement / (2 - complement)) : -log(1 - complement);
  return -log(minus_log_u);
}

// Never below value(bits): -log u >= 1 - u, so the noise is at most -log(1 - u), and v's leading zeros bound that. It
// spares nearly all of a vocabulary two logarithms.
FATHOM_ANYWHERE inline double bound(std::uint64_t bits) {
#ifdef __CUDA_ARCH__
  return (__clzll(static_cast<long long>(bits)) + 1) * kLn2;
#else
  return (std::countl_zero(bits) + 1) * kLn2;
#endif
}

}  // namespace noise

// The one in front in a race of a row's tokens.
struct Leader {
  double worth = 0;
  std::int32_t id = -1;

  // The lower id among equals, so that the order in which they come does not matter.
  FATHOM_ANYWHERE constexpr bool beaten_by(double w, std::int32_t i) const {
    return w > worth || (w == worth && i < id);
  }
};

// A token's worth without its noise. max: the row's largest logit, finite.
FATHOM_ANYWHERE constexpr double tempered(float logit, float max, float temperature) {
  return (double{logit} - double{max}) / double{temperature};
}

}  // namespace fathom::ops

#undef FATHOM_ANYWHERE
