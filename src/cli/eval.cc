// fathom eval: how well the model predicts a text. Loss, perplexity and bits per byte with standard error.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/mapped_file.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/compute.h"
#include "cli/progress.h"
#include "text/tokenizer.h"

namespace fathom::cli {
namespace {

constexpr std::int32_t kStep = 128;
constexpr std::size_t kMaxTextFile = std::size_t{4} << 30;

struct Options {
  std::string model;
  ComputeOptions compute;
  std::string text;
  std::int32_t window = 1024;
  bool json = false;
};

// One stretch of text that is scored on its own: BOS, then its tokens.
struct Document {
  std::vector<std::int32_t> ids;
  std::int64_t bytes = 0;
};

struct Score {
  double nats = 0;  // summed loss
  std::int64_t tokens = 0;
  std::int64_t bytes = 0;
};

bool ends_with(const std::string& s, const std::string& end) {
  return s.size() >= end.size() && s.compare(s.size() - end.size(), end.size(), end) == 0;
}

Result<std::vector<Document>> json_lines(const std::string& text, const std::string& path,
                                         const text::Tokenizer& tokenizer, std::int32_t bos) {
  std::vector<Document> documents;
  std::size_t line = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view row = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++line;
    if (row.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    FATHOM_ASSIGN(const Json json, parse_json(row, fmt::format("{} line {}", path, line)));
    if (!json.is_object() || !json.contains("text") || !json["text"].is_string()) {
      return fail(Code::kInvalid, "{} line {}: expected an object with a string \"text\"", path, line);
    }
    const auto& content = json["text"].get_ref<const std::string&>();
    Document d{.ids = {bos}, .bytes = static_cast<std::int64_t>(content.size())};
    tokenizer.encode_to(content, text::Mode::kPlain, d.ids);
    documents.push_back(std::move(d));
  }
  return documents;
}

// Plain text, cut into windows of tokens; each is scored after BOS, so a window's first token counts too.
std::vector<Document> windows(const std::string& text, const text::Tokenizer& tokenizer, std::int32_t bos,
                              std::int32_t window) {
  const std::vector<std::int32_t> ids = tokenizer.encode(text, text::Mode::kPlain);
  std::vector<Document> documents;
  for (std::size_t at = 0; at < ids.size(); at += static_cast<std::size_t>(window)) {
    const std::size_t n = std::min(static_cast<std::size_t>(window), ids.size() - at);
    Document d{.ids = {bos}, .bytes = 0};
    d.ids.insert(d.ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(at),
                 ids.begin() + static_cast<std::ptrdiff_t>(at + n));
    for (std::size_t i = 1; i < d.ids.size(); ++i) {
      d.bytes += static_cast<std::int64_t>(tokenizer.token_bytes(d.ids[i]).value_or("").size());
    }
    documents.push_back(std::move(d));
  }
  return documents;
}

double loss(const float* row, std::int64_t n, std::int32_t target) {
  const double top = *std::max_element(row, row + n);
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(double{row[i]} - top);
  return top + std::log(sum) - double{row[target]};
}

Result<Score> score(model::Model& m, cache::Sequence& sequence, const Document& d) {
  Score s{.nats = 0, .tokens = static_cast<std::int64_t>(d.ids.size()) - 1, .bytes = d.bytes};
  sequence.restart();
  const std::span<const std::int32_t> input(d.ids.data(), d.ids.size() - 1);
  FATHOM_TRY(
      feed(m, sequence, input, {.rows = model::Rows::kAll}, [&](std::int64_t at, Mat<const float> logits) -> Result<> {
        for (std::int64_t r = 0; r < logits.rows; ++r) {
          s.nats += loss(logits.row(r), logits.cols, d.ids[static_cast<std::size_t>(at + r + 1)]);
        }
        return {};
      }));
  if (!std::isfinite(s.nats))
    return fail(Code::kInternal, "the loss is not a number: the weights or the computation are broken");
  return s;
}

struct Summary {
  std::string numerics;
  std::size_t documents = 0;
  Score total;
  double bits_per_byte = 0;
  double standard_error = 0;  // of bits_per_byte, documents as the unit of sampling (ratio estimator)
  double nats_per_token() const { return total.nats / static_cast<double>(total.tokens); }
};

Summary summarise(const std::vector<Score>& scores) {
  Summary s{.numerics = {}, .documents = scores.size(), .total = {}};
  for (const Score& d : scores) {
    s.total.nats += d.nats;
    s.total.tokens += d.tokens;
    s.total.bytes += d.bytes;
  }
  const double bytes = static_cast<double>(s.total.bytes);
  s.bits_per_byte = s.total.nats / std::numbers::ln2 / bytes;
  double squares = 0;
  for (const Score& d : scores) {
    const double residual = d.nats / std::numbers::ln2 - s.bits_per_byte * static_cast<double>(d.bytes);
    squares += residual * residual;
  }
  const auto n = static_cast<double>(scores.size());
  s.standard_error = n > 1 ? std::sqrt(squares * n / (n - 1)) / bytes : 0;
  return s;
}

Result<Summary> evaluate(const Options& o) {
  FATHOM_ASSIGN(const auto folder, model_folder(o.model));
  FATHOM_ASSIGN(const auto tokenizer, text::Tokenizer::load(folder));
  FATHOM_ASSIGN(const std::string text, read_text_file(o.text, kMaxTextFile));
  FATHOM_ASSIGN(LoadedModel loaded, load_model(folder, o.compute, {.max_step_tokens = kStep, .max_logit_rows = kStep}));
  model::Model& m = *loaded.model;
  const std::int32_t bos = m.config().bos_token;
  std::vector<Document> documents;
  if (ends_with(o.text, ".jsonl")) {
    FATHOM_ASSIGN(documents, json_lines(text, o.text, tokenizer, bos));
  } else {
    documents = windows(text, tokenizer, bos, o.window);
  }
  std::erase_if(documents, [](const Document& d) { return d.ids.size() < 2; });
  if (documents.empty()) return fail(Code::kInvalid, "{}: no text to score", o.text);

  std::uint64_t total = 0;
  for (const Document& d : documents) total += d.ids.size();
  ProgressBar progress("tokens scored", ProgressUnit::kCount);
  FATHOM_ASSIGN(auto sequence, cache::Sequence::create(m.layout(), m.backend()));
  std::vector<Score> scores;
  std::uint64_t done = 0;
  for (const Document& d : documents) {
    FATHOM_ASSIGN(const Score s, score(m, sequence, d));
    scores.push_back(s);
    done += d.ids.size();
    progress.update(done, total);
  }
  Summary s = summarise(scores);
  s.numerics = ops::name_of(m.options().numerics);
  return s;
}

int run(const Options& o) {
  const auto s = evaluate(o);
  if (!s) return fail_with(s.error());
  Output out;
  const double perplexity = std::exp(s->nats_per_token());
  if (o.json) {
    out.line(Json{{"numerics", s->numerics},
                  {"documents", s->documents},
                  {"tokens", s->total.tokens},
                  {"bytes", s->total.bytes},
                  {"loss_nats", s->total.nats},
                  {"nats_per_token", s->nats_per_token()},
                  {"perplexity", perplexity},
                  {"bits_per_byte", s->bits_per_byte},
                  {"bits_per_byte_standard_error", s->standard_error}}
                 .dump());
  } else {
    out.line(fmt::format("documents       {}", s->documents));
    out.line(fmt::format("tokens          {}", s->total.tokens));
    out.line(fmt::format("bytes           {}", s->total.bytes));
    out.line(fmt::format("loss            {:.4f} nats/token", s->nats_per_token()));
    out.line(fmt::format("perplexity      {:.3f}", perplexity));
    out.line(fmt::format("bits per byte   {:.4f} +- {:.4f}", s->bits_per_byte, s->standard_error));
  }
  const auto written = out.finish();
  return written ? ExitCode::kOk : fail_with(written.error());
}

}  // namespace

void add_eval(CLI::App& app, ExitCode& exit) {
  auto* command = app.add_subcommand("eval", "score a text: loss, perplexity, bits per byte");
  auto o = std::make_shared<Options>();
  command->add_option("model", o->model, "folder of the checkpoint (default: the embedded model)")->type_name("MODEL");
  command->add_option("--text", o->text, "the text; a .jsonl file has a document per line, in its \"text\"")
      ->required()
      ->type_name("FILE");
  command->add_option("--window", o->window, "tokens scored together in plain text, each window after BOS")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_flag("--json", o->json, "one JSON object");
  add_compute_options(*command, o->compute);
  command->footer(
      "The standard error takes documents (or windows) as the unit of sampling.\n\n"
      "Examples:\n"
      "  fathom eval --text models/fathom-tiny/heldout.jsonl\n"
      "  fathom eval /models/DeepSeek-V4-Flash --text book.txt --window 4096 --json");
  command->callback([o, &exit] { exit.value = run(*o); });
}

}  // namespace fathom::cli
