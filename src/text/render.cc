#include "text/render.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "text/json_value.h"
#include "text/template_text.h"
#include "text/turn_memory.h"

namespace fathom::text {
namespace {

// A message as rendered: a user turn may stand for several user and tool messages (2.4).
struct Turn {
  Role role = Role::kUser;
  const Message* message = nullptr;    // its own fields; of a user turn those of the first message
  std::vector<const Message*> blocks;  // of a user turn, in order: user messages are text, tool messages results
  bool has_task = false;
};

std::vector<Turn> merge_tool_messages(std::span<const Message> messages) {
  std::vector<Turn> turns;
  for (const Message& m : messages) {
    const bool is_tool = m.role == Role::kTool;
    if (!is_tool && m.role != Role::kUser) {
      turns.push_back({m.role, &m, {}, m.task.has_value()});
      continue;
    }
    const bool joins = !turns.empty() && turns.back().role == Role::kUser && (is_tool || !turns.back().has_task);
    if (joins) {
      turns.back().blocks.push_back(&m);
    } else {
      turns.push_back({Role::kUser, &m, {&m}, !is_tool && m.task.has_value()});
    }
  }
  return turns;
}

// Results of parallel calls go into the order of the calls. (2.5)
void sort_tool_results(std::vector<Turn>& turns) {
  std::unordered_map<std::string, std::size_t> place;  // call id -> position, of the last turn that has calls
  for (Turn& turn : turns) {
    if (turn.role == Role::kAssistant && !turn.message->tool_calls.empty()) {
      place.clear();
      const auto& calls = turn.message->tool_calls;
      for (std::size_t i = 0; i < calls.size(); ++i) {
        if (!calls[i].id.empty()) place[calls[i].id] = i;
      }
    }
    if (turn.role != Role::kUser || place.empty()) continue;
    std::vector<std::pair<std::size_t, const Message*>> results;
    for (const Message* m : turn.blocks) {
      if (m->role != Role::kTool) continue;
      const auto known = place.find(m->tool_call_id);
      results.emplace_back(known == place.end() ? 0 : known->second, m);
    }
    std::stable_sort(results.begin(), results.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::size_t next = 0;
    for (const Message*& m : turn.blocks) {
      if (m->role == Role::kTool) m = results[next++].second;
    }
  }
}

bool is_user_like(Role role) { return role == Role::kUser || role == Role::kDeveloper; }

std::ptrdiff_t last_user(const std::vector<Turn>& turns) {
  auto i = static_cast<std::ptrdiff_t>(turns.size()) - 1;
  while (i >= 0 && !is_user_like(turns[static_cast<std::size_t>(i)].role)) --i;
  return i;
}

// Before the last user turn developer messages vanish, and roles that nobody knows. Reasoning there is not rendered
// either: see Renderer::assistant. (2.6)
std::vector<Turn> drop_earlier(const std::vector<Turn>& turns) {
  const std::ptrdiff_t last = last_user(turns);
  std::vector<Turn> kept;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const Turn& turn = turns[i];
    if (static_cast<std::ptrdiff_t>(i) < last) {
      if (turn.role == Role::kDeveloper) continue;
      if (turn.role == Role::kUnknown && turn.message->role_name != "direct_search_results") continue;
    }
    kept.push_back(turn);
  }
  return kept;
}

class Renderer {
 public:
  Renderer(const ChatFormat& format, const RenderOptions& options) : c_(format.control()), options_(options) {
    prefix_ = effort_prefix(format.revision());
  }

  Result<Prompt> render(std::span<const Message> messages, std::span<const Message> context) {
    std::size_t skip = collect(messages, context);
    last_user_ = last_user(turns_);
    if (options_.add_bos && context.empty()) out_.control(c_.bos);
    for (std::size_t i = skip; i < turns_.size(); ++i) {
      out_.begin_message(static_cast<std::int32_t>(i - skip));
      if (i == 0 && options_.thinking) out_.text(prefix_);
      FATHOM_TRY(body(i));
      if (i + 1 < turns_.size() || options_.answer_header) FATHOM_TRY(transition(i));
    }
    return std::move(out_);
  }

 private:
  std::string_view effort_prefix(Revision revision) const {
    const bool preview = revision == Revision::kPreview;
    if (options_.effort == Effort::kMax) return preview ? kEffortAbsolute : kEffortBeyond;
    if (options_.effort == Effort::kHigh && !preview) return kEffortAbsolute;
    return {};
  }

  // Fills turns_ and decides drop_; returns how many turns at the front belong to the context.
  std::size_t collect(std::span<const Message> messages, std::span<const Message> context) {
    const std::vector<Turn> before = merge_tool_messages(context);
    const std::vector<Turn> after = merge_tool_messages(messages);
    turns_ = before;
    turns_.insert(turns_.end(), after.begin(), after.end());
    sort_tool_results(turns_);
    const auto has_tools = [](const Message& m) { return !m.tools.empty(); };
    drop_ = options_.drop_thinking && std::none_of(context.begin(), context.end(), has_tools) &&
            std::none_of(messages.begin(), messages.end(), has_tools);
    if (!options_.thinking || !drop_) return before.size();
    turns_ = drop_earlier(turns_);
    // What is rendered is counted from the end: dropping may take more from the context than it would alone.
    return std::min(drop_earlier(before).size(), turns_.size());
  }

  Result<> body(std::size_t i) {
    const Turn& turn = turns_[i];
    const Message& m = *turn.message;
    switch (turn.role) {
      case Role::kSystem:
        out_.text(m.content);
        blocks_after(m);
        return {};
      case Role::kDeveloper:
        if (m.content.empty()) return fail(Code::kInvalid, "a developer message must have content");
        out_.control(c_.user);
        out_.text(m.content);
        blocks_after(m);
        return {};
      case Role::kUser: user(turn); return {};
      case Role::kLatestReminder:
        out_.control(c_.latest_reminder);
        out_.text(m.content);
        return {};
      case Role::kAssistant: return assistant(i);
      case Role::kTool:
      case Role::kUnknown: break;
    }
    return fail(Code::kInvalid, "unknown role \"{}\"", m.role_name);
  }

  // Tools and response format of a system or developer message.
  void blocks_after(const Message& m) {
    if (!m.tools.empty()) {
      out_.text("\n\n");
      out_.fixed_text(kToolsBeforeSchemas, c_);
      for (std::size_t t = 0; t < m.tools.size(); ++t) {
        if (t > 0) out_.text("\n");
        out_.text(m.tools[t]);
      }
      out_.fixed_text(kToolsAfterSchemas, c_);
    }
    if (m.response_format) {
      out_.text("\n\n");
      out_.fixed_text(kResponseFormat, c_);
      out_.text(*m.response_format);
    }
  }

  void user(const Turn& turn) {
    out_.control(c_.user);
    for (std::size_t b = 0; b < turn.blocks.size(); ++b) {
      if (b > 0) out_.text("\n\n");
      const Message& block = *turn.blocks[b];
      if (block.role == Role::kTool) out_.text("<tool_result>");
      out_.text(block.content);
      if (block.role == Role::kTool) out_.text("</tool_result>");
    }
  }

  Result<> assistant(std::size_t i) {
    const Message& m = *turns_[i].message;
    const bool answers_task = i > 0 && turns_[i - 1].has_task;
    const bool thinks = options_.thinking && !answers_task && (!drop_ || static_cast<std::ptrdiff_t>(i) > last_user_);
    const auto recorded = options_.memory == nullptr || m.open ? nullptr : options_.memory->find(out_, m);
    if (recorded && recorded->well_formed && recorded->thinking == thinks) {
      const bool ended = !recorded->ids.empty() && c_.ends_turn(recorded->ids.back());
      out_.ids(recorded->ids);
      if (!ended) out_.control(c_.eos);
      return {};
    }
    if (thinks) {
      out_.text(m.reasoning.empty() && recorded ? recorded->reasoning : m.reasoning);
      out_.control(c_.think_close);
    }
    out_.text(m.content);
    FATHOM_TRY(tool_calls(m));
    if (!m.open) out_.control(c_.eos);
    return {};
  }

  Result<> tool_calls(const Message& m) {
    if (m.tool_calls.empty()) return {};
    out_.text("\n\n");
    tag("<", "tool_calls>");
    for (const ToolCall& call : m.tool_calls) {
      out_.text("\n");
      tag("<", "invoke name=\"");
      out_.text(call.name);
      out_.text("\">\n");
      FATHOM_TRY(parameters(call));
      out_.text("\n");
      tag("</", "invoke>");
    }
    out_.text("\n");
    tag("</", "tool_calls>");
    return {};
  }

  void tag(std::string_view open, std::string_view rest) {
    out_.text(open);
    out_.control(c_.dsml);
    out_.text(rest);
  }

  void parameter(std::string_view key, bool is_string, std::string_view value) {
    tag("<", "parameter name=\"");
    out_.text(key);
    out_.text(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
    out_.text(value);
    tag("</", "parameter>");
  }

  Result<> parameters(const ToolCall& call) {
    const bool blank = call.arguments.find_first_not_of(" \t\r\n") == std::string::npos;
    if (blank) return {};
    const auto parsed = parse_json_value(call.arguments, "arguments");
    if (parsed && parsed->is_null()) return {};
    if (!parsed || !parsed->is_object()) {
      if (parsed && options_.strict_arguments) {
        return fail(Code::kInvalid, "the arguments of \"{}\" are JSON but not an object", call.name);
      }
      parameter("arguments", true, call.arguments);
      return {};
    }
    std::string value;
    for (std::size_t k = 0; k < parsed->keys.size(); ++k) {
      if (k > 0) out_.text("\n");
      const JsonValue& member = parsed->items[k];
      value.clear();
      if (member.is_string()) value = member.text;
      else FATHOM_TRY(append_json_text(member, value));
      parameter(parsed->keys[k], member.is_string(), value);
    }
    return {};
  }

  // What a message writes behind itself: the header of the answer that follows. (2.7)
  Result<> transition(std::size_t i) {
    const Turn& turn = turns_[i];
    if (i + 1 < turns_.size()) {
      const Role next = turns_[i + 1].role;
      if (next != Role::kAssistant && next != Role::kLatestReminder) return {};
    }
    if (turn.has_task) return task(*turn.message->task);
    if (!is_user_like(turn.role)) return {};
    const bool thinks = options_.thinking && (!drop_ || static_cast<std::ptrdiff_t>(i) >= last_user_);
    out_.control(c_.assistant);
    out_.control(thinks ? c_.think_open : c_.think_close);
    return {};
  }

  Result<> task(const std::string& name) {
    const auto known = std::find(kTaskNames.begin(), kTaskNames.end(), name);
    if (known == kTaskNames.end()) return fail(Code::kInvalid, "unknown task \"{}\"", name);
    const auto index = static_cast<std::size_t>(known - kTaskNames.begin());
    if (index == static_cast<std::size_t>(Task::kAction)) {
      out_.control(c_.assistant);
      out_.control(options_.thinking ? c_.think_open : c_.think_close);
    }
    out_.control(c_.task[index]);
    return {};
  }

  const ControlTokens& c_;
  const RenderOptions& options_;
  std::string_view prefix_;
  std::vector<Turn> turns_;        // of context and messages, after all of 2.3
  std::ptrdiff_t last_user_ = -1;  // L
  bool drop_ = false;
  Prompt out_;
};

}  // namespace

std::optional<Effort> effort_from_name(std::string_view name) {
  if (name == "low") return Effort::kLow;
  if (name == "high") return Effort::kHigh;
  if (name == "max") return Effort::kMax;
  return std::nullopt;
}

Result<Prompt> render_chat(const ChatFormat& format, std::span<const Message> messages, const RenderOptions& options,
                           std::span<const Message> context) {
  if (options.effort == Effort::kLow && format.revision() == Revision::kPreview) {
    return fail(Code::kInvalid, "reasoning effort \"low\" does not exist on a preview checkpoint");
  }
  return Renderer(format, options).render(messages, context);
}

ParserState initial_state(const Prompt& prompt, const ChatFormat& format) {
  if (prompt.ends_with(format.control().think_open)) return ParserState::kReasoning;
  // Only the forced opener leaves markup open at the end: the tag's text behind the marker.
  const auto& items = prompt.items();
  const bool opened = items.size() >= 2 && items.back().kind == Prompt::Kind::kText &&
                      items.back().text == "tool_calls>\n" && items[items.size() - 2].kind == Prompt::Kind::kControl &&
                      items[items.size() - 2].control == format.control().dsml;
  return opened ? ParserState::kToolBlock : ParserState::kContent;
}

std::vector<std::int32_t> next_turn(const ChatFormat& format, std::string_view user_text, bool thinking,
                                    std::int32_t last_id) {
  const ControlTokens& c = format.control();
  Prompt prompt;
  if (last_id != c.eos) prompt.control(c.eos);
  prompt.control(c.user);
  prompt.text(user_text);
  prompt.control(c.assistant);
  prompt.control(thinking ? c.think_open : c.think_close);
  return encode_prompt(prompt, format.tokenizer()).ids;
}

Prompt render_fim(const ChatFormat& format, std::string_view prefix, std::string_view suffix, bool add_bos) {
  const ControlTokens& c = format.control();
  Prompt prompt;
  if (add_bos) prompt.control(c.bos);
  prompt.control(c.fim_begin);
  prompt.text(prefix);
  prompt.control(c.fim_hole);
  prompt.text(suffix);
  prompt.control(c.fim_end);
  return prompt;
}

void append_tool_opener(Prompt& prompt, const ChatFormat& format) {
  prompt.text("\n\n<");
  prompt.control(format.control().dsml);
  prompt.text("tool_calls>\n");
}

std::vector<std::int32_t> forced_call(const ChatFormat& format, bool opened, std::string_view name) {
  Prompt prompt;
  if (!opened) append_tool_opener(prompt, format);
  if (!name.empty()) {
    prompt.text("<");
    prompt.control(format.control().dsml);
    prompt.text("invoke name=\"");
    prompt.text(name);
    prompt.text("\">\n");
  }
  return encode_prompt(prompt, format.tokenizer()).ids;
}

}  // namespace fathom::text
