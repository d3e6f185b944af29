#include "checkpoint/synthetic.h"

#include <algorithm>
#include <array>
#include <map>
#include <new>
#include <set>
#include <system_error>

#include "base/check.h"
#include "base/memory.h"
#include "checkpoint/config.h"
#include "checkpoint/index.h"
#include "checkpoint/random_weights.h"
#include "checkpoint/writer.h"

namespace fathom::checkpoint {
namespace {

// What one thread makes at a time; also the unit between two writes is a few of these.
constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;
constexpr std::uint64_t kWriteBytes = std::uint64_t{64} << 20;

struct Planned {
  Slot slot;
  StoredTensor stored;
  std::uint64_t bytes = 0;
};

// One file: what a trunk layer, a draft stage, the embedding or the head has, in the order observed in published files.
struct Shard {
  std::vector<Planned> tensors;
  std::uint64_t bytes = 0;
};

int file_order(DType t) {
  constexpr std::array kOrder = {DType::kI64,    DType::kI32,    DType::kF32,  DType::kBf16,
                                 DType::kF8E8M0, DType::kF8E4M3, DType::kFp4x2};
  return static_cast<int>(std::find(kOrder.begin(), kOrder.end(), t) - kOrder.begin());
}

std::vector<Shard> plan_shards(const SyntheticSpec& spec) {
  // checkpoint.md 3: embedding, layers, head and final norms, draft stages.
  const auto layers = static_cast<std::size_t>(spec.config.layers);
  std::vector<Shard> shards(layers + 2 + static_cast<std::size_t>(spec.config.draft.stages));
  for_each_stored(spec.config, spec.storage, [&](const Slot& slot, const StoredTensor& stored) {
    std::size_t i = layers + 1;
    if (slot.group == Group::kEmbedding) i = 0;
    else if (slot.layer >= 0) i = static_cast<std::size_t>(slot.layer) + 1;
    else if (slot.stage >= 0) i = layers + 2 + static_cast<std::size_t>(slot.stage);
    shards[i].bytes += stored.bytes();
    shards[i].tensors.push_back({slot, stored, stored.bytes()});
  });
  for (Shard& s : shards) {
    std::sort(s.tensors.begin(), s.tensors.end(), [](const Planned& a, const Planned& b) {
      const int fa = file_order(a.stored.dtype);
      const int fb = file_order(b.stored.dtype);
      return fa != fb ? fa < fb : a.stored.name < b.stored.name;
    });
  }
  return shards;
}

std::string shard_name(std::size_t i, std::size_t n) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, n);
}

// A stretch of a tensor and where its bytes go.
struct Piece {
  const Planned* tensor = nullptr;
  std::uint64_t first = 0;
  std::span<std::byte> out;
};

bool shares_bytes(const SyntheticSpec& spec, const Slot& slot) {
  return spec.one_expert && slot.group == Group::kRoutedExperts;
}

// "w1.weight" of "layers.3.ffn.experts.17.w1.weight".
std::string expert_part(const Slot& slot, const StoredTensor& stored) {
  const std::string expert = fmt::format(".experts.{}.", slot.expert);
  return stored.name.substr(stored.name.find(expert) + expert.size());
}

// Of those, what is made: experts that share bytes once.
std::uint64_t made_bytes(const SyntheticSpec& spec) {
  std::uint64_t bytes = 0;
  std::set<std::string> experts;
  for_each_stored(spec.config, spec.storage, [&](const Slot& slot, const StoredTensor& t) {
    if (!shares_bytes(spec, slot) || experts.insert(expert_part(slot, t)).second) bytes += t.bytes();
  });
  return bytes;
}

class Maker {
 public:
  Maker(const SyntheticSpec& spec, ThreadPool& pool, const SyntheticProgress& progress)
      : spec_(spec), pool_(pool), progress_(progress), all_(made_bytes(spec)) {}

  std::uint64_t all() const { return all_; }

  void make(std::span<const Piece> pieces) {
    std::uint64_t bytes = 0;
    for (const Piece& p : pieces) bytes += p.out.size();
    pool_.parallel_for(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Piece& p = pieces[static_cast<std::size_t>(i)];
        RandomWeights(spec_.config, p.tensor->slot, p.tensor->stored, spec_.seed, normal_).fill(p.first, p.out);
      }
    });
    report(bytes);
  }
  void report(std::uint64_t bytes) {
    done_ += bytes;
    if (progress_) progress_(done_, all_);
  }

 private:
  const SyntheticSpec& spec_;
  ThreadPool& pool_;
  const SyntheticProgress& progress_;
  NormalTable normal_;
  std::uint64_t all_ = 0;
  std::uint64_t done_ = 0;
};

// Cuts a tensor whose bytes go to out into pieces for the threads.
void cut(const Planned& t, std::uint64_t first, std::span<std::byte> out, std::vector<Piece>& pieces) {
  for (std::uint64_t at = 0; at < out.size(); at += kChunk) {
    pieces.push_back({&t, first + at, out.subspan(at, std::min<std::uint64_t>(kChunk, out.size() - at))});
  }
}

Result<> write_random(AtomicFile& file, const Shard& shard, Maker& maker) {
  std::vector<std::byte> buffer(std::min(kWriteBytes, shard.bytes));
  std::vector<Piece> pieces;
  std::uint64_t used = 0;
  const auto flush = [&]() -> Result<> {
    maker.make(pieces);
    FATHOM_TRY(file.write(std::span(buffer).first(used)));
    pieces.clear();
    used = 0;
    return {};
  };
  for (const Planned& t : shard.tensors) {
    for (std::uint64_t first = 0; first < t.bytes;) {
      // Pieces start at multiples of 8 inside their tensor, wherever that lies.
      std::uint64_t n = std::min(t.bytes - first, buffer.size() - used);
      if (n < t.bytes - first) n &= ~std::uint64_t{7};
      if (n == 0) {
        FATHOM_TRY(flush());
        continue;
      }
      cut(t, first, std::span(buffer).subspan(used, n), pieces);
      first += n;
      used += n;
    }
  }
  return flush();
}

Result<> prepare_folder(const std::filesystem::path& folder, std::uint64_t bytes) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fail(Code::kNotFound, "{}: cannot make the folder: {}", folder.string(), error.message());
  const bool empty = std::filesystem::is_empty(folder, error);
  if (error || !empty) return fail(Code::kInvalid, "{}: found files in it, expected an empty folder", folder.string());
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (!error && space.available < bytes) {
    return fail(Code::kExhausted, "{}: {} bytes free on the disk, {} needed", folder.string(), space.available, bytes);
  }
  return {};
}

std::string index_text(const std::vector<Shard>& shards, std::uint64_t total) {
  std::string text = fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{", total);
  const char* separator = "\n";
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const Planned& t : shards[i].tensors) {
      text += fmt::format("{}    \"{}\": \"{}\"", separator, t.stored.name, shard_name(i, shards.size()));
      separator = ",\n";
    }
  }
  return text + "\n  }\n}\n";
}

constexpr std::uint64_t kAlign = 64;
std::uint64_t aligned(std::uint64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

}  // namespace

class SyntheticBuilder {
 public:
  SyntheticBuilder(const SyntheticSpec& spec, Maker& maker) : spec_(spec), maker_(maker) {}

  Result<Checkpoint> build() {
    c_.path_ = fmt::format("synthetic, seed {}", spec_.seed);
    c_.config_ = spec_.config;
    const std::vector<Shard> shards = plan_shards(spec_);
    for (std::size_t i = 0; i < shards.size(); ++i) {
      c_.files_.push_back({shard_name(i, shards.size()), shards[i].bytes});
      FATHOM_TRY(add(shards[i], static_cast<std::uint32_t>(i)));
    }
    std::sort(c_.tensors_.begin(), c_.tensors_.end(), [](const Tensor& a, const Tensor& b) { return a.name < b.name; });
    return std::move(c_);
  }

 private:
  // One allocation a shard; every tensor starts a cache line.
  Result<> add(const Shard& shard, std::uint32_t file) {
    std::uint64_t size = kAlign;
    std::vector<bool> fresh;
    for (const Planned& t : shard.tensors) {
      fresh.push_back(!shares_bytes(spec_, t.slot) || experts_.emplace(expert_part(t.slot, t.stored), nullptr).second);
      if (fresh.back()) size += aligned(t.bytes);
    }
    std::unique_ptr<std::byte[]> buffer(new (std::nothrow) std::byte[size]);
    if (buffer == nullptr) return fail(Code::kExhausted, "no memory for {} bytes of synthetic weights", size);
    std::uint64_t at = kAlign - reinterpret_cast<std::uintptr_t>(buffer.get()) % kAlign;
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < shard.tensors.size(); ++i) {
      const Planned& t = shard.tensors[i];
      std::byte* bytes = buffer.get() + at;
      if (fresh[i]) {
        cut(t, 0, {bytes, t.bytes}, pieces);
        at += aligned(t.bytes);
      }
      if (shares_bytes(spec_, t.slot)) {
        std::byte*& first = experts_[expert_part(t.slot, t.stored)];
        if (fresh[i]) first = bytes;
        bytes = first;
      }
      c_.tensors_.push_back({t.stored.name, t.stored.dtype, t.stored.shape, {bytes, t.bytes}, file, {}});
    }
    // A few pieces at a time, so that progress shows.
    constexpr std::size_t kStride = 256;
    for (std::size_t i = 0; i < pieces.size(); i += kStride) {
      maker_.make(std::span(pieces).subspan(i, std::min(kStride, pieces.size() - i)));
    }
    c_.copied_bytes_ += size;
    c_.owned_.push_back(std::move(buffer));
    return {};
  }

  const SyntheticSpec& spec_;
  Maker& maker_;
  Checkpoint c_;
  std::map<std::string, std::byte*> experts_;  // expert_part -> the bytes that all of them share
};

std::uint64_t synthetic_bytes(const SyntheticSpec& spec) {
  std::uint64_t bytes = 0;
  for_each_stored(spec.config, spec.storage, [&](const Slot&, const StoredTensor& t) { bytes += t.bytes(); });
  return bytes;
}

Result<Checkpoint> synthesize(const SyntheticSpec& spec, ThreadPool& pool, const SyntheticProgress& progress) {
  FATHOM_TRY(validate(spec.config));
  Maker maker(spec, pool, progress);
  const std::uint64_t available = machine_memory().available_bytes;
  if (available != 0 && maker.all() > available) {
    return fail(Code::kExhausted, "synthetic weights: {} bytes needed, {} bytes of memory available", maker.all(),
                available);
  }
  return SyntheticBuilder(spec, maker).build();
}

Result<> write_synthetic(const SyntheticSpec& spec, const std::filesystem::path& folder, ThreadPool& pool,
                         Payload payload, const SyntheticProgress& progress) {
  FATHOM_TRY(validate(spec.config));
  FATHOM_CHECK(!spec.one_expert, "files hold every expert's own bytes");
  Maker maker(spec, pool, progress);
  FATHOM_TRY(prepare_folder(folder, payload == Payload::kRandom ? maker.all() : 0));
  const std::vector<Shard> shards = plan_shards(spec);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    std::vector<OutTensor> tensors;
    for (const Planned& t : shards[i].tensors) tensors.push_back({t.stored.name, t.stored.dtype, t.stored.shape, {}});
    FATHOM_ASSIGN(AtomicFile file, AtomicFile::create(folder / shard_name(i, shards.size())));
    const std::string header = header_text(tensors, {{"format", "pt"}});
    FATHOM_TRY(file.write(std::as_bytes(std::span(header))));
    if (payload == Payload::kRandom) {
      FATHOM_TRY(write_random(file, shards[i], maker));
    } else {
      FATHOM_TRY(file.extend(shards[i].bytes));
      maker.report(shards[i].bytes);
    }
    FATHOM_TRY(file.commit(/*durable=*/payload == Payload::kRandom));
  }
  FATHOM_TRY(write_text_file(folder / "config.json", to_json(spec.config)));
  return write_text_file(folder / "model.safetensors.index.json", index_text(shards, maker.all()));
}

}  // namespace fathom::checkpoint
