#include "grammar/compiler.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "grammar/lark.h"
#include "grammar/program.h"
#include "grammar/trial_process.h"

// What the library reports: built with XGRAMMAR_LOG_CUSTOMIZE, it calls these two.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int lineno, const std::string& message);
void LogMessageImpl(const std::string& file, int lineno, int level, const std::string& message);

void LogFatalImpl(const std::string& /*file*/, int /*lineno*/, const std::string& message) {
  const std::string_view check = " is false: ";
  const std::size_t at = message.find(check);
  throw std::runtime_error(at == std::string::npos ? message : message.substr(at + check.size()));
}
// Its warnings are of keywords that it passes over; schema.cc has dealt with those.
void LogMessageImpl(const std::string&, int, int, const std::string&) {}

}  // namespace xgrammar

namespace fathom::grammar {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxExpandedBytes = std::size_t{2} << 20U;  // of a grammar in the library's own notation
constexpr int kTrialTokens = 48;
constexpr double kMostTrialMs = 100;  // for one token
// Bytes that no text holds: the marker's spelling to the library, so that ordinary tokens cannot spell it.
constexpr const char* kMarkerBytes = "\xFF\xFE";

// In the library's JSON: escapes of half a character, which strict readers refuse, become whole; strings of a certain
// length hold no control characters, as others do not; names that are free cannot spell a declared one by escapes. The
// notation is that of its own printer; grammar_test.cc sees that all three still take hold.
std::string mend_json(std::string ebnf) {
  const auto replace_all = [&](std::string_view from, std::string_view to, std::size_t begin, std::size_t end) {
    for (std::size_t at = ebnf.find(from, begin); at < end; at = ebnf.find(from, at + to.size())) {
      ebnf.replace(at, from.size(), to);
      end = end - from.size() + to.size();
    }
  };
  replace_all(
      R"(("u" [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9]))",
      R"(("u" [0-9A-CEFa-cef] [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9]) | ("u" [Dd] [0-7] [A-Fa-f0-9] [A-Fa-f0-9]) | )"
      R"(("u" [Dd] [89ABab] [A-Fa-f0-9] [A-Fa-f0-9] "\\u" [Dd] [C-Fc-f] [A-Fa-f0-9] [A-Fa-f0-9]))",
      0, ebnf.size());
  replace_all(R"([^\"\\\r\n])", R"([^\0-\x1f\"\\\r\n])", 0, ebnf.size());
  for (std::size_t line = 0; line < ebnf.size();) {
    const std::size_t end = std::min(ebnf.find('\n', line), ebnf.size());
    const std::string_view name = std::string_view(ebnf).substr(line, std::min(ebnf.find(' ', line), end) - line);
    const std::size_t before = ebnf.size();
    if (name.find("_addl_key_") != std::string_view::npos)
      replace_all(R"( | ("\\" basic_escape basic_string_sub))", "", line, end);
    line = end - (before - ebnf.size()) + 1;
  }
  return ebnf;
}

xgrammar::Grammar grammar_of(Content::Kind kind, const std::string& source) {
  switch (kind) {
    case Content::Kind::kJsonSchema:
      return xgrammar::Grammar::FromEBNF(
          mend_json(xgrammar::Grammar::FromJSONSchema(source, true, std::nullopt, std::nullopt, false, 1).ToString()));
    case Content::Kind::kRegex: return xgrammar::Grammar::FromRegex(source);
    case Content::Kind::kGrammar: return xgrammar::Grammar::FromEBNF(source);
    case Content::Kind::kAny:
    case Content::Kind::kChoice: break;
  }
  throw std::logic_error("this kind of content is not a part");
}

// Follows the program for some tokens, any that it allows: what takes long now would hold up everybody later.
Result<> try_out(const Program& program) {
  Matcher matcher(program);
  std::uint64_t random = 88172645463325252ULL;
  for (int i = 0; i < kTrialTokens && !matcher.ended(); ++i) {
    const double began = cpu_ms();
    const std::span<const std::uint64_t> allowed = matcher.fill();
    random ^= random << 13U;
    random ^= random >> 7U;
    random ^= random << 17U;
    std::int32_t chosen = -1;
    const auto vocab = static_cast<std::uint64_t>(program.vocab());
    for (std::uint64_t k = 0; k < vocab && chosen < 0; ++k) {
      const std::uint64_t id = (random + k) % vocab;
      if (((allowed[id / 64] >> (id % 64)) & 1U) != 0) chosen = static_cast<std::int32_t>(id);
    }
    if (chosen < 0) return fail(Code::kInvalid, "nothing can satisfy it");
    if (!matcher.accept(chosen)) return fail(Code::kInternal, "the grammar refuses a token that it allowed");
    const double ms = cpu_ms() - began;
    if (ms > kMostTrialMs) {
      return fail(
          Code::kInvalid,
          "too ambiguous: one token takes {:.0f} ms to check, {:.0f} at most are given; see that what comes next "
          "is clear from what came before",
          ms, kMostTrialMs);
    }
  }
  return {};
}

}  // namespace

class Compiler::Impl {
 public:
  Impl(const text::ChatFormat& format, std::int32_t vocab, CompilerOptions options)
      : format_(format), vocab_(vocab), options_(options) {
    FATHOM_CHECK(vocab >= format.tokenizer().vocab_size(), "the model has every token of its tokenizer");
  }
  ~Impl() { stop(); }
  void stop() {
    std::deque<Job> left;
    std::thread worker;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      left.swap(jobs_);
      worker.swap(worker_);
    }
    wake_.notify_all();
    if (options_.trial != nullptr) options_.trial->interrupt();
    if (worker.joinable()) worker.join();
    for (Job& job : left) job.done(stopped());
  }

  Result<std::shared_ptr<const Program>> compile(const Rules& rules) {
    std::string key = key_of(rules);
    if (auto known = find(key)) return known;
    const std::lock_guard one_at_a_time(compiling_);
    if (auto known = find(key)) return known;
    std::size_t bytes = key.size();
    const auto tried = options_.trial != nullptr ? options_.trial->run(rules) : Result<>();
    Result<std::shared_ptr<const Program>> program = tl::unexpected(Error{});
    if (tried) program = build(rules, bytes);
    else program = tl::unexpected(tried.error());
    const std::lock_guard lock(mutex_);
    if (!program) {
      ++stats_.refused;
      return program;
    }
    ++stats_.compiled;
    remember(std::move(key), *program, bytes);
    return program;
  }

  void compile_later(Rules rules, Done done) {
    if (auto known = find(key_of(rules))) return done(std::move(known));
    bool stopping = false;
    {
      const std::lock_guard lock(mutex_);
      stopping = stopping_;
      if (!stopping && jobs_.size() < options_.max_waiting) {
        jobs_.push_back({std::move(rules), std::move(done), Clock::now()});
        if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
        wake_.notify_one();
        return;
      }
    }
    if (stopping) return done(stopped());
    done(fail(Code::kExhausted, "{} grammars are waiting to be compiled", options_.max_waiting));
  }

  CompilerStats stats() const {
    const std::lock_guard lock(mutex_);
    CompilerStats s = stats_;
    s.programs = entries_.size();
    s.waiting = jobs_.size();
    return s;
  }
  std::int32_t vocab() const { return vocab_; }
  const text::ChatFormat& format() const { return format_; }

 private:
  struct Job {
    Rules rules;
    Done done;
    Clock::time_point since;
  };
  struct Entry {
    std::string key;
    std::shared_ptr<const Program> program;
    std::size_t bytes = 0;
  };

  static tl::unexpected<Error> stopped() { return fail(Code::kCancelled, "the server is shutting down"); }

  std::shared_ptr<const Program> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto at = index_.find(key);
    if (at == index_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, at->second);
    ++stats_.hits;
    return entries_.front().program;
  }
  void remember(std::string key, std::shared_ptr<const Program> program, std::size_t bytes) {
    entries_.push_front({std::move(key), std::move(program), bytes});
    index_[entries_.front().key] = entries_.begin();
    stats_.bytes += bytes;
    // Half of the memory is the library's, which remembers parts that grammars have in common.
    while (entries_.size() > 1 && stats_.bytes > options_.cache_bytes / 2) {
      stats_.bytes -= entries_.back().bytes;
      index_.erase(entries_.back().key);
      entries_.pop_back();
    }
  }

  void prepare() {
    if (compiler_ != nullptr) return;
    const text::Tokenizer& tokenizer = format_.tokenizer();
    const text::ControlTokens& control = format_.control();
    std::vector<std::string> spellings(static_cast<std::size_t>(vocab_));
    for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      // Added tokens have no spelling here: no text is written with them. EOS is the library's to place.
      if (!tokenizer.is_added(id)) spellings[static_cast<std::size_t>(id)] = *tokenizer.token_bytes(id);
    }
    spellings[static_cast<std::size_t>(control.dsml)] = kMarkerBytes;
    vocabulary_ = std::make_unique<xgrammar::TokenizerInfo>(spellings, xgrammar::VocabType::RAW, vocab_,
                                                            std::vector<std::int32_t>{control.eos});
    // One thread: the others have answers to compute.
    compiler_ = std::make_unique<xgrammar::GrammarCompiler>(*vocabulary_, 1, true,
                                                            static_cast<std::int64_t>(options_.cache_bytes / 2));
  }

  xgrammar::Grammar grammar(const LarkSource& source) {
    std::vector<xgrammar::NamedGrammar> parts;
    for (std::size_t i = 0; i < source.parts.size(); ++i)
      parts.push_back({fmt::format("p{}", i), grammar_of(source.parts[i].kind, source.parts[i].source)});
    return xgrammar::Grammar::FromLark(source.text, *vocabulary_, parts);
  }

  Result<std::shared_ptr<const Program>> build(const Rules& rules, std::size_t& bytes) {
    try {
      prepare();
      std::optional<xgrammar::Grammar> grammar;
      if (rules.calls == Rules::Calls::kNone && rules.content.kind != Content::Kind::kChoice) {
        grammar = grammar_of(rules.content.kind, rules.content.source);
      } else {
        FATHOM_ASSIGN(const LarkSource source, write_lark(rules, format_.control().dsml));
        grammar = this->grammar(source);
      }
      if (const std::size_t size = grammar->ToString().size(); size > kMaxExpandedBytes) {
        return fail(Code::kInvalid, "too large: it comes to {} bytes of grammar, at most {} are taken", size,
                    kMaxExpandedBytes);
      }
      auto program =
          std::make_shared<const Program>(compiler_->CompileGrammar(*grammar), vocab_, format_.control().eos);
      bytes += program->grammar().MemorySizeBytes();
      FATHOM_TRY(try_out(*program));
      return program;
    } catch (const std::bad_alloc&) {
      return fail(Code::kExhausted, "not enough memory to compile it");
    } catch (const std::exception& e) {
      return fail(Code::kInvalid, "{}", e.what());
    }
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      const bool late = Clock::now() - job.since > std::chrono::milliseconds(options_.max_wait_ms);
      if (late) job.done(fail(Code::kExhausted, "its turn to be compiled did not come in {} ms", options_.max_wait_ms));
      else job.done(compile(job.rules));
      job = {};
      lock.lock();
    }
  }

  const text::ChatFormat& format_;
  const std::int32_t vocab_;
  const CompilerOptions options_;

  std::mutex compiling_;  // guards the next two
  std::unique_ptr<xgrammar::TokenizerInfo> vocabulary_;
  std::unique_ptr<xgrammar::GrammarCompiler> compiler_;

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  std::list<Entry> entries_;  // the latest used first
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;
  CompilerStats stats_;
  bool stopping_ = false;
  std::thread worker_;
};

Compiler::Compiler(const text::ChatFormat& format, std::int32_t vocab, CompilerOptions options)
    : impl_(std::make_unique<Impl>(format, vocab, options)) {}
Compiler::~Compiler() = default;
void Compiler::stop() { impl_->stop(); }

Result<std::shared_ptr<const Program>> Compiler::compile(const Rules& rules) { return impl_->compile(rules); }
void Compiler::compile_later(Rules rules, Done done) { impl_->compile_later(std::move(rules), std::move(done)); }
CompilerStats Compiler::stats() const { return impl_->stats(); }
std::int32_t Compiler::vocab() const { return impl_->vocab(); }
const text::ChatFormat& Compiler::format() const { return impl_->format(); }

}  // namespace fathom::grammar
