// Weights that nobody trained: deterministic random numbers in any published geometry, for benchmarks and tests without
// files. Every 8 bytes depend on the seed, the tensor's name and their place in it alone, so the same model comes out
// whatever the number of threads, in memory or on disk.
//
// Magnitudes keep activations finite and routing spread: norm weights near 1, matrices with a standard deviation of
// 1/sqrt(inputs), expert ids distinct within a token.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/geometry.h"
#include "checkpoint/model_config.h"

namespace fathom::checkpoint {

struct SyntheticSpec {
  ModelConfig config;  // valid; draft kind and stages included
  Storage storage;
  std::uint64_t seed = 1;
  // All routed experts share the bytes of one: made in seconds whatever their number, for a device, which copies what
  // it is given. Only in memory.
  bool one_expert = false;
};

// Called from the calling thread, with bytes made and bytes in all.
using SyntheticProgress = std::function<void(std::uint64_t done, std::uint64_t all)>;

// The payload of all tensors.
std::uint64_t synthetic_bytes(const SyntheticSpec& spec);

// In anonymous memory, ready for use like an opened checkpoint. Errors: kInvalid (config); kExhausted (more than the
// memory that is available now, before any of it is touched).
Result<Checkpoint> synthesize(const SyntheticSpec& spec, ThreadPool& pool, const SyntheticProgress& progress = {});

enum class Payload : std::uint8_t {
  kRandom,
  kHole,  // no bytes at all: files of the right extent that take no room on disk, for looking at headers (they read as
          // 0)
};

// On disk, as a checkpoint is published: config.json, shards laid out as checkpoint.md 3 says, index. `folder` is made;
// it must be empty. Nothing is left under the index's name if writing fails. Errors: kInvalid (config, folder not
// empty), kExhausted (disk), kNotFound (no permission).
Result<> write_synthetic(const SyntheticSpec& spec, const std::filesystem::path& folder, ThreadPool& pool,
                         Payload payload = Payload::kRandom, const SyntheticProgress& progress = {});

}  // namespace fathom::checkpoint
