// Sequences with a past, on both sides: both start from the same bytes in slots and pages and must leave the same.
#pragma once

#include <algorithm>
#include <deque>

#include "cuda/twin.h"
#include "ops/batch.h"
#include "quant/entry.h"

namespace fathom::testing {

inline quant::EntryCodec entry_codec(std::int32_t dim, std::int32_t rope, ops::Numerics n) {
  quant::EntryFormat f = quant::EntryFormat::kF32;
  if (n.quantise) f = n.carrier == ops::Carrier::kBf16 ? quant::EntryFormat::kFp8RopeBf16 : quant::EntryFormat::kFp8RopeF32;
  return {f, dim, rope};
}
inline quant::EntryCodec key_codec(std::int32_t dim, std::int32_t rope, ops::Numerics n) {
  return {n.quantise ? quant::EntryFormat::kFp4 : quant::EntryFormat::kF32, dim, rope};
}

// Rows as an entry of codec `c` can have them: then storing them loses nothing.
inline std::vector<float> storable(std::vector<float> rows, const quant::EntryCodec& c) {
  std::vector<std::byte> bytes(c.bytes());
  for (std::size_t at = 0; at < rows.size(); at += static_cast<std::size_t>(c.dim)) {
    const std::span<float> row = std::span(rows).subspan(at, static_cast<std::size_t>(c.dim));
    c.encode(row, bytes.data());
    c.decode(bytes.data(), row);
  }
  return rows;
}

// What each sequence of a step has behind it, and how many tokens it brings.
struct Part {
  std::int32_t start;
  std::int32_t tokens;
};

// Sequences with one window ring, one compressor ring and one set of entries, filled with random values.
struct World {
  World(const std::vector<Part>& parts_, std::int32_t ratio, quant::EntryCodec window, quant::EntryCodec entry,
        std::int32_t ring_capacity, std::int32_t compressor_width, std::uint32_t seed, std::int32_t rollback = 0)
      : parts(parts_) {
    ring = {.offset = 64, .capacity = ring_capacity, .codec = window};
    std::size_t slot_bytes = 64 + window.bytes() * static_cast<std::size_t>(ring_capacity);
    slot_bytes = (slot_bytes + 63) / 64 * 64;
    compressor = {.offset = static_cast<std::int64_t>(slot_bytes),
                  .capacity = (ratio == 4 ? 8 : std::max(ratio, 1)) + rollback,
                  .width = compressor_width};
    slot_bytes +=
        sizeof(float) * 2 * static_cast<std::size_t>(compressor_width) * static_cast<std::size_t>(compressor.capacity);
    std::size_t page_bytes = 64;
    if (ratio != 0) {
      entries = {.offset = 64, .ratio = ratio, .codec = entry};
      page_bytes += entry.bytes() * static_cast<std::size_t>(ops::kPageTokens / ratio);
    }
    std::mt19937 rng(seed);
    const auto fill = [&](std::vector<std::byte>& memory, std::size_t offset, std::size_t n, const quant::EntryCodec& codec) {
      const auto dim = static_cast<std::size_t>(codec.dim);
      const auto v = normal(static_cast<std::int64_t>(n * dim), static_cast<std::uint32_t>(rng()), 1, ops::Carrier::kBf16);
      for (std::size_t i = 0; i < n; ++i) {
        codec.encode(std::span(v).subspan(i * dim, dim), memory.data() + offset + i * codec.bytes());
      }
    };
    std::int32_t row = 0;
    for (const Part& p : parts) {
      std::vector<std::byte> slot(slot_bytes);
      fill(slot, 64, static_cast<std::size_t>(ring_capacity), window);
      const auto rows = normal(2L * compressor_width * compressor.capacity, static_cast<std::uint32_t>(rng()));
      if (!rows.empty()) std::memcpy(slot.data() + compressor.offset, rows.data(), rows.size() * sizeof(float));
      slots.emplace_back(std::move(slot));
      ops::Segment s{.first_row = row,
                     .tokens = p.tokens,
                     .start = p.start,
                     .n_pages = (p.start + p.tokens + ops::kPageTokens - 1) / ops::kPageTokens};
      std::vector<std::byte*> on_host;
      std::vector<std::byte*> on_device;
      for (std::int32_t i = 0; i < s.n_pages; ++i) {
        std::vector<std::byte> page(page_bytes);
        if (ratio != 0) fill(page, 64, static_cast<std::size_t>(ops::kPageTokens / ratio), entry);
        pages.emplace_back(std::move(page));
        on_host.push_back(pages.back().host().data());
        on_device.push_back(pages.back().device());
      }
      host_tables.push_back(on_host);
      device_tables.emplace_back(on_device);
      host_segments.push_back(s);
      for (std::int32_t i = 0; i < p.tokens; ++i, ++row) {
        positions.push_back(p.start + i);
        segment_of.push_back(static_cast<std::int32_t>(host_segments.size()) - 1);
        longest = std::max(longest, p.start + i + 1);
      }
    }
    std::vector<ops::Segment> device_segments = host_segments;
    for (std::size_t i = 0; i < host_segments.size(); ++i) {
      host_segments[i].slot = slots[i].host().data();
      host_segments[i].pages = host_tables[i].data();
      device_segments[i].slot = slots[i].device();
      device_segments[i].pages = device_tables[i].device();
    }
    segments = Twin<ops::Segment>(device_segments);
    position_twin = Twin<std::int32_t>(positions);
    segment_twin = Twin<std::int32_t>(segment_of);
  }

  std::int64_t tokens() const { return static_cast<std::int64_t>(positions.size()); }
  ops::Batch on_host() const {
    return {.tokens = static_cast<std::int32_t>(tokens()),
            .n_segments = static_cast<std::int32_t>(host_segments.size()),
            .longest = longest,
            .segments = host_segments.data(),
            .segment_of = segment_of.data(),
            .positions = positions.data()};
  }
  ops::Batch on_device(std::int32_t slack = 0) const {
    return {.tokens = static_cast<std::int32_t>(tokens()),
            .n_segments = static_cast<std::int32_t>(host_segments.size()),
            .longest = longest + slack,
            .segments = segments.device(),
            .segment_of = segment_twin.device(),
            .positions = position_twin.device()};
  }

  std::vector<Part> parts;
  ops::WindowRing ring;
  ops::CompressorRing compressor;
  ops::EntryPages entries;
  std::vector<Twin<std::byte>> slots;
  std::deque<Twin<std::byte>> pages;
  std::deque<std::vector<std::byte*>> host_tables;
  std::vector<Twin<std::byte*>> device_tables;
  std::vector<ops::Segment> host_segments;
  Twin<ops::Segment> segments;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> segment_of;
  Twin<std::int32_t> position_twin;
  Twin<std::int32_t> segment_twin;
  std::int32_t longest = 0;
};

// Without those of many tokens and of just one, where sizes are to be small.
inline std::vector<std::vector<Part>> sized(std::vector<std::vector<Part>> mixtures) {
  if (!small_sizes()) return mixtures;
  std::erase_if(mixtures, [](const std::vector<Part>& parts) {
    return (parts.size() == 1 && parts[0].tokens == 1) ||
           std::any_of(parts.begin(), parts.end(), [](const Part& p) { return p.tokens > 20; });
  });
  return mixtures;
}

inline const std::vector<std::vector<Part>> kMixtures = sized({
    {{0, 1}},
    {{0, 5}},
    {{3, 1}},
    {{127, 1}},
    {{128, 1}},
    {{511, 1}},
    {{1000, 1}, {0, 3}, {63, 1}, {254, 7}},
    {{0, 300}},
    {{77, 130}, {0, 128}, {383, 1}},
    {{1000, 1}, {3, 1}, {126, 4}, {2, 2}, {127, 1}},
    {},
});

}  // namespace fathom::testing
