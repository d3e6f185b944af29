// Answer: what happens between the engine and one client. Tokens are parsed where the engine chooses them, because only
// that tells at once that an answer is complete; what they give is handed to the connection, which writes it in the
// words of its dialect.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "server/generator.h"
#include "server/http.h"
#include "server/reject.h"
#include "text/stream_parser.h"
#include "text/tokenizer.h"

namespace fathom::server {

// A token of the answer, as logprobs and ids report it.
struct TokenReport {
  engine::Sampled sampled;
  enum class Part : std::uint8_t { kReasoning, kContent, kHidden } part = Part::kContent;
};

struct ChoiceEnd {
  text::FinishReason reason = text::FinishReason::kStop;
  std::optional<std::string> matched_stop;
  bool incomplete_call = false;  // one was begun that did not become complete
  bool by_turn = false;          // the model ended its turn itself
  std::int32_t reasoning_tokens = 0;
};

struct Call {
  std::string id;
  std::string name;
  std::string arguments;
  bool complete = false;
};

// What the model says of the prompt's tokens, from the second one on.
using PromptScores = std::shared_ptr<const std::vector<engine::Sampled>>;

// All of a choice so far.
struct Choice {
  PromptScores scores;  // where the prompt is scored
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
  std::vector<TokenReport> tokens;
  std::optional<ChoiceEnd> end;
};

struct Usage {
  std::int64_t prompt = 0;
  std::int64_t cached = 0;
  std::int64_t completion = 0;
  std::int64_t reasoning = 0;
};

// What a piece of an answer adds: events, and the tokens they came from.
struct Piece {
  PromptScores scores;  // in a piece of its own, before all others of its choice
  std::vector<text::ParserEvent> events;
  std::vector<TokenReport> tokens;
};

// An answer in the words of a dialect. One connection's order. Of a stream the functions return bytes to send, in the
// order begin, pieces and choice ends, end or error.
class Writer {
 public:
  Writer() = default;
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  virtual ~Writer() = default;

  virtual std::string keep_alive() const { return ": keep-alive\n\n"; }
  virtual std::string begin(const Usage& known) = 0;
  // `choice` has the piece already.
  virtual std::string piece(std::size_t index, const Choice& choice, const Piece& piece) = 0;
  virtual std::string choice_end(std::size_t index, const Choice& choice) = 0;
  virtual std::string end(const std::vector<Choice>& choices, const Usage& usage) = 0;
  virtual std::string error(const Refusal& refusal) = 0;
  // Not streamed: the whole body.
  virtual std::string whole(const std::vector<Choice>& choices, const Usage& usage) = 0;

  virtual std::string_view call_prefix() const { return "call_"; }
};

// Turns the tokens of one choice into events. Used by the engine's thread.
class ChoiceParser {
 public:
  ChoiceParser() = default;
  ChoiceParser(const ChoiceParser&) = delete;
  ChoiceParser& operator=(const ChoiceParser&) = delete;
  virtual ~ChoiceParser() = default;
  // True: the answer is complete.
  virtual bool push(const engine::Sampled& token, Piece& piece) = 0;
  // cut: by the limit of tokens.
  virtual ChoiceEnd finish(bool cut, Piece& piece) = 0;
};

// Times from one token of a choice to the next, counted by ranges: an answer may have hundreds of thousands.
struct TokenGaps {
  static constexpr std::array<double, 19> kBounds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                                     0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};  // seconds
  std::array<std::uint64_t, kBounds.size() + 1> counts{};
  double sum = 0;
  void add(double seconds);
};

// For metrics and the log; by whichever thread ends the answer.
struct AnswerReport {
  std::string_view reason;  // stop, length, abort, error
  int status = 200;         // as answered; 499 where the client left before any answer
  Usage usage;
  engine::Outcome outcome;  // of the last prompt
  TokenGaps gaps;
  std::int32_t n = 1;
};

struct AnswerOptions {
  bool stream = false;
  bool messages_dialect = false;
  std::size_t choices_per_prompt = 1;  // where the requests say 1: copies of the one
  bool scores = false;                 // the prompts are scored
  std::function<std::unique_ptr<ChoiceParser>()> parser;
  // In the connection's order, before the choice's end is written: to remember the turn.
  std::function<void(const Choice&)> on_choice = [](const Choice&) {};
  std::function<void(const AnswerReport&)> on_end = [](const AnswerReport&) {};
};

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  Answer(std::shared_ptr<Exchange> exchange, std::string request_id, Generator& generator,
         std::unique_ptr<Writer> writer, AnswerOptions options);

  // Submits one request for each prompt, answers the client when all are done. In the connection's order, once. The
  // sink of each request is made here. `known`: the usage that is known before.
  void start(std::vector<engine::Request> requests, Usage known);

 private:
  class PromptSink;
  struct Note {  // from the engine
    enum class Kind : std::uint8_t { kPiece, kChoiceEnd, kDone };
    Kind kind = Kind::kPiece;
    std::size_t choice = 0;
    Piece piece = {};
    ChoiceEnd end = {};
    Result<engine::Outcome> outcome = {};
    TokenGaps gaps = {};  // kDone
  };

  void notify(Note note);  // from the engine's thread
  void drain();
  void take(Note& note);
  void add(Choice& choice, const Piece& piece);
  void prompt_done(const Result<engine::Outcome>& outcome);
  void finish();
  void refuse(const Refusal& refusal);
  void give_up(std::string_view reason);
  int retry_after() const;
  void report(std::string_view reason, int status);

  std::string keep_alive() const;

  const std::shared_ptr<Exchange> exchange_;
  const std::string request_id_;
  Generator& generator_;
  const std::unique_ptr<Writer> writer_;
  const AnswerOptions options_;

  // The connection's.
  std::vector<engine::RequestId> ids_;
  std::vector<Choice> choices_;
  Usage usage_;
  engine::Outcome last_outcome_;
  TokenGaps gaps_;
  std::size_t undone_ = 0;  // prompts
  bool streaming_ = false;  // the stream has begun
  bool ended_ = false;      // the client has been answered, or is gone

  // Of the prompt that is being read, both in one value: done << 32 | total. From the engine's thread.
  std::atomic<std::uint64_t> progress_ = 0;
  std::mutex mutex_;
  std::vector<Note> notes_;  // guarded
  bool posted_ = false;      // guarded: drain() will run
};

}  // namespace fathom::server
