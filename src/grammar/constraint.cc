#include "grammar/constraint.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/check.h"
#include "grammar/program.h"

namespace fathom::grammar {
namespace {

constexpr double kUsualMs = 20;        // that a token may take
constexpr double kMostExtraMs = 1000;  // that all tokens of an answer may take beyond that
constexpr std::size_t kMostTakenBack = 16;

class PlanConstraint final : public engine::Constraint {
 public:
  PlanConstraint(std::shared_ptr<const Plan> plan, std::int32_t vocab)
      : plan_(std::move(plan)), words_((static_cast<std::size_t>(vocab) + 63) / 64), vocab_(vocab) {
    at_.free = plan_->begins_behind >= 0;
  }

  // Builds the matcher, and shows it what there is already.
  Result<> begin() {
    try {
      if (plan_->program != nullptr) matcher_.emplace(*plan_->program);
      if (!plan_->begun.empty() && matcher_ && !matcher_->accept_text(plan_->begun))
        return fail(Code::kInvalid, "what the answer begins with is not what it has to look like");
    } catch (const std::exception& e) {
      return fail(Code::kInternal, "the grammar cannot be followed: {}", e.what());
    }
    return {};
  }

  Result<std::span<const std::uint64_t>> allowed() override {
    if (broken_) return tl::unexpected<Error>(*broken_);
    if (at_.free) {
      if (plan_->not_before.empty()) return std::span<const std::uint64_t>{};
      all_but(plan_->not_before);
      return words_;
    }
    if (at_.forced < plan_->forced.size()) {
      only(plan_->forced[at_.forced]);
      return words_;
    }
    if (!matcher_) return std::span<const std::uint64_t>{};
    if (at_.ended) {
      only(plan_->program->end());
      return words_;
    }
    if (filled_) return *filled_;
    const double began = cpu_ms();
    try {
      filled_ = matcher_->fill();
    } catch (const std::exception& e) {
      return stop(Error{Code::kInternal, fmt::format("the grammar cannot be followed: {}", e.what())});
    }
    return spend(cpu_ms() - began) ? Result<std::span<const std::uint64_t>>(*filled_) : tl::unexpected<Error>(*broken_);
  }

  void accept(std::int32_t id) override {
    past_[accepted_++ % kMostTakenBack] = at_;
    if (at_.free) {
      at_.free = id != plan_->begins_behind;
    } else if (at_.forced < plan_->forced.size()) {
      ++at_.forced;
    } else if (matcher_ && !at_.ended && !broken_) {
      follow(id);
    }
  }

  void take_back(std::int32_t n) override {
    FATHOM_CHECK(n >= 0 && static_cast<std::size_t>(n) <= std::min(kMostTakenBack, accepted_),
                 "no more is taken back than a burst of guesses");
    for (; n > 0; --n) {
      const At before = past_[--accepted_ % kMostTakenBack];
      if (at_.matched > before.matched) {
        matcher_->take_back();
        filled_.reset();
      }
      at_ = before;
    }
  }

  bool ended() const override { return at_.ended; }

  std::unique_ptr<engine::Constraint> fresh() const override {
    auto other = std::make_unique<PlanConstraint>(plan_, vocab_);
    const auto begun = other->begin();
    FATHOM_CHECK(begun, "it has begun once before");
    return other;
  }

 private:
  struct At {
    bool free = false;
    bool ended = false;
    std::uint32_t forced = 0;
    std::uint32_t matched = 0;  // tokens the matcher has seen
  };

  void follow(std::int32_t id) {
    filled_.reset();
    const double began = cpu_ms();
    try {
      // A token outside the mask cannot be: the sampler chose among those allowed. But guesses are taken on trial, and
      // what follows a wrong one is never used.
      if (!matcher_->accept(id)) return stop_at(id);
      ++at_.matched;
      at_.ended = matcher_->ended();
    } catch (const std::exception& e) {
      broken_ = Error{Code::kInternal, fmt::format("the grammar cannot be followed: {}", e.what())};
    }
    spend(cpu_ms() - began);
  }
  void stop_at(std::int32_t id) {
    broken_ = Error{Code::kInternal, fmt::format("token {} was chosen against the grammar", id)};
  }
  tl::unexpected<Error> stop(Error error) {
    broken_ = std::move(error);
    return tl::unexpected<Error>(*broken_);
  }
  bool spend(double ms) {
    extra_ms_ += std::max(0.0, ms - kUsualMs);
    if (extra_ms_ <= kMostExtraMs) return true;
    broken_ = Error{Code::kInvalid,
                    fmt::format("the grammar is too ambiguous to be followed: {:.0f} ms were spent on it", extra_ms_)};
    return false;
  }
  void only(std::int32_t id) {
    std::fill(words_.begin(), words_.end(), 0);
    words_[static_cast<std::size_t>(id) / 64] |= std::uint64_t{1} << (static_cast<unsigned>(id) % 64U);
  }
  void all_but(const std::vector<std::int32_t>& ids) {
    std::fill(words_.begin(), words_.end(), ~std::uint64_t{0});
    for (const std::int32_t id : ids)
      words_[static_cast<std::size_t>(id) / 64] &= ~(std::uint64_t{1} << (static_cast<unsigned>(id) % 64U));
  }

  const std::shared_ptr<const Plan> plan_;  // shared by the choices of a request
  std::optional<Matcher> matcher_;
  std::optional<std::span<const std::uint64_t>> filled_;  // the mask of where the matcher is
  std::vector<std::uint64_t> words_;
  const std::int32_t vocab_;
  At at_;
  std::array<At, kMostTakenBack> past_;
  std::size_t accepted_ = 0;
  double extra_ms_ = 0;
  std::optional<Error> broken_;
};

}  // namespace

Result<std::unique_ptr<engine::Constraint>> make_constraint(Plan plan, std::int32_t vocab) {
  FATHOM_CHECK(plan.begun.empty() || (plan.begins_behind < 0 && plan.forced.empty()), "a begun text is not free");
  auto constraint = std::make_unique<PlanConstraint>(std::make_shared<const Plan>(std::move(plan)), vocab);
  FATHOM_TRY(constraint->begin());
  return constraint;
}

}  // namespace fathom::grammar
