#include "support/golden.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include "ops/device_plugin.h"
#include "ops/rope/rope.h"

namespace fathom::testing {
namespace {

template <class T>
T must(Result<T> r) {
  if (!r) {
    std::fprintf(stderr, "test data: %s\n", r.error().what.c_str());
    std::abort();
  }
  return std::move(r).value();
}

template <class T>
std::vector<T> copy_as(std::span<const std::byte> bytes) {
  std::vector<T> v(bytes.size() / sizeof(T));
  if (!v.empty()) std::memcpy(v.data(), bytes.data(), v.size() * sizeof(T));
  return v;
}

constexpr std::int32_t kMaxStep = 1100;

}  // namespace

Vectors::Vectors(const std::string& file)
    : file_(must(
          checkpoint::SafetensorsFile::open(std::string(FATHOM_SOURCE_DIR) + "/tests/data/vectors/model/" + file))) {}

bool Vectors::has(const std::string& name) const { return file_.find(name) != nullptr; }

const checkpoint::TensorInfo& Vectors::info(const std::string& name) const {
  const checkpoint::TensorInfo* t = file_.find(name);
  if (t == nullptr) {
    std::fprintf(stderr, "test data: no vector %s in %s\n", name.c_str(), file_.path().c_str());
    std::abort();
  }
  return *t;
}

std::vector<float> Vectors::floats(const std::string& name) const { return copy_as<float>(bytes(name)); }
std::vector<std::int32_t> Vectors::ints(const std::string& name) const { return copy_as<std::int32_t>(bytes(name)); }
std::vector<std::int64_t> Vectors::shape(const std::string& name) const { return info(name).shape; }
std::span<const std::byte> Vectors::bytes(const std::string& name) const { return file_.bytes(info(name)); }

std::vector<std::string> Vectors::prefixes() const {
  std::vector<std::string> all;
  for (const checkpoint::TensorInfo& t : file_.header().tensors) {
    std::string prefix = t.name.substr(0, t.name.find('.'));
    if (std::find(all.begin(), all.end(), prefix) == all.end()) all.push_back(std::move(prefix));
  }
  return all;
}

std::string model_folder(const std::string& name) {
  const std::string root = FATHOM_SOURCE_DIR;
  return name == "fathom-tiny" ? root + "/models/fathom-tiny" : root + "/tests/data/models/" + name;
}

const checkpoint::Checkpoint& open_model(const std::string& name) {
  static std::map<std::string, checkpoint::Checkpoint> opened;
  auto it = opened.find(name);
  if (it == opened.end()) it = opened.emplace(name, must(checkpoint::Checkpoint::open(model_folder(name)))).first;
  return it->second;
}

std::vector<float> fetch(ops::Backend& backend, Mat<const float> m) {
  if (m.ld != m.cols) std::abort();
  std::vector<float> values(static_cast<std::size_t>(m.rows * m.cols));
  backend.copy_out(values.data(), reinterpret_cast<const std::byte*>(m.data), values.size() * sizeof(float));
  return values;
}

ops::Buffer place(ops::Backend& backend, std::span<const float> values) {
  ops::Buffer b = must(backend.allocate(values.size_bytes()));
  backend.copy_in(b.get(), values.data(), values.size_bytes());
  return b;
}

std::vector<std::string> backends() {
  std::vector<std::string> all = {"ref", "cpu"};
  if (ops::open_cuda({})) all.emplace_back("cuda");
  return all;
}

std::unique_ptr<ops::Backend> make_backend(const std::string& name, int threads) {
  if (name == "ref") return ops::make_ref_backend();
  if (name == "cpu") return ops::make_cpu_backend({.threads = threads});
  if (name == "cuda") return must(ops::open_cuda({}));
  std::fprintf(stderr, "no backend %s\n", name.c_str());
  std::abort();
}

Session::Session(const std::string& model_name, const std::string& backend_name, const model::ModelOptions& options,
                 int threads)
    : backend(make_backend(backend_name, threads)),
      model(must(model::Model::load(open_model(model_name), *backend, options))) {
  restart();
}

void Session::restart() {
  sequence = std::make_unique<cache::Sequence>(must(cache::Sequence::create(model->layout(), *backend)));
}

std::vector<float> Session::run(std::span<const std::int32_t> ids, model::Rows rows, std::int32_t chunk) {
  if (chunk == 0) chunk = model->options().max_step_tokens;
  std::vector<float> logits;
  for (std::size_t at = 0; at < ids.size(); at += static_cast<std::size_t>(chunk)) {
    const auto part = ids.subspan(at, std::min(static_cast<std::size_t>(chunk), ids.size() - at));
    const auto n = static_cast<std::int32_t>(part.size());
    if (auto r = sequence->reserve(n); !r) must(Result<int>(tl::unexpected<Error>(r.error())));
    const bool last = at + part.size() == ids.size();
    const model::Rows wanted = rows == model::Rows::kLast && !last ? model::Rows::kNone : rows;
    const model::Chunk c{.ids = part,
                         .start = sequence->length(),
                         .slot = sequence->slot(),
                         .pages = sequence->pages(),
                         .logits = wanted};
    const auto out = must(model->forward(std::span(&c, 1)));
    sequence->advance(n);
    const auto part_logits = fetch(*backend, out);
    logits.insert(logits.end(), part_logits.begin(), part_logits.end());
  }
  return logits;
}

std::vector<float> Session::draft(std::span<const std::int32_t> next_ids, std::int32_t start, Mat<const float> streams,
                                  model::Rows rows) {
  const model::Chunk c{
      .ids = next_ids, .start = start, .slot = sequence->slot(), .pages = sequence->pages(), .logits = rows};
  return fetch(*backend, must(model->draft(std::span(&c, 1), streams)));
}

BlockHarness::BlockHarness(const std::string& model_name, const std::string& backend_name, ops::Numerics numerics)
    : checkpoint(open_model(model_name)),
      backend(make_backend(backend_name)),
      weights(must(model::load_weights(checkpoint, *backend, numerics))),
      layout(model::plan_cache(checkpoint.config(), numerics, /*rollback=*/0)),
      activations(must(model::Activations::allocate(checkpoint.config(), kMaxStep, *backend))),
      frequencies(ops::rope_frequencies(checkpoint.config().rope_theta, checkpoint.config().rope_dim, {})),
      compressed_frequencies(
          ops::rope_frequencies(checkpoint.config().compress_rope_theta, checkpoint.config().rope_dim,
                                {.factor = checkpoint.config().yarn.factor,
                                 .beta_fast = checkpoint.config().yarn.beta_fast,
                                 .beta_slow = checkpoint.config().yarn.beta_slow,
                                 .original_positions = checkpoint.config().yarn.original_positions})),
      context{.config = checkpoint.config(),
              .weights = weights,
              .layout = layout,
              .numerics = numerics,
              .backend = *backend,
              .frequencies = frequencies.data(),
              .compressed_frequencies = compressed_frequencies.data()},
      sequence(std::make_unique<cache::Sequence>(must(cache::Sequence::create(layout, *backend)))) {}

void BlockHarness::prepare(std::int32_t n, std::span<const std::int32_t> token_ids) {
  if (auto r = sequence->reserve(n); !r) must(Result<int>(tl::unexpected<Error>(r.error())));
  ids.assign(token_ids.begin(), token_ids.end());
  ids.resize(static_cast<std::size_t>(n), 0);
  positions.resize(ids.size());
  std::iota(positions.begin(), positions.end(), sequence->length());
  segment_of.assign(ids.size(), 0);
  const std::int32_t end = sequence->length() + n;
  segment = {.first_row = 0,
             .tokens = n,
             .start = sequence->length(),
             .n_pages = static_cast<std::int32_t>(sequence->pages().size()),
             .slot = sequence->slot(),
             .pages = sequence->pages().data()};
  batch = {.tokens = n,
           .n_segments = 1,
           .longest = end,
           .segments = &segment,
           .segment_of = segment_of.data(),
           .positions = positions.data(),
           .ids = ids.data()};
}

const model::LayerWeights& BlockHarness::layer(std::int32_t l) const {
  const auto n = static_cast<std::size_t>(l);
  return n < weights.layers.size() ? weights.layers[n] : weights.mtp.front().layer;
}

checkpoint::SyntheticSpec small_dspark() {
  checkpoint::ModelConfig c = checkpoint::published("v4-flash-0731")->config;
  c.vocab = 160;
  c.hidden = 128;
  c.layers = 3;
  c.heads = 2;
  c.head_dim = 128;
  c.rope_dim = 64;
  c.q_rank = 128;
  c.o_groups = 2;
  c.o_rank = 64;
  c.window = 16;
  c.compress_ratios = {0, 4, 128};
  c.index_heads = 2;
  c.index_dim = 64;
  c.index_topk = 8;
  c.routed_experts = 4;
  c.active_experts = 2;
  c.expert_inner = 128;
  c.hash_layers = 1;
  c.draft.markov_rank = 32;
  c.draft.noise_token = 159;
  c.draft.target_layers = {0, 2};
  return {.config = c, .storage = {}, .seed = 5};
}

double max_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double d = std::fabs(double{a[i]} - double{b[i]});
    worst = std::max(worst, std::isnan(d) ? std::numeric_limits<double>::infinity() : d);
  }
  return worst;
}

double median_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size() || a.empty()) return std::numeric_limits<double>::infinity();
  std::vector<double> d(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) d[i] = std::fabs(double{a[i]} - double{b[i]});
  std::nth_element(d.begin(), d.begin() + static_cast<std::ptrdiff_t>(d.size() / 2), d.end());
  return d[d.size() / 2];
}

}  // namespace fathom::testing
