// Scheduler: who starts, who makes room and who runs how many tokens in the next step. Functions of what they are given
// and of nothing else; they know neither model nor cache.
//
//   admit()  waiting jobs that start now, running ones that must give up their place to a higher priority
//   share()  the tokens of the step: every answer in progress gets its next one (and verifies its guesses); what is
//   left
//            of the budget goes to prompts, in chunks; and who gives up its pages when there are not enough
//
// Rank decides about memory and is fixed: priority, then arrival. So whoever is first always gets on, and giving up
// cannot go round in circles. Attained service decides about time: of the clients the least served, of their jobs the
// least served. So a long prompt does not hold up a short one, and many requests of one client do not hold up
// another's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fathom::engine {

struct Job {
  std::int32_t priority = 0;  // lower goes first
  std::uint64_t arrival = 0;  // unique, ascending
  double client_service = 0;  // ClientLedger::service of its client
  std::uint64_t served = 0;   // tokens run for it so far
  bool running = false;
  bool held = false;            // waiting for something else: not to be started
  bool answering = false;       // its prompt is done: the next step gives a token
  std::int32_t length = 0;      // tokens in its lane
  std::int32_t known = 0;       // tokens it has, > length; or = length where the lane remembers what follows
  std::int32_t cut = 0;         // no chunk crosses this position; in (length, known], or known
  std::int32_t drafts = 0;      // guesses to be verified after the last known token
  bool scores = false;          // each token of its prompt asks for a row of logits, not only the last one
  std::int32_t pages = 0;       // of its lane; of a waiting job: those that it will share with lanes there are
  std::uint64_t last_step = 0;  // when it last ran
};

struct Budget {
  std::int32_t step_tokens = 256;
  std::int32_t logit_rows = 256;
  std::int32_t prefill_beside_answers =
      64;                           // prompt tokens of a step in which answers are waiting for their next token
  std::int32_t headroom_pages = 2;  // left free for each job when another one starts
};

struct Resources {
  std::int32_t free_slots = 0;
  std::int32_t pages = 0;  // to be had beyond those that lanes hold
};

struct Work {
  std::size_t job = 0;
  std::int32_t tokens = 0;  // known ones; 0 where only the remembered end is asked for its next token
  std::int32_t drafts = 0;
};

struct Admission {
  std::vector<std::size_t> start;
  std::vector<std::size_t> preempt;
};

struct Shares {
  std::vector<Work> work;
  std::vector<std::size_t> preempt;
};

// Writes into `out`, whose memory is used again.
void admit(std::span<const Job> jobs, const Budget& budget, const Resources& resources, Admission& out);
void share(std::span<const Job> jobs, const Budget& budget, const Resources& resources, Shares& out);

// What each client has been given, in tokens. One who comes (back) starts at the least of those who are there, so
// nobody saves up a claim.
class ClientLedger {
 public:
  void enter(std::string_view client);  // once for each job
  void leave(std::string_view client);
  void charge(std::string_view client, std::int64_t tokens);
  double service(std::string_view client) const;
  std::size_t clients() const { return accounts_.size(); }

 private:
  struct Account {
    double service = 0;
    std::int32_t jobs = 0;
  };
  struct Hash {  // looks up without making a string
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  std::unordered_map<std::string, Account, Hash, std::equal_to<>> accounts_;
};

}  // namespace fathom::engine
