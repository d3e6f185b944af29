// Times of grammars with a checkpoint's tokenizer: to compile, to find again, and of a token (CPU time of the thread).
//
//   fathom_grammar_bench FOLDER [SCHEMA.json ...]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/constraint.h"
#include "grammar/program.h"
#include "grammar/schema.h"

namespace {

using namespace fathom;
using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point t) { return std::chrono::duration<double, std::milli>(Clock::now() - t).count(); }

std::vector<std::pair<std::string, std::string>> schemas(int argc, char** argv) {
  std::vector<std::pair<std::string, std::string>> all = {
      {"any object", R"({"type": "object"})"},
      {"person",
       R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0,
                 "maximum": 150}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}}, "required": ["name", "age"]})"}};
  std::string many = R"({"type": "object", "properties": {)";
  for (int i = 0; i < 100; ++i) many += fmt::format(R"({}"p{}": {{"type": "string"}})", i > 0 ? ", " : "", i);
  all.emplace_back("100 optional strings", many + "}}");
  for (int i = 2; i < argc; ++i) {
    std::ifstream in(argv[i]);
    all.emplace_back(argv[i], std::string(std::istreambuf_iterator<char>(in), {}));
  }
  return all;
}

void measure(grammar::Compiler& compiler, const std::string& name, const std::string& source) {
  const auto json = text::parse_json_value(source, name);
  const auto schema =
      json ? grammar::prepare_schema(*json, false) : tl::expected<grammar::Schema, grammar::SchemaFault>();
  grammar::Rules rules{.content = {grammar::Content::Kind::kJsonSchema, ""}};
  if (!json || !schema || !text::append_json_text(schema->value, rules.content.source)) {
    fmt::print("{}: no schema\n", name);
    return;
  }
  auto began = Clock::now();
  const auto program = compiler.compile(rules);
  const double compile_ms = ms_since(began);
  if (!program) {
    fmt::print("{}: {} ({:.0f} ms)\n", name, program.error().what, compile_ms);
    return;
  }
  began = Clock::now();
  const bool again = compiler.compile(rules).has_value();
  const double again_ms = ms_since(began);
  std::mt19937 rng(1);
  std::vector<double> steps;
  for (int walk = 0; walk < 20 && again; ++walk) {
    const auto c = grammar::make_constraint({.program = *program}, compiler.vocab());
    for (int i = 0; i < 200 && !(*c)->ended(); ++i) {
      double at = grammar::cpu_ms();
      const auto allowed = (*c)->allowed();
      const double ms = grammar::cpu_ms() - at;
      std::vector<std::int32_t> ids;
      for (std::int32_t id = 0; id < compiler.vocab(); ++id) {
        if ((((*allowed)[static_cast<std::size_t>(id) / 64] >> (id % 64)) & 1U) != 0) ids.push_back(id);
      }
      const std::int32_t id = ids[rng() % ids.size()];
      at = grammar::cpu_ms();
      (*c)->accept(id);
      steps.push_back(ms + grammar::cpu_ms() - at);
    }
  }
  std::sort(steps.begin(), steps.end());
  fmt::print(
      "{}: compiled in {:.1f} ms, found again in {:.3f} ms; {} tokens: median {:.1f} us, p99 {:.0f} us, most {:.0f} "
      "us\n",
      name, compile_ms, again_ms, steps.size(), steps[steps.size() / 2] * 1e3, steps[steps.size() * 99 / 100] * 1e3,
      steps.back() * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  const auto format = text::ChatFormat::load(argc > 1 ? argv[1] : "models/fathom-tiny");
  if (!format) {
    fmt::print(stderr, "{}\n", format.error().what);
    return 1;
  }
  grammar::Compiler compiler(*format, format->tokenizer().vocab_size());
  const auto began = Clock::now();
  if (!compiler.compile({.content = {grammar::Content::Kind::kRegex, "a"}})) return 1;
  fmt::print("vocabulary of {} prepared in {:.0f} ms\n", compiler.vocab(), ms_since(began));
  for (const auto& [name, source] : schemas(argc, argv)) measure(compiler, name, source);
  return 0;
}
