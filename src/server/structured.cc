#include "server/structured.h"

#include <fmt/format.h>

#include <utility>

#include "grammar/schema.h"
#include "text/render.h"

namespace fathom::server {
namespace {

using grammar::Content;
using text::JsonValue;
template <class T>
using Expected = tl::expected<T, Refusal>;

struct Named {
  Content content;
  std::string field;
  std::vector<std::string> ignored = {};
};

Refusal refusal_of_fault(const std::string& field, const grammar::SchemaFault& fault) {
  const std::string at = fault.path.empty() ? field : field + "." + fault.path;
  return refusal(400, at, fault.unsupported ? "unsupported_schema" : "invalid_value", at + ": " + fault.what);
}

Expected<Named> schema_content(const JsonValue& schema, bool strict, const std::string& field) {
  auto prepared = grammar::prepare_schema(schema, strict);
  if (!prepared) return tl::unexpected(refusal_of_fault(field, prepared.error()));
  Named out{.content = {Content::Kind::kJsonSchema, ""}, .field = field, .ignored = std::move(prepared->ignored)};
  if (const auto done = text::append_json_text(prepared->value, out.content.source); !done)
    return tl::unexpected(invalid(field, done.error().what));
  return out;
}

JsonValue any_object() {
  JsonValue type;
  type.kind = JsonValue::Kind::kString;
  type.text = "object";
  JsonValue schema;
  schema.kind = JsonValue::Kind::kObject;
  schema.keys.emplace_back("type");
  schema.items.push_back(std::move(type));
  return schema;
}

Expected<Named> format_content(const text::ResponseFormat& format) {
  const bool any = format.kind == text::ResponseFormat::Kind::kJsonObject;
  return schema_content(any ? any_object() : format.schema, format.strict, format.where);
}

// One of vLLM's: json, json_object, regex, choice, grammar.
Expected<Named> guided_content(std::string_view kind, const JsonValue& value, const std::string& field) {
  if (kind == "json_object") {
    if (!value.is_true()) return tl::unexpected(invalid(field, "true"));
    return schema_content(any_object(), false, field);
  }
  if (kind == "json") {
    if (!value.is_string()) return schema_content(value, false, field);
    const auto parsed = text::parse_json_value(value.text, "schema");
    if (!parsed) return tl::unexpected(invalid(field, "a JSON schema: " + parsed.error().what));
    return schema_content(*parsed, false, field);
  }
  if (kind != "choice" && !value.is_string()) return tl::unexpected(invalid(field, "a string"));
  auto content = kind == "choice"  ? grammar::choice_content(value)
                 : kind == "regex" ? grammar::regex_content(value.text)
                                   : grammar::grammar_content(value.text);
  if (!content) return tl::unexpected(refusal(400, field, "invalid_value", field + ": " + content.error().what));
  return Named{.content = std::move(*content), .field = field};
}

// All that a body may say of its answer's content; at most one may be said. `format`: of the dialect, where it has one.
Expected<std::optional<Named>> content_of(const JsonValue& body, const text::ResponseFormat& format) {
  struct Said {
    std::string kind;
    const JsonValue* value;
    std::string field;
  };
  std::vector<Said> said;
  for (const char* kind : {"json", "regex", "choice", "grammar"}) {
    const std::string field = fmt::format("guided_{}", kind);
    if (const JsonValue* value = body.get(field)) said.push_back({kind, value, field});
  }
  if (const JsonValue* outputs = body.get("structured_outputs")) {
    if (!outputs->is_object()) return tl::unexpected(invalid("structured_outputs", "an object"));
    for (const char* kind : {"json", "regex", "choice", "grammar", "json_object"}) {
      const JsonValue* value = outputs->get(kind);
      if (value == nullptr || value->kind == JsonValue::Kind::kFalse) continue;
      said.push_back({kind, value, fmt::format("structured_outputs.{}", kind)});
    }
    if (outputs->get("structural_tag") != nullptr) {
      return tl::unexpected(refusal(400, "structured_outputs.structural_tag", "unsupported",
                                    "structured_outputs.structural_tag: not supported; see grammar and strict tools"));
    }
  }
  const bool formatted = format.kind != text::ResponseFormat::Kind::kText;
  if (said.size() + (formatted ? 1 : 0) > 1) {
    const std::string& field = said.back().field;
    return tl::unexpected(invalid(field, fmt::format("no other rule for the answer beside it, found {}",
                                                     formatted ? format.where : said[0].field)));
  }
  if (said.empty() && !formatted) return std::optional<Named>();
  auto one = formatted ? format_content(format) : guided_content(said[0].kind, *said[0].value, said[0].field);
  if (!one) return tl::unexpected(one.error());
  return std::optional<Named>(std::move(*one));
}

Expected<bool> add_tools(const text::ChatRequest& request, Structure& out) {
  bool any_strict = false;
  for (const text::ToolSpec& spec : request.tools) {
    grammar::Tool tool{.name = spec.name, .strict = spec.strict || spec.custom};
    any_strict = any_strict || spec.strict;
    if (tool.strict) {
      auto prepared = grammar::prepare_schema(spec.parameters, true);
      if (!prepared) return tl::unexpected(refusal_of_fault(spec.where, prepared.error()));
      tool.parameters = std::move(prepared->value);
    }
    out.rules.tools.push_back(std::move(tool));
  }
  out.rules.one_call = !request.parallel_calls;
  return any_strict;
}

std::vector<std::int32_t> turn_enders(const text::ControlTokens& c) {
  std::vector<std::int32_t> ids = {c.eos, c.bos, c.user, c.assistant, c.latest_reminder};
  if (c.eot >= 0) ids.push_back(c.eot);
  return ids;
}

// The reasoning is free; what would end it any other way than by its closing token is not.
void begin_behind_reasoning(const text::ControlTokens& control, bool tools, grammar::Plan& plan) {
  plan.begins_behind = control.think_close;
  plan.not_before = turn_enders(control);
  if (tools) plan.not_before.push_back(control.dsml);
}

Expected<std::optional<text::ResponseFormat>> format_of_text(const JsonValue& body) {
  const JsonValue* field = body.get("response_format");
  text::ResponseFormat format;
  if (field == nullptr) return format;
  const JsonValue* type = field->get("type");
  const std::string name = type != nullptr && type->is_string() ? type->text : "";
  const JsonValue* wrapper = field->get("json_schema");
  const JsonValue* schema = wrapper == nullptr ? nullptr : wrapper->get("schema");
  format.where = "response_format";
  if (name == "json_object") {
    format.kind = text::ResponseFormat::Kind::kJsonObject;
  } else if (name == "json_schema" && schema != nullptr) {
    format.kind = text::ResponseFormat::Kind::kJsonSchema;
    format.schema = *schema;
    format.where = "response_format.json_schema.schema";
    const JsonValue* strict = wrapper->get("strict");
    format.strict = strict != nullptr && strict->is_true();
  } else if (name != "text") {
    return tl::unexpected(
        invalid("response_format", "type \"text\", \"json_object\", or \"json_schema\" with a schema"));
  }
  return format;
}

}  // namespace

Expected<std::optional<Structure>> structure_of_chat(const text::ChatFormat& format, const JsonValue& body,
                                                     const text::ChatRequest& request,
                                                     const text::RenderedRequest& rendered) {
  const text::ControlTokens& control = format.control();
  auto content = content_of(body, request.response_format);
  if (!content) return tl::unexpected(content.error());
  const bool thinking = rendered.state == text::ParserState::kReasoning;
  Structure out;
  bool any_strict = false;
  if (request.tools_active()) {
    auto added = add_tools(request, out);
    if (!added) return tl::unexpected(added.error());
    any_strict = *added;
  }
  if (request.call_forced) {
    out.field = "tools";
    out.rules.calls = grammar::Rules::Calls::kBehindOpener;
    if (rendered.state != text::ParserState::kToolBlock) out.plan.forced = text::forced_call(format, false);
    if (thinking) begin_behind_reasoning(control, true, out.plan);
    return std::optional<Structure>(std::move(out));
  }
  if (*content) {
    Named& named = **content;
    out.field = std::move(named.field);
    out.ignored = std::move(named.ignored);
    out.rules.content = std::move(named.content);
    if (request.tools_active()) out.rules.calls = grammar::Rules::Calls::kOrContent;
    if (thinking) begin_behind_reasoning(control, request.tools_active(), out.plan);
    else if (request.continues_answer && !request.messages.empty()) out.plan.begun = request.messages.back().content;
    return std::optional<Structure>(std::move(out));
  }
  if (!any_strict) return std::optional<Structure>();
  // Words are free, and calls are not: the marker, which is no text, tells where one begins.
  out.field = "tools";
  out.rules.calls = grammar::Rules::Calls::kBehindMarker;
  out.plan.begins_behind = control.dsml;
  return std::optional<Structure>(std::move(out));
}

Expected<std::optional<Structure>> structure_of_text(const JsonValue& body) {
  const auto format = format_of_text(body);
  if (!format) return tl::unexpected(format.error());
  auto content = content_of(body, **format);
  if (!content) return tl::unexpected(content.error());
  if (!*content) return std::optional<Structure>();
  Structure out;
  out.field = std::move((*content)->field);
  out.ignored = std::move((*content)->ignored);
  out.rules.content = std::move((*content)->content);
  return std::optional<Structure>(std::move(out));
}

Refusal refusal_of_rules(const Structure& structure, const Error& error, int retry_after) {
  if (error.code != Code::kInvalid) return refusal_of(error, retry_after);
  return refusal(400, structure.field, "unsupported_schema", structure.field + ": " + error.what);
}

}  // namespace fathom::server
