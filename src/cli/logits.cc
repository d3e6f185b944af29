// fathom logits: what the model says after every token, as a file. How anyone checks Fathom against another
// implementation.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/mapped_file.h"
#include "checkpoint/writer.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/compute.h"
#include "cli/progress.h"

namespace fathom::cli {
namespace {

constexpr std::int32_t kStep = 256;
constexpr std::size_t kMaxIdsFile = std::size_t{64} << 20;

struct Options {
  std::string model;
  ComputeOptions compute;
  std::string ids;
  std::string force;
  std::string out;
  std::int32_t chunk = 0;
  std::int32_t decode = 0;
  bool last_only = false;
  bool mtp = false;
};

Result<std::vector<std::int32_t>> read_ids(const std::string& path) {
  FATHOM_ASSIGN(const std::string text, read_text_file(path, kMaxIdsFile));
  FATHOM_ASSIGN(const Json json, parse_json(text, path));
  if (!json.is_array()) return fail(Code::kInvalid, "{}: expected a JSON array of token ids", path);
  std::vector<std::int32_t> ids;
  ids.reserve(json.size());
  for (const Json& id : json) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() > INT32_MAX) {
      return fail(Code::kInvalid, "{}: element {} is {}, expected a token id", path, ids.size(), id.dump());
    }
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

std::int32_t argmax(const float* row, std::int64_t n) {
  return static_cast<std::int32_t>(std::max_element(row, row + n) - row);
}

// The tensors of the output file, in order; rows grow as the model runs.
struct Recorder {
  std::int64_t vocab = 0;
  std::vector<float> prefill;
  std::vector<std::int32_t> decode_ids;
  std::vector<float> decode;
  std::vector<float> mtp_prefill_last;
  std::vector<float> mtp_decode;

  Result<> write(const std::string& path, const std::string& numerics) const {
    std::vector<checkpoint::OutTensor> tensors;
    const auto rows = [&](const std::string& name, const std::vector<float>& v) {
      if (v.empty()) return;
      tensors.push_back({.name = name,
                         .dtype = DType::kF32,
                         .shape = {static_cast<std::int64_t>(v.size()) / vocab, vocab},
                         .bytes = std::as_bytes(std::span(v))});
    };
    rows("prefill_logits", prefill);
    rows("decode_logits", decode);
    rows("mtp_decode_logits", mtp_decode);
    if (!mtp_prefill_last.empty()) {
      tensors.push_back({.name = "mtp_prefill_logits_last",
                         .dtype = DType::kF32,
                         .shape = {vocab},
                         .bytes = std::as_bytes(std::span(mtp_prefill_last))});
    }
    if (!decode_ids.empty()) {
      tensors.push_back({.name = "decode_ids",
                         .dtype = DType::kI32,
                         .shape = {static_cast<std::int64_t>(decode_ids.size())},
                         .bytes = std::as_bytes(std::span(decode_ids))});
    }
    return checkpoint::write_safetensors(path, std::move(tensors), {{"numerics", numerics}});
  }
};

// One sequence through the model, with the MTP block beside it where asked.
class Recording {
 public:
  Recording(model::Model& m, cache::Sequence& sequence, bool mtp, Recorder& out)
      : m_(m), s_(sequence), mtp_(mtp), out_(out) {}

  Result<> prefill(std::span<const std::int32_t> ids, std::int32_t chunk, bool last_only) {
    ProgressBar progress("prefill", ProgressUnit::kCount);
    const FeedOptions feed_options{.step = chunk, .rows = last_only ? model::Rows::kLast : model::Rows::kAll};
    return feed(m_, s_, ids, feed_options, [&](std::int64_t at, Mat<const float> logits) -> Result<> {
      append(out_.prefill, logits);
      progress.update(static_cast<std::uint64_t>(s_.length()), ids.size());
      if (!mtp_) return {};
      // The tokens after each position: known for all but the prompt's last.
      const auto next = ids.subspan(static_cast<std::size_t>(at) + 1,
                                    std::min<std::size_t>(static_cast<std::size_t>(s_.length() - at),
                                                          ids.size() - static_cast<std::size_t>(at) - 1));
      const bool ends = s_.length() == static_cast<std::int32_t>(ids.size());
      FATHOM_TRY(keep_last_stream());
      if (next.empty()) return {};
      const auto n = static_cast<std::int64_t>(next.size());
      return draft(next, static_cast<std::int32_t>(at), m_.streams().slice(0, n),
                   ends ? &out_.mtp_prefill_last : nullptr);
    });
  }

  Result<> step(std::int32_t id) {
    const std::span<const std::int32_t> token(&id, 1);
    if (mtp_) {
      const auto width = static_cast<std::int64_t>(last_stream_size_ / sizeof(float));
      const Mat<const float> last = mat(reinterpret_cast<const float*>(last_stream_.get()), 1, width);
      FATHOM_TRY(draft(token, s_.length() - 1, last, &out_.mtp_decode));
    }
    out_.decode_ids.push_back(id);
    FATHOM_TRY(feed(m_, s_, token, {}, [&](std::int64_t, Mat<const float> logits) -> Result<> {
      append(out_.decode, logits);
      return {};
    }));
    return mtp_ ? keep_last_stream() : Result<>{};
  }

 private:
  static void append(std::vector<float>& to, Mat<const float> rows) {
    to.insert(to.end(), rows.data, rows.data + rows.rows * rows.cols);
  }

  // A draft overwrites nothing of the trunk's, but the next forward() does: the last row is needed one step longer.
  Result<> keep_last_stream() {
    const Mat<const float> streams = m_.streams();
    last_stream_size_ = static_cast<std::size_t>(streams.cols) * sizeof(float);
    if (!last_stream_) {
      FATHOM_ASSIGN(last_stream_, m_.backend().allocate(last_stream_size_));
    }
    m_.backend().copy(last_stream_.get(), reinterpret_cast<const std::byte*>(streams.row(streams.rows - 1)),
                      last_stream_size_);
    return {};
  }

  Result<> draft(std::span<const std::int32_t> next, std::int32_t start, Mat<const float> streams,
                 std::vector<float>* logits) {
    const model::Chunk chunk{.ids = next,
                             .start = start,
                             .slot = s_.slot(),
                             .pages = s_.pages(),
                             .logits = logits != nullptr ? model::Rows::kLast : model::Rows::kNone};
    FATHOM_ASSIGN(const Mat<const float> rows, m_.draft(std::span(&chunk, 1), streams));
    if (logits != nullptr) {
      const std::size_t at = logits->size();
      logits->resize(at + static_cast<std::size_t>(rows.cols));
      m_.backend().copy_out(logits->data() + at, reinterpret_cast<const std::byte*>(rows.data),
                            static_cast<std::size_t>(rows.cols) * sizeof(float));
    }
    return {};
  }

  model::Model& m_;
  cache::Sequence& s_;
  bool mtp_;
  Recorder& out_;
  ops::Buffer last_stream_;
  std::size_t last_stream_size_ = 0;
};

Result<> run(const Options& o) {
  FATHOM_ASSIGN(const auto ids, read_ids(o.ids));
  if (ids.empty())
    return fail(Code::kInvalid, "{}: no token ids, and a model says nothing before the first token", o.ids);
  std::vector<std::int32_t> forced;
  if (!o.force.empty()) {
    FATHOM_ASSIGN(forced, read_ids(o.force));
  }
  FATHOM_ASSIGN(const auto folder, model_folder(o.model));
  const std::int32_t step = o.chunk > 0 ? o.chunk : kStep;
  FATHOM_ASSIGN(LoadedModel loaded,
                load_model(folder, o.compute, {.max_step_tokens = step, .max_logit_rows = o.last_only ? 1 : step}));
  model::Model& m = *loaded.model;
  if (o.mtp && !m.has_mtp())
    return fail(Code::kInvalid, "{}: --mtp, but this checkpoint has no MTP block", folder.string());
  FATHOM_ASSIGN(auto sequence, cache::Sequence::create(m.layout(), m.backend()));

  Recorder out{.vocab = m.config().vocab,
               .prefill = {},
               .decode_ids = {},
               .decode = {},
               .mtp_prefill_last = {},
               .mtp_decode = {}};
  Recording recording(m, sequence, o.mtp, out);
  FATHOM_TRY(recording.prefill(ids, o.chunk, o.last_only));
  const std::size_t steps = o.force.empty() ? static_cast<std::size_t>(o.decode) : forced.size();
  ProgressBar progress("decode", ProgressUnit::kCount);
  for (std::size_t k = 0; k < steps; ++k) {
    const std::vector<float>& before = k == 0 ? out.prefill : out.decode;
    const std::int32_t greedy = argmax(before.data() + before.size() - static_cast<std::size_t>(out.vocab), out.vocab);
    FATHOM_TRY(recording.step(o.force.empty() ? greedy : forced[k]));
    progress.update(k + 1, steps);
  }
  return out.write(o.out, std::string(ops::name_of(m.options().numerics)));
}

}  // namespace

void add_logits(CLI::App& app, ExitCode& exit) {
  auto* command =
      app.add_subcommand("logits", "write the logits of given token ids, to compare with another implementation");
  auto o = std::make_shared<Options>();
  command->add_option("model", o->model, "folder of the checkpoint (default: the embedded model)")->type_name("MODEL");
  command->add_option("--ids", o->ids, "JSON array of token ids, the prompt")->required()->type_name("FILE");
  command->add_option("--out", o->out, "safetensors file to write")->required()->type_name("FILE");
  command
      ->add_option("--chunk", o->chunk, "prefill in steps of this many tokens (default: 256); the bytes do not change")
      ->check(CLI::Range(1, 1 << 20));
  command->add_flag("--last-only", o->last_only, "prefill_logits of the prompt's last token alone");
  auto* decode = command->add_option("--decode", o->decode, "then decode this many tokens greedily")
                     ->check(CLI::Range(0, 1 << 20));
  command->add_option("--force", o->force, "then feed these token ids one by one instead")
      ->type_name("FILE")
      ->excludes(decode);
  command->add_flag("--mtp", o->mtp, "also the MTP block's logits");
  add_compute_options(*command, o->compute);
  command->footer(
      "Writes prefill_logits F32 [n or 1, vocab] and, after --decode or --force, decode_ids I32 [K] and decode_logits\n"
      "F32 [K, vocab]: row k is what follows decode_ids[k]. With --mtp also mtp_prefill_logits_last F32 [vocab] and\n"
      "mtp_decode_logits F32 [K, vocab].\n\n"
      "Examples:\n"
      "  echo '[0, 511, 287]' > ids.json\n"
      "  fathom logits --ids ids.json --decode 8 --out logits.safetensors\n"
      "  fathom logits /models/DeepSeek-V4-Flash --ids ids.json --numerics float --backend ref --last-only --out "
      "a.safetensors");
  command->callback([o, &exit] {
    const auto done = run(*o);
    exit.value = done ? ExitCode::kOk : fail_with(done.error());
  });
}

}  // namespace fathom::cli
