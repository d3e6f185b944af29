#include "synthetic_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "quant/bf16.h"

namespace fathom::bench {
namespace {

constexpr std::size_t kPool = std::size_t{64} << 20;

std::uint64_t next(std::uint64_t& s) {
  s ^= s << 13;
  s ^= s >> 7;
  s ^= s << 17;
  return s;
}

}  // namespace

SyntheticDevice::SyntheticDevice(ops::Backend& backend) : backend_(backend), pools_(7) {
  std::uint64_t s = 88172645463325252ULL;
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (std::size_t kind = 0; kind < pools_.size(); ++kind) {
    std::vector<std::byte>& pool = pools_[kind];
    pool.resize(kPool);
    for (std::size_t i = 0; i < kPool; i += 8) {
      const std::uint64_t r = next(s);
      std::uint64_t bytes = r;
      switch (static_cast<Kind>(kind)) {
        case Kind::kFp8: bytes = r & 0xbfbfbfbfbfbfbfbfULL; break;  // below 2: no NaN
        case Kind::kFp4: break;
        case Kind::kBf16:  // +-2^-7 to 2^-5: about 1/sqrt(4096)
          bytes = (r & 0x80ff80ff80ff80ffULL) | 0x3c003c003c003c00ULL;
          break;
        case Kind::kScale: bytes = (r & 0x0101010101010101ULL) | 0x7a7a7a7a7a7a7a7aULL; break;     // 2^-5, 2^-4
        case Kind::kFp4Scale: bytes = (r & 0x0101010101010101ULL) | 0x7676767676767676ULL; break;  // 2^-9, 2^-8
        case Kind::kNorm:
        case Kind::kSmall: {
          const float scale = static_cast<Kind>(kind) == Kind::kNorm ? 0.05F : 0.008F;
          const float mean = static_cast<Kind>(kind) == Kind::kNorm ? 1.0F : 0.0F;
          const float two[2] = {mean + scale * (static_cast<float>(r & 0xffffU) / 32768 - 1),
                                mean + scale * (static_cast<float>(r >> 48) / 32768 - 1)};
          std::memcpy(&bytes, two, 8);
          break;
        }
      }
      std::memcpy(pool.data() + i, &bytes, 8);
    }
  }
}

std::byte* SyntheticDevice::put(Kind kind, std::int64_t n) {
  const std::size_t size = kind == Kind::kBf16 ? 2 : kind == Kind::kNorm || kind == Kind::kSmall ? 4 : 1;
  const std::size_t bytes = static_cast<std::size_t>(n) * size;
  if (!failed_) return nullptr;
  auto memory = backend_.allocate(bytes);
  if (!memory) {
    failed_ = tl::unexpected<Error>(memory.error());
    return nullptr;
  }
  bytes_ += static_cast<double>(bytes);
  const std::vector<std::byte>& pool = pools_[static_cast<std::size_t>(kind)];
  for (std::size_t at = 0; at < bytes;) {
    const std::size_t from = next(seed_) % (kPool / 2) / 64 * 64;
    const std::size_t part = std::min(bytes - at, kPool - from);
    backend_.copy_in(memory->get() + at, pool.data() + from, part);
    at += part;
  }
  return memory_.emplace_back(std::move(*memory)).get();
}

ops::Weight SyntheticDevice::matrix(DType dtype, std::int64_t rows, std::int64_t cols) {
  ops::Weight w{.dtype = dtype, .data = nullptr, .rows = rows, .cols = cols};
  switch (dtype) {
    case DType::kF8E4M3:
      w.data = put(Kind::kFp8, rows * cols);
      w.scales = put(Kind::kScale, (rows + 127) / 128 * ((cols + 127) / 128));
      break;
    case DType::kFp4x2:
      w.data = put(Kind::kFp4, rows * cols / 2);
      w.scales = put(Kind::kFp4Scale, rows * cols / 32);
      break;
    default: w.data = put(Kind::kBf16, rows * cols);
  }
  return w;
}

ops::HyperConnection SyntheticDevice::site(std::int64_t rows, std::int64_t width) {
  return {
      .fn = floats(Kind::kSmall, rows * width), .base = floats(Kind::kSmall, rows), .scale = floats(Kind::kNorm, 4)};
}

ops::ExpertWeights SyntheticDevice::expert(const checkpoint::ModelConfig& c, DType dtype) {
  return {.w1 = matrix(dtype, c.expert_inner, c.hidden),
          .w3 = matrix(dtype, c.expert_inner, c.hidden),
          .w2 = matrix(dtype, c.hidden, c.expert_inner)};
}

model::CompressorWeights SyntheticDevice::compressor(const checkpoint::ModelConfig& c, std::int32_t ratio,
                                                     std::int64_t dim) {
  const std::int64_t width = (ratio == 4 ? 2 : 1) * dim;
  return {.wkv = matrix(DType::kBf16, width, c.hidden),
          .wgate = matrix(DType::kBf16, width, c.hidden),
          .ape = floats(Kind::kSmall, ratio * width),
          .norm = floats(Kind::kNorm, dim)};
}

model::LayerWeights SyntheticDevice::layer(const checkpoint::ModelConfig& c, std::int32_t l) {
  const std::int32_t ratio = c.compress_ratios[static_cast<std::size_t>(l)];
  const std::int64_t width = std::int64_t{c.streams} * c.hidden;
  const std::int64_t mixes = std::int64_t{c.streams} * (2 + c.streams);
  const std::int64_t heads = std::int64_t{c.heads} * c.head_dim;
  model::LayerWeights w{.attn_norm = floats(Kind::kNorm, c.hidden),
                        .ffn_norm = floats(Kind::kNorm, c.hidden),
                        .attn_hc = site(mixes, width),
                        .ffn_hc = site(mixes, width),
                        .attention = {},
                        .moe = {}};
  model::AttentionWeights& a = w.attention;
  a.wq_a = matrix(DType::kF8E4M3, c.q_rank, c.hidden);
  a.q_norm = floats(Kind::kNorm, c.q_rank);
  a.wq_b = matrix(DType::kF8E4M3, heads, c.q_rank);
  a.wkv = matrix(DType::kF8E4M3, c.head_dim, c.hidden);
  a.kv_norm = floats(Kind::kNorm, c.head_dim);
  a.sink = floats(Kind::kSmall, c.heads);
  a.wo_a = matrix(DType::kF8E4M3, std::int64_t{c.o_groups} * c.o_rank, heads / c.o_groups);
  a.wo_b = matrix(DType::kF8E4M3, c.hidden, std::int64_t{c.o_groups} * c.o_rank);
  if (ratio != 0) a.compressor = compressor(c, ratio, c.head_dim);
  if (ratio == 4) {
    a.indexer = {.wq_b = matrix(DType::kF8E4M3, std::int64_t{c.index_heads} * c.index_dim, c.q_rank),
                 .weights_proj = matrix(DType::kBf16, c.index_heads, c.hidden),
                 .compressor = compressor(c, ratio, c.index_dim)};
  }
  w.moe.gate = matrix(DType::kBf16, c.routed_experts, c.hidden);
  w.moe.bias = floats(Kind::kSmall, c.routed_experts);
  w.moe.shared = expert(c, DType::kF8E4M3);
  for (std::int32_t e = 0; e < c.routed_experts; ++e) w.moe.routed.push_back(expert(c, DType::kFp4x2));
  const auto table = backend_.adopt(std::as_bytes(std::span(w.moe.routed)));
  if (table) w.moe.routed_table = reinterpret_cast<const ops::ExpertWeights*>(*table);
  else failed_ = tl::unexpected<Error>(table.error());
  return w;
}

Result<std::unique_ptr<SyntheticDevice>> SyntheticDevice::make(const checkpoint::ModelConfig& c,
                                                               ops::Backend& backend) {
  std::unique_ptr<SyntheticDevice> d(new SyntheticDevice(backend));
  d->weights_.embed = d->matrix(DType::kBf16, c.vocab, c.hidden);
  d->weights_.head = d->matrix(DType::kBf16, c.vocab, c.hidden);
  d->weights_.norm = d->floats(Kind::kNorm, c.hidden);
  d->weights_.hc_head = d->site(c.streams, std::int64_t{c.streams} * c.hidden);
  for (std::int32_t l = 0; l < c.layers; ++l) {
    d->weights_.layers.push_back(d->layer(c, l));
    FATHOM_TRY(std::move(d->failed_));
    d->failed_ = {};
  }
  FATHOM_TRY(backend.finish());
  return d;
}

}  // namespace fathom::bench
