#include "checkpoint/random_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string_view>

#include "base/check.h"
#include "quant/bf16.h"
#include "quant/e4m3.h"
#include "quant/ue8m0.h"

namespace fathom::checkpoint {
namespace {

// A random byte picks one of 256 quantiles of a normal distribution with this deviation; the outermost, 2.9 deviations
// out, then just fits E4M3.
constexpr double kCodesStd = 150;
// Root mean square of the 16 FP4 codes, all equally likely.
constexpr double kPairsStd = 2.926;

// Finalizer of splitmix64: every output bit depends on every input bit.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::uint64_t hash_of(std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return h;
}

// The value below which a standard normal variable lies with probability p, 0 < p < 1, by bisection on erfc.
double normal_quantile(double p) {
  double low = -9;
  double high = 9;
  for (int i = 0; i < 60; ++i) {
    const double x = (low + high) / 2;
    (std::erfc(-x / std::sqrt(2.0)) / 2 < p ? low : high) = x;
  }
  return (low + high) / 2;
}

bool is_norm(const Slot& slot) { return slot.form == Form::kPlain && slot.shape.size() == 1; }
bool is_hc_scale(const Slot& slot) { return slot.form == Form::kFull && slot.name.ends_with("_scale"); }

// The standard deviation of an unquantised tensor.
float deviation(const Slot& slot) {
  if (slot.name == "embed.weight") return 1.0F;
  if (slot.shape.size() == 1 || slot.name.ends_with("ape")) return 0.1F;
  return 1.0F / std::sqrt(static_cast<float>(slot.shape.back()));
}

}  // namespace

NormalTable::NormalTable() : values_(kSize) {
  for (std::size_t i = 0; i < kSize; ++i) {
    values_[i] = static_cast<float>(normal_quantile((static_cast<double>(i) + 0.5) / kSize));
  }
}

RandomWeights::RandomWeights(const ModelConfig& config, const Slot& slot, const StoredTensor& stored,
                             std::uint64_t seed, const NormalTable& normal)
    : dtype_(stored.dtype), key_(mix(seed ^ hash_of(stored.name))) {
  if (stored.scale) {
    const double codes = stored.weight_dtype == DType::kFp4x2 ? kPairsStd : kCodesStd;
    scale_ = static_cast<float>(1.0 / (codes * std::sqrt(static_cast<double>(slot.shape.back()))));
    scale_code_ = quant::ue8m0_ceil(scale_);
    kind_ = dtype_ == DType::kF8E8M0 ? Kind::kScales8 : Kind::kScales32;
  } else if (slot.form == Form::kIds) {
    kind_ = Kind::kIds;
    experts_ = static_cast<std::uint64_t>(config.routed_experts);
    columns_ = static_cast<std::uint64_t>(slot.shape.back());
  } else if (dtype_ == DType::kFp4x2) {
    kind_ = Kind::kPairs4;
  } else if (dtype_ == DType::kF8E4M3) {
    kind_ = Kind::kCodes8;
    constexpr std::size_t kStep = NormalTable::kSize / 256;
    for (std::size_t i = 0; i < codes_.size(); ++i) {
      codes_[i] = quant::to_e4m3(static_cast<float>(kCodesStd) * normal[i * kStep + kStep / 2]);
    }
  } else {
    const bool near_one = is_norm(slot) || is_hc_scale(slot);
    kind_ = near_one ? Kind::kNearOne : Kind::kNormal;
    values_.resize(NormalTable::kSize);
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i] = near_one ? 1.0F + 0.1F * normal[i] : deviation(slot) * normal[i];
    }
  }
}

std::uint64_t RandomWeights::word(std::uint64_t index) const { return mix(key_ + index * 0x9e3779b97f4a7c15ULL); }

// Ids of one token: a random start and a stride without a factor in common with the number of experts, so that no
// expert is named twice.
std::uint64_t RandomWeights::word_of_ids(std::uint64_t element) const {
  const std::uint64_t bits = mix(key_ + (element / columns_) * 0x9e3779b97f4a7c15ULL);
  std::uint64_t stride = 1 + (bits >> 32) % experts_;
  while (std::gcd(stride, experts_) != 1) ++stride;
  return ((bits & 0xffffffffULL) + (element % columns_) * stride) % experts_;
}

void RandomWeights::fill(std::uint64_t first, std::span<std::byte> out) const {
  FATHOM_CHECK(first % 8 == 0, "a place that starts a word");
  std::array<std::uint8_t, 8> bytes{};
  for (std::size_t at = 0; at < out.size(); at += 8) {
    const std::uint64_t index = (first + at) / 8;
    std::uint64_t w = kind_ == Kind::kIds ? word_of_ids(index) : word(index);
    switch (kind_) {
      case Kind::kIds:
      case Kind::kPairs4: break;
      case Kind::kCodes8:
        for (std::size_t i = 0; i < 8; ++i) bytes[i] = codes_[(w >> (8 * i)) & 255U];
        std::memcpy(&w, bytes.data(), 8);
        break;
      case Kind::kScales8:
        for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::uint8_t>(scale_code_ - ((w >> i) & 1U));
        std::memcpy(&w, bytes.data(), 8);
        break;
      case Kind::kScales32: {
        std::array<float, 2> v{};
        for (std::size_t i = 0; i < 2; ++i) {
          v[i] = scale_ * (0.75F + static_cast<float>((w >> (32 * i)) & 0xffffU) * 0x1p-17F);
        }
        std::memcpy(&w, v.data(), 8);
        break;
      }
      case Kind::kNormal:
      case Kind::kNearOne:
        if (dtype_ == DType::kBf16) {
          std::array<quant::Bf16, 4> v{};
          for (std::size_t i = 0; i < 4; ++i) v[i] = quant::to_bf16(values_[(w >> (16 * i)) % NormalTable::kSize]);
          std::memcpy(&w, v.data(), 8);
        } else {
          const std::array<float, 2> v = {values_[w % NormalTable::kSize], values_[(w >> 32) % NormalTable::kSize]};
          std::memcpy(&w, v.data(), 8);
        }
        break;
    }
    std::memcpy(out.data() + at, &w, std::min<std::size_t>(8, out.size() - at));
  }
}

}  // namespace fathom::checkpoint
