#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/check.h"
#include "model/cache_layout.h"

namespace fathom::engine {
namespace {

std::int32_t pages_for(std::int64_t tokens) { return model::CacheLayout::pages_for(tokens); }

bool ranks_before(const Job& a, const Job& b) {
  return std::tie(a.priority, a.arrival) < std::tie(b.priority, b.arrival);
}
bool served_before(const Job& a, const Job& b) {
  return std::tie(a.priority, a.client_service, a.served, a.arrival) <
         std::tie(b.priority, b.client_service, b.served, b.arrival);
}

// The job that gives up its place first; jobs.size() where none runs.
std::size_t last_in_rank(std::span<const Job> jobs) {
  std::size_t last = jobs.size();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].running && (last == jobs.size() || ranks_before(jobs[last], jobs[i]))) last = i;
  }
  return last;
}

// Every answer in progress gets one token, those that waited longest first where the budget does not hold them all;
// then guesses are verified as far as it goes. An eighth is kept for prompts: answers come a little slower then, but
// nobody waits for ever.
std::int32_t share_answers(std::span<const Job> jobs, const Budget& budget, bool prompts, std::vector<Work>& work) {
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Job& j = jobs[i];
    if (j.running && (j.answering || j.length == j.known)) work.push_back({.job = i, .tokens = j.known - j.length});
  }
  const std::int32_t most =
      std::min(budget.step_tokens, budget.logit_rows) - (prompts ? std::max(1, budget.step_tokens / 8) : 0);
  const auto limit = static_cast<std::size_t>(std::max(1, most));
  if (work.size() > limit) {
    std::sort(work.begin(), work.end(), [&](const Work& a, const Work& b) {
      const Job& x = jobs[a.job];
      const Job& y = jobs[b.job];
      return std::tie(x.last_step, x.served, x.arrival) < std::tie(y.last_step, y.served, y.arrival);
    });
    work.resize(limit);
  }
  auto used = static_cast<std::int32_t>(work.size());
  for (Work& w : work) {
    w.drafts = std::clamp(most - used, 0, jobs[w.job].drafts);
    used += w.drafts;
  }
  return used;
}

void share_prompts(std::span<const Job> jobs, const Budget& budget, std::int32_t used, std::vector<Work>& work) {
  const bool beside_answers = !work.empty();
  std::int32_t left = budget.step_tokens - used;
  if (beside_answers) left = std::min(left, budget.prefill_beside_answers);
  std::int32_t rows = budget.logit_rows - used;
  const std::size_t first = work.size();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].running && !jobs[i].answering && jobs[i].length < jobs[i].known) work.push_back({.job = i});
  }
  std::sort(work.begin() + static_cast<std::ptrdiff_t>(first), work.end(),
            [&](const Work& a, const Work& b) { return served_before(jobs[a.job], jobs[b.job]); });
  std::size_t kept = first;
  for (std::size_t i = first; i < work.size() && left > 0; ++i) {
    const Job& j = jobs[work[i].job];
    const std::int32_t end = j.cut > j.length ? std::min(j.cut, j.known) : j.known;
    std::int32_t tokens = std::min(left, end - j.length);
    if (j.scores) tokens = std::min(tokens, rows);
    else if (j.length + tokens == j.known && rows == 0) --tokens;  // its last token asks for a row of logits
    if (tokens == 0) continue;
    if (j.scores) rows -= tokens;
    else if (j.length + tokens == j.known) --rows;
    left -= tokens;
    work[kept++] = {.job = work[i].job, .tokens = tokens};
  }
  work.resize(kept);
}

// Gives pages to the step's work, best rank first. Work that gets none is dropped; then the last in rank gives up its
// place.
void share_pages(std::span<const Job> jobs, const Resources& resources, Shares& out) {
  std::sort(out.work.begin(), out.work.end(),
            [&](const Work& a, const Work& b) { return ranks_before(jobs[a.job], jobs[b.job]); });
  std::int32_t left = resources.pages;
  bool short_of_pages = false;
  std::size_t kept = 0;
  for (Work w : out.work) {
    const Job& j = jobs[w.job];
    const std::int64_t room = (std::int64_t{j.pages} + left) * 128 - j.length;  // tokens that pages can be had for
    if (w.tokens > 0 && room <= 0) {
      short_of_pages = true;
      continue;
    }
    w.tokens = static_cast<std::int32_t>(std::min<std::int64_t>(w.tokens, room));
    w.drafts = static_cast<std::int32_t>(std::clamp<std::int64_t>(room - w.tokens, 0, w.drafts));
    left -= std::max(0, pages_for(std::int64_t{j.length} + w.tokens + w.drafts) - j.pages);
    out.work[kept++] = w;
  }
  out.work.resize(kept);
  if (!short_of_pages) return;
  const std::size_t victim = last_in_rank(jobs);
  out.preempt.push_back(victim);
  std::erase_if(out.work, [victim](const Work& w) { return w.job == victim; });
}

}  // namespace

void admit(std::span<const Job> jobs, const Budget& budget, const Resources& resources, Admission& out) {
  out.start.clear();
  out.preempt.clear();
  std::int32_t slots = resources.free_slots;
  std::int64_t pages = resources.pages;
  std::size_t running = 0;
  std::vector<std::size_t>& waiting = out.start;  // those that do not start are taken off again
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].running) {
      ++running;
      pages -= std::max(0, pages_for(jobs[i].known) + budget.headroom_pages - jobs[i].pages);
    } else if (!jobs[i].held) {
      waiting.push_back(i);
    }
  }
  std::sort(waiting.begin(), waiting.end(),
            [&](std::size_t a, std::size_t b) { return served_before(jobs[a], jobs[b]); });
  std::size_t started = 0;
  for (; started < waiting.size(); ++started) {
    const Job& j = jobs[waiting[started]];
    // Alone, a job may have all there is: it was accepted only because that is enough.
    const bool alone = running + started == 0;
    const std::int32_t needed = pages_for(std::int64_t{j.known} + 1) - j.pages + (alone ? 0 : budget.headroom_pages);
    if (slots == 0 || (needed > pages && !alone)) {
      // Nobody overtakes: what is first in line and does not fit would never fit.
      const std::size_t last = last_in_rank(jobs);
      if (last < jobs.size() && jobs[last].priority > j.priority) out.preempt.push_back(last);
      break;
    }
    --slots;
    pages -= needed;
  }
  waiting.resize(started);
}

void share(std::span<const Job> jobs, const Budget& budget, const Resources& resources, Shares& out) {
  out.work.clear();
  out.preempt.clear();
  const bool prompts = std::any_of(jobs.begin(), jobs.end(),
                                   [](const Job& j) { return j.running && !j.answering && j.length < j.known; });
  const std::int32_t used = share_answers(jobs, budget, prompts, out.work);
  share_prompts(jobs, budget, used, out.work);
  share_pages(jobs, resources, out);
}

void ClientLedger::enter(std::string_view client) {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [name, account] : accounts_) least = std::min(least, account.service);
  const auto [it, is_new] = accounts_.try_emplace(std::string(client));
  if (is_new && least < std::numeric_limits<double>::infinity()) it->second.service = least;
  ++it->second.jobs;
}

void ClientLedger::leave(std::string_view client) {
  const auto it = accounts_.find(client);
  FATHOM_CHECK(it != accounts_.end(), "who leaves has entered");
  if (--it->second.jobs == 0) accounts_.erase(it);
}

void ClientLedger::charge(std::string_view client, std::int64_t tokens) {
  const auto it = accounts_.find(client);
  FATHOM_CHECK(it != accounts_.end(), "who is served has entered");
  it->second.service += static_cast<double>(tokens);
}

double ClientLedger::service(std::string_view client) const {
  const auto it = accounts_.find(client);
  return it != accounts_.end() ? it->second.service : 0;
}

}  // namespace fathom::engine
