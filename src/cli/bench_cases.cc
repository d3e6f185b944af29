#include "cli/bench_cases.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "cache/sequence.h"
#include "cli/compute.h"

namespace fathom::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Keys of recordings that are not a model's: those stay below.
constexpr std::uint64_t kOwnKeys = std::uint64_t{1} << 63;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

// Sequences whose memory holds made-up tokens: what they hold decides no speed, and computing it would take hours.
class MadeUp {
 public:
  MadeUp(const model::Model& m, std::uint32_t seed)
      : m_(m), rng_(seed), page_(m.layout().page_bytes), slot_(m.layout().slot_bytes) {
    for (const model::LayerCache& l : m.layout().layers) {
      for (std::int32_t i = 0; i < l.window.capacity; ++i)
        encode(l.window.codec, slot_.data() + l.window.offset + i * stride(l.window.codec));
      for (const ops::CompressorRing* ring : {&l.compressor, &l.index_compressor}) {
        for (std::int32_t i = 0; i < 2 * ring->width * ring->capacity; ++i) {
          reinterpret_cast<float*>(slot_.data() + ring->offset)[i] = normal_(rng_);
        }
      }
      for (const ops::EntryPages* pages : {&l.entries, &l.index_keys}) {
        for (std::int32_t i = 0; pages->ratio != 0 && i < ops::kPageTokens / pages->ratio; ++i) {
          encode(pages->codec, page_.data() + pages->offset + i * stride(pages->codec));
        }
      }
    }
  }

  Result<cache::Sequence> sequence(std::int32_t length, std::int32_t more) {
    FATHOM_ASSIGN(auto s, cache::Sequence::create(m_.layout(), m_.backend()));
    FATHOM_TRY(s.reserve(length + more));
    m_.backend().copy_in(s.slot(), slot_.data(), slot_.size());
    // The first page from here, the others from the first: a device is far faster at that.
    std::byte* first = nullptr;
    for (std::byte* page : s.pages()) {
      if (first == nullptr) m_.backend().copy_in(page, page_.data(), page_.size());
      else m_.backend().copy(page, first, page_.size());
      if (first == nullptr) first = page;
    }
    s.advance(length);
    return s;
  }

 private:
  static std::int64_t stride(const quant::EntryCodec& codec) { return static_cast<std::int64_t>(codec.bytes()); }
  void encode(const quant::EntryCodec& codec, std::byte* to) {
    values_.resize(static_cast<std::size_t>(codec.dim));
    for (float& v : values_) v = normal_(rng_);
    codec.encode(values_, to);
  }

  const model::Model& m_;
  std::mt19937 rng_;
  std::normal_distribution<float> normal_;
  std::vector<std::byte> page_;
  std::vector<std::byte> slot_;
  std::vector<float> values_;
};

// Seconds of one call: the median of a few rounds, each long enough to time.
Result<double> time_calls(ops::Backend& b, const std::function<void()>& call) {
  for (int i = 0; i < 2; ++i) call();  // run, record
  FATHOM_TRY(b.finish());
  const auto start = Clock::now();
  call();
  FATHOM_TRY(b.finish());
  const int calls = static_cast<int>(std::clamp(2e-3 / std::max(since(start), 1e-7), 1.0, 100.0));
  std::vector<double> rounds;
  for (int r = 0; r < 5; ++r) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    FATHOM_TRY(b.finish());
    rounds.push_back(since(begin) / calls);
  }
  return median(rounds);
}

}  // namespace

double measure_copy_bandwidth(ops::Backend& backend) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  const auto from = backend.allocate(kBytes);
  const auto to = backend.allocate(kBytes);
  if (!from || !to) return 0;
  const auto seconds = time_calls(backend, [&] { backend.copy(to->get(), from->get(), kBytes); });
  return seconds ? 2.0 * kBytes / *seconds : 0;
}

BenchCases::BenchCases(model::Model& m, TapBackend& backend, checkpoint::Inventory inventory)
    : m_(m), backend_(backend), inventory_(std::move(inventory)) {
  const ops::Numerics n = m.options().numerics;
  format_.entries = !n.quantise ? quant::EntryFormat::kF32
                                : (n.carrier == ops::Carrier::kBf16 ? quant::EntryFormat::kFp8RopeBf16
                                                                    : quant::EntryFormat::kFp8RopeF32);
  format_.index_keys = n.quantise ? quant::EntryFormat::kFp4 : quant::EntryFormat::kF32;
}

Result<BenchRow> BenchCases::prefill(std::int32_t tokens, bool operations) {
  BenchRow row{.what = "prefill", .tokens = tokens};
  FATHOM_ASSIGN(auto s, cache::Sequence::create(m_.layout(), m_.backend()));
  const auto read = [&](std::int32_t n) {
    return feed(m_, s, random_ids(n), {}, [](std::int64_t, Mat<const float>) -> Result<> { return {}; });
  };
  std::vector<double> seconds;
  for (int round = 0; round < 3; ++round) {
    s.restart();
    const double before = backend_.flops();
    const auto start = Clock::now();
    FATHOM_TRY(read(tokens));
    seconds.push_back(since(start));
    if (backend_.on_host()) row.flops = backend_.flops() - before;
  }
  row.seconds = median(seconds);
  if (operations) {
    s.restart();
    row.last_step = (tokens - 1) % m_.options().max_step_tokens + 1;
    FATHOM_TRY(read(tokens - row.last_step));
    Result<> again;
    const std::vector<Tapped> tapped = backend_.tap([&] { again = read(row.last_step); });
    FATHOM_TRY(again);
    FATHOM_ASSIGN(row.operations, time_operations(tapped));
  }
  return row;
}

Result<BenchRow> BenchCases::decode(std::int32_t sequences, std::int32_t context, std::int32_t steps, bool operations) {
  BenchRow row{.what = "decode", .tokens = sequences, .context = context};
  row.step_bytes = step_bytes(m_.config(), inventory_, sequences, context);
  MadeUp made_up(m_, 1);
  std::vector<cache::Sequence> all;
  const std::int32_t held = std::min(context, m_.config().max_positions - steps - 1);
  // Where a device would run out, asking is better than finding out: what was handed out is not all given back.
  constexpr std::size_t kForOperations = std::size_t{1} << 30;
  const auto pages = static_cast<std::size_t>(model::CacheLayout::pages_for(std::int64_t{held} + steps + 1));
  const std::size_t needed =
      static_cast<std::size_t>(sequences) * (pages * m_.layout().page_bytes + m_.layout().slot_bytes);
  const std::size_t free = backend_.free_bytes();
  row.fits = free == 0 || needed + kForOperations < free;
  if (!row.fits) return row;
  for (std::int32_t i = 0; i < sequences; ++i) {
    FATHOM_ASSIGN(auto s, made_up.sequence(held, steps + 1));
    all.push_back(std::move(s));
  }
  const auto step = [&]() -> Result<double> {
    const std::vector<std::int32_t> ids = random_ids(sequences);
    std::vector<model::Chunk> chunks;
    for (std::size_t i = 0; i < all.size(); ++i) {
      chunks.push_back({.ids = std::span(ids).subspan(i, 1),
                        .start = all[i].length(),
                        .slot = all[i].slot(),
                        .pages = all[i].pages()});
    }
    const auto start = Clock::now();
    FATHOM_TRY(m_.forward(chunks));
    return since(start);
  };
  std::vector<double> seconds;
  for (std::int32_t i = 0; i <= steps; ++i) {
    const std::uint64_t before = backend_.launches();
    FATHOM_ASSIGN(const double s, step());
    row.launches = backend_.launches() - before;
    if (i > 1 || (i == 1 && steps == 1)) seconds.push_back(s);  // the first warms up, the second may be recorded
    if (i < steps) {
      for (auto& sequence : all) sequence.advance(1);
    }
  }
  row.seconds = median(seconds);
  if (operations) {
    Result<double> again = 0.0;
    const std::vector<Tapped> tapped = backend_.tap([&] { again = step(); });
    FATHOM_TRY(again);
    FATHOM_ASSIGN(row.operations, time_operations(tapped));
  }
  return row;
}

Result<std::vector<OperationRow>> BenchCases::time_operations(const std::vector<Tapped>& all) {
  std::vector<std::pair<std::string, std::vector<const Tapped*>>> kinds;
  for (const Tapped& t : all) {
    auto at = std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) { return kind.first == t.name; });
    if (at == kinds.end()) at = kinds.insert(kinds.end(), {t.name, {}});
    at->second.push_back(&t);
  }
  std::vector<OperationRow> rows;
  ops::Backend& b = backend_.inner();
  for (const auto& [name, list] : kinds) {
    // Some work in place, and run again and again leave numbers that no step has (all tokens then choose the same
    // experts): the step once more, up to here.
    for (const Tapped* t = all.data(); t != list.front(); ++t) t->run(b);
    OperationRow row{.name = name, .calls = static_cast<std::int64_t>(list.size())};
    for (const Tapped* t : list) {
      row.bytes += t->bytes;
      row.flops += t->flops;
    }
    // All layers' together, so that nothing is found in a cache that would not be in a step.
    const auto run = [&b, calls = &list] {
      for (const Tapped* t : *calls) t->run(b);
    };
    const std::uint64_t before = b.launches();
    run();
    row.launches = b.launches() - before;
    const std::uint64_t key = kOwnKeys | next_key_++;
    FATHOM_ASSIGN(row.seconds, time_calls(b, [&] { b.replay(key, run); }));
    rows.push_back(std::move(row));
  }
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& c) { return a.seconds > c.seconds; });
  return rows;
}

double BenchCases::step_bytes(const checkpoint::ModelConfig& c, const checkpoint::Inventory& inventory,
                              std::int32_t sequences, std::int32_t context) const {
  checkpoint::PlanRequest r;
  r.cache = format_;
  r.context = context;
  r.sequences = sequences;
  r.device.name = "cpu";
  return checkpoint::make_plan(c, inventory, r).step_bytes;
}

std::vector<std::int32_t> BenchCases::random_ids(std::int32_t n) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  for (auto& id : ids) id = static_cast<std::int32_t>(rng_() % static_cast<std::uint32_t>(m_.config().vocab));
  return ids;
}

}  // namespace fathom::cli
