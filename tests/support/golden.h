// Golden vectors and test models, for tests: tests/data/vectors/model/README.md says what they are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cache/sequence.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/synthetic.h"
#include "model/forward.h"
#include "model/model.h"
#include "ops/backend.h"

namespace fathom::testing {

// A safetensors file of vectors, by name. A missing name or wrong type aborts the test program: the data is ours.
class Vectors {
 public:
  explicit Vectors(const std::string& file);  // under tests/data/vectors/model
  bool has(const std::string& name) const;
  std::vector<float> floats(const std::string& name) const;
  std::vector<std::int32_t> ints(const std::string& name) const;
  std::vector<std::int64_t> shape(const std::string& name) const;
  // Bytes of any type, as stored.
  std::span<const std::byte> bytes(const std::string& name) const;
  // The distinct prefixes before the first '.', in file order: "p0_n1", "p1_n3", ...
  std::vector<std::string> prefixes() const;

 private:
  const checkpoint::TensorInfo& info(const std::string& name) const;
  checkpoint::SafetensorsFile file_;
};

// The folder of a test model: "fathom-tiny", "micro-random", "micro-random-fp".
std::string model_folder(const std::string& name);
const checkpoint::Checkpoint& open_model(const std::string& name);

// Floats of backend memory, dense rows; and floats put there.
std::vector<float> fetch(ops::Backend& backend, Mat<const float> m);
ops::Buffer place(ops::Backend& backend, std::span<const float> values);

// The backends that every test of the whole model runs on: "cuda" among them where there is a device.
std::vector<std::string> backends();

// "ref", "cpu" (with the given threads) or "cuda".
std::unique_ptr<ops::Backend> make_backend(const std::string& name, int threads = 2);

// A model on a backend with one sequence, for tests of a whole model.
struct Session {
  Session(const std::string& model_name, const std::string& backend_name, const model::ModelOptions& options,
          int threads = 2);

  // Runs ids in steps of `chunk` tokens (0: as many as a step holds) and returns the logits asked for, row after row.
  std::vector<float> run(std::span<const std::int32_t> ids, model::Rows rows, std::int32_t chunk = 0);
  // MTP over the streams (in backend memory) of the last run() of the same number of tokens, at the positions before
  // the sequence's end.
  std::vector<float> draft(std::span<const std::int32_t> next_ids, std::int32_t start, Mat<const float> streams,
                           model::Rows rows);
  void restart();

  std::unique_ptr<ops::Backend> backend;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<cache::Sequence> sequence;
};

// The pieces of a model on a host backend, for tests of blocks: one sequence, one segment a step.
class BlockHarness {
 public:
  BlockHarness(const std::string& model_name, const std::string& backend_name, ops::Numerics numerics);

  // Prepares a step of `n` tokens at the sequence's end (ids zero unless given) and hands a Forward over it.
  template <class Body>
  void step(std::int32_t n, const Body& body, std::span<const std::int32_t> token_ids = {}) {
    prepare(n, token_ids);
    const model::ActivationViews a = activations.views().first(n);
    model::Forward forward(context, a, batch);
    forward.rope_tables();
    body(forward, a);
    sequence->advance(n);
  }

  const checkpoint::Checkpoint& checkpoint;
  std::unique_ptr<ops::Backend> backend;
  model::Weights weights;
  model::CacheLayout layout;
  model::Activations activations;
  std::vector<float> frequencies;
  std::vector<float> compressed_frequencies;
  model::ForwardContext context;
  std::unique_ptr<cache::Sequence> sequence;
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> segment_of;
  ops::Segment segment;
  ops::Batch batch;

  // The layer, the draft block being the one after the trunk.
  const model::LayerWeights& layer(std::int32_t l) const;

 private:
  void prepare(std::int32_t n, std::span<const std::int32_t> token_ids);
};

// A checkpoint of made-up weights with DSpark stages, for synthesize().
checkpoint::SyntheticSpec small_dspark();

// max |a - b|; infinity where the sizes differ or exactly one side is NaN.
double max_difference(std::span<const float> a, std::span<const float> b);
double median_difference(std::span<const float> a, std::span<const float> b);

}  // namespace fathom::testing
