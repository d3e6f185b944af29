#include "server/forced_call.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "text/prompt.h"

namespace fathom::server {
namespace {

class ForcedCall final : public engine::Constraint {
 public:
  struct Script {
    std::int32_t vocab = 0;
    std::int32_t wait_for = -1;  // forced behind this id; -1: from the beginning
    std::vector<std::int32_t> forced;
    std::vector<std::int32_t> enders;  // not before the call has begun
  };
  explicit ForcedCall(std::shared_ptr<const Script> script)
      : script_(std::move(script)),
        waiting_(script_->wait_for >= 0),
        words_((static_cast<std::size_t>(script_->vocab) + 63) / 64) {}

  Result<std::span<const std::uint64_t>> allowed() override {
    if (waiting_) {
      std::fill(words_.begin(), words_.end(), ~std::uint64_t{0});
      for (const std::int32_t id : script_->enders) words_[word(id)] &= ~bit(id);
      return words_;
    }
    if (next_ >= script_->forced.size()) return std::span<const std::uint64_t>{};
    std::fill(words_.begin(), words_.end(), 0);
    words_[word(script_->forced[next_])] |= bit(script_->forced[next_]);
    return words_;
  }
  void accept(std::int32_t id) override {
    ++accepted_;
    if (waiting_ && id == script_->wait_for) {
      waiting_ = false;
      begun_ = accepted_;
    }
    next_ = waiting_ ? 0 : accepted_ - begun_;
  }
  void take_back(std::int32_t n) override {
    accepted_ -= static_cast<std::size_t>(n);
    if (script_->wait_for >= 0 && !waiting_ && accepted_ < begun_) waiting_ = true;
    next_ = waiting_ ? 0 : accepted_ - begun_;
  }
  bool ended() const override { return false; }
  std::unique_ptr<engine::Constraint> fresh() const override { return std::make_unique<ForcedCall>(script_); }

 private:
  static std::size_t word(std::int32_t id) { return static_cast<std::size_t>(id) / 64; }
  static std::uint64_t bit(std::int32_t id) { return std::uint64_t{1} << (static_cast<unsigned>(id) % 64U); }

  std::shared_ptr<const Script> script_;  // shared by the choices of a request
  bool waiting_;
  std::size_t accepted_ = 0;
  std::size_t begun_ = 0;  // accepted then
  std::size_t next_ = 0;
  std::vector<std::uint64_t> words_;
};

}  // namespace

std::unique_ptr<engine::Constraint> force_call(const text::ChatFormat& format, std::int32_t vocab,
                                               text::ParserState initial, std::string_view name) {
  const text::ControlTokens& control = format.control();
  text::Prompt opener;
  if (initial != text::ParserState::kToolBlock) text::append_tool_opener(opener, format);
  opener.text("<");
  opener.control(control.dsml);
  opener.text(name.empty() ? std::string("invoke name=\"") : "invoke name=\"" + std::string(name) + "\">\n");
  auto script = std::make_shared<ForcedCall::Script>();
  script->vocab = vocab;
  script->forced = text::encode_prompt(opener, format.tokenizer()).ids;
  if (initial == text::ParserState::kReasoning) script->wait_for = control.think_close;
  for (const std::int32_t id :
       {control.eos, control.bos, control.user, control.assistant, control.latest_reminder, control.eot}) {
    if (id >= 0) script->enders.push_back(id);
  }
  return std::make_unique<ForcedCall>(std::move(script));
}

}  // namespace fathom::server
