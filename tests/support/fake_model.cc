#include "support/fake_model.h"

#include <algorithm>
#include <cstring>

namespace fathom::testing {
namespace {

using Hash = FakeModel::Hash;
constexpr Hash kPlace = 0xabcdef12345ULL;
constexpr Hash kNothing = 0x9e3779b97f4a7c15ULL;
// Entries checked back from the newest one at each step; older ones were checked when they were among these.
constexpr std::int32_t kEntriesChecked = 70;

Hash mix(Hash x) {
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

// The same hash looks different in each place, so that one layer's row cannot pass for another's.
template <class Row>
void put(std::byte* at, const Row& row, std::size_t place) {
  const Hash h[2] = {row.own ^ place * kPlace, row.before ^ place * kPlace};
  std::memcpy(at, h, sizeof h);
}
template <class Row>
Row get(const std::byte* at, std::size_t place) {
  Hash h[2];
  std::memcpy(h, at, sizeof h);
  return {h[0] ^ place * kPlace, h[1] ^ place * kPlace};
}

// Not the offset in the slot: that may differ from run to run.
std::size_t place_of(const ops::CompressorRing& ring) { return 1000 + static_cast<std::size_t>(ring.width); }
std::size_t place_of(const ops::EntryPages& pages) { return 2000 + static_cast<std::size_t>(pages.codec.dim); }

}  // namespace

FakeModel::FakeModel(const FakeShape& shape) : shape_(shape) {
  checkpoint::ModelConfig c;
  c.head_dim = 4;  // 16 bytes an entry in f32: a hash and a link
  c.index_dim = 5;
  c.window = shape.window;
  c.compress_ratios = shape.ratios;
  c.layers = static_cast<std::int32_t>(shape.ratios.size());
  c.draft.stages = shape.draft ? 1 : 0;
  layout_ = model::plan_cache(c, ops::kFloat, shape.rollback);
}

Hash FakeModel::next(Hash before, std::int32_t token) { return mix(before + mix(static_cast<Hash>(token) + kNothing)); }

Hash FakeModel::hash(std::span<const std::int32_t> tokens) {
  Hash h = kNothing;
  for (const std::int32_t t : tokens) h = next(h, t);
  return h;
}

FakeModel::Row FakeModel::window_row(std::size_t layer, std::byte* slot, std::int32_t position) const {
  return get<Row>(layout_.layers[layer].window.at(slot, position), layer);
}
FakeModel::Row FakeModel::compressor_row(const ops::CompressorRing& ring, std::byte* slot,
                                         std::int32_t position) const {
  return get<Row>(reinterpret_cast<const std::byte*>(ring.row(slot, position)), place_of(ring));
}
FakeModel::Row FakeModel::entry(const ops::EntryPages& pages, const model::Chunk& chunk, std::int32_t w) const {
  const ops::Segment s{.pages = chunk.pages.data()};
  return get<Row>(pages.at(s, w), place_of(pages));
}

Hash FakeModel::newest(const model::Chunk& chunk) const {
  return chunk.start == 0 ? kNothing : window_row(0, chunk.slot, chunk.start - 1).own;
}

void FakeModel::expect(bool ok, const char* what, std::size_t layer, std::int32_t position, std::int32_t start) {
  if (ok || !error_.empty()) return;
  error_ = std::string(what) + " of layer " + std::to_string(layer) + " at " + std::to_string(position) +
           " is wrong for a sequence at " + std::to_string(start);
}

void FakeModel::check(const model::Chunk& chunk) {
  const std::int32_t n = chunk.start;
  // The hashes of the last positions, from the layer with the longest memory of them: recent[n - 1 - p].
  std::vector<Hash> recent{newest(chunk)};
  for (std::size_t l = 0; l < shape_.ratios.size(); ++l) {
    Hash want = recent[0];
    for (std::int32_t p = n - 1; p >= std::max(0, n - shape_.window + 1); --p) {
      const Row row = window_row(l, chunk.slot, p);
      expect(row.own == want, "the window", l, p, n);
      want = row.before;
      if (static_cast<std::int32_t>(recent.size()) <= n - p) recent.push_back(want);
    }
    const model::LayerCache& layer = layout_.layers[l];
    if (layer.ratio == 0) continue;
    for (const ops::CompressorRing* ring : {&layer.compressor, &layer.index_compressor}) {
      if (ring->capacity == 0) continue;
      const std::int32_t cut = n - n % layer.ratio;
      want = recent[0];
      for (std::int32_t p = n - 1; p >= std::max(0, cut - (layer.ratio == 4 ? 4 : 0)); --p) {
        const Row row = compressor_row(*ring, chunk.slot, p);
        expect(row.own == want, "the compressor", l, p, n);
        want = row.before;
        if (static_cast<std::int32_t>(recent.size()) <= n - p) recent.push_back(want);
      }
    }
  }
  for (const model::LayerCache& layer : layout_.layers) {
    if (layer.ratio != 0) check_entries(layer.entries, chunk, layer.ratio, recent);
    if (layer.ratio == 4) check_entries(layer.index_keys, chunk, layer.ratio, recent);
  }
}

// recent[k] is the hash after position n - 1 - k.
void FakeModel::check_entries(const ops::EntryPages& pages, const model::Chunk& chunk, std::int32_t ratio,
                              std::span<const Hash> recent) {
  const std::int32_t n = chunk.start;
  const std::int32_t entries = n / ratio;
  if (entries == 0) return;
  const auto back = static_cast<std::size_t>(n - entries * ratio);  // tokens since the newest entry was completed
  bool known = back < recent.size();
  Hash want = known ? recent[back] : 0;
  for (std::int32_t w = entries - 1; w >= std::max(0, entries - kEntriesChecked); --w) {
    const Row row = entry(pages, chunk, w);
    expect(!known || row.own == want, "an entry", static_cast<std::size_t>(ratio), w, n);
    want = row.before;
    known = true;
  }
  // And one border far back, another one at each step.
  if (entries > kEntriesChecked + 1) {
    const auto w = static_cast<std::int32_t>(mix(static_cast<Hash>(n)) % static_cast<Hash>(entries - 1));
    expect(entry(pages, chunk, w + 1).before == entry(pages, chunk, w).own, "an old entry",
           static_cast<std::size_t>(ratio), w, n);
  }
}

void FakeModel::write(const model::Chunk& chunk, std::int32_t position, Row row) {
  for (std::size_t l = 0; l < shape_.ratios.size(); ++l) {
    const model::LayerCache& layer = layout_.layers[l];
    put(layer.window.at(chunk.slot, position), row, l);
    if (layer.ratio == 0) continue;
    const ops::Segment s{.pages = chunk.pages.data()};
    const auto one = [&](const ops::CompressorRing& ring, const ops::EntryPages& pages) {
      put(reinterpret_cast<std::byte*>(ring.row(chunk.slot, position)), row, place_of(ring));
      if ((position + 1) % layer.ratio != 0) return;
      const std::int32_t w = position / layer.ratio;
      const Hash before = w == 0 ? kNothing : entry(pages, chunk, w - 1).own;
      put(pages.at(s, w), Row{row.own, before}, place_of(pages));
    };
    one(layer.compressor, layer.entries);
    if (layer.ratio == 4) one(layer.index_compressor, layer.index_keys);
  }
}

std::vector<Hash> FakeModel::trunk(const model::Chunk& chunk) {
  if (chunk.ids.empty()) return {};
  check(chunk);
  std::vector<Hash> out;
  Hash h = newest(chunk);
  for (std::size_t i = 0; i < chunk.ids.size(); ++i) {
    const Hash before = h;
    h = next(h, chunk.ids[i]);
    write(chunk, chunk.start + static_cast<std::int32_t>(i), {h, before});
    out.push_back(h);
  }
  return out;
}

void FakeModel::draft(const model::Chunk& chunk, std::span<const Hash> streams) {
  const std::size_t l = shape_.ratios.size();
  const auto is_cleared = [l](const Row& row) { return row.own == (l * kPlace) && row.before == (l * kPlace); };
  // A draft row holds the trunk's hash at its position, and that mixed with the token after it: the trunk's next hash.
  Hash want = chunk.ids.empty() ? 0 : streams[0];
  for (std::int32_t p = chunk.start - 1; p >= std::max(0, chunk.start - shape_.window + 1) && !chunk.ids.empty(); --p) {
    const Row row = window_row(l, chunk.slot, p);
    if (is_cleared(row)) {
      ++cleared_windows_;
      break;
    }
    expect(row.own == want, "the draft window", l, p, chunk.start);
    want = row.before;
  }
  for (std::size_t i = 0; i < chunk.ids.size(); ++i) {
    const std::int32_t p = chunk.start + static_cast<std::int32_t>(i);
    put(layout_.layers[l].window.at(chunk.slot, p), Row{next(streams[i], chunk.ids[i]), streams[i]}, l);
  }
}

}  // namespace fathom::testing
