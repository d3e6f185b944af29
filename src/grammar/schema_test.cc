#include "grammar/schema.h"

#include <gmock/gmock.h>

#include "grammar/test_support.h"

namespace fathom::grammar {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string prepared(std::string_view schema, bool strict = true) {
  const auto out = prepare_schema(json(schema), strict);
  if (out) return json_text(out->value);
  return (out.error().unsupported ? "unsupported " : "invalid ") + out.error().path + ": " + out.error().what;
}

TEST(Schema, ObjectsThatDeclarePropertiesAreClosed) {
  EXPECT_EQ(prepared(R"({"type": "object", "properties": {"a": {"type": "integer", "title": "A"}}})"),
            R"({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": false})");
  EXPECT_EQ(prepared(R"({"type": "object"})"), R"({"type": "object", "additionalProperties": true})");
  EXPECT_EQ(prepared(R"({"properties": {"a": true}, "additionalProperties": {"type": "null"}})"),
            R"({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "null"}})");
}

TEST(Schema, WhatIsRequiredIsDeclared) {
  EXPECT_EQ(
      prepared(R"({"type": "object", "required": ["b", "a", "b"]})"),
      R"({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"], "additionalProperties": true})");
  EXPECT_THAT(prepared(R"({"type": "object", "properties": {"a": {}}, "required": ["b"]})"),
              HasSubstr("invalid required: \"b\" is required and not among the properties"));
}

TEST(Schema, ArraysOfBothForms) {
  EXPECT_EQ(prepared(R"({"type": "array"})"), R"({"type": "array", "items": true})");
  EXPECT_EQ(prepared(R"({"prefixItems": [{"type": "null"}, true]})"),
            R"({"type": "array", "prefixItems": [{"type": "null"}, {}], "items": false})");
  EXPECT_EQ(prepared(R"({"items": [{"type": "null"}], "additionalItems": {"type": "string"}})"),
            R"({"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "string"}})");
}

TEST(Schema, AllOfIsMergedWhereItsPartsSpeakOfDifferentThings) {
  EXPECT_EQ(prepared(R"({"$defs": {"b": {"properties": {"y": {"type": "null"}}, "required": ["y"]}},
                         "allOf": [{"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
                                   {"allOf": [{"$ref": "#/$defs/b"}]}], "description": "d"})"),
            R"({"$defs": {"b": {"type": "object", "properties": {"y": {"type": "null"}}, "required": ["y"], )"
            R"("additionalProperties": false}}, "type": "object", "properties": {"x": {"type": "integer"}, )"
            R"("y": {"type": "null"}}, "required": ["x", "y"], "additionalProperties": false})");
  EXPECT_THAT(prepared(R"({"properties": {"p": {"allOf": [{"minimum": 1}, {"minimum": 2}]}}})"),
              HasSubstr("unsupported properties.p.allOf: "));
  // The first part forbids what the second one wants.
  EXPECT_THAT(
      prepared(R"({"allOf": [{"properties": {"x": {}}, "additionalProperties": false}, {"properties": {"y": {}}}]})"),
      HasSubstr("unsupported allOf: "));
  EXPECT_THAT(prepared(R"({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"})"),
              HasSubstr("circle"));
}

TEST(Schema, WhatCannotBeHonouredIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"properties": {"a": {"items": {"type": "array", "uniqueItems": true}}}})", "properties.a.items.uniqueItems"},
      {R"({"type": "number", "multipleOf": 0.1})", "multipleOf"},
      {R"({"type": "string", "not": {"const": "a"}})", "not"},
      {R"({"anyOf": [{"type": "string"}], "minLength": 3})", "minLength"},
      {R"({"type": "object", "patternProperties": {"^a": {}}})", "patternProperties"},
      {R"({"type": "string", "pattern": "a\"b"})", "pattern"},
      {R"({"type": "string", "pattern": "a\\nb"})", "pattern"},
      {R"({"type": "string", "pattern": "a", "maxLength": 3})", "maxLength"},
      {R"({"$defs": {"a": {}}, "properties": {"p": {"$ref": "#/$defs/a", "type": "string"}}})", "properties.p.type"},
  };
  for (const auto& [schema, path] : cases) {
    const auto strict = prepare_schema(json(schema), true);
    ASSERT_FALSE(strict) << schema;
    EXPECT_TRUE(strict.error().unsupported) << schema;
    EXPECT_EQ(strict.error().path, path) << schema;
    const auto loose = prepare_schema(json(schema), false);
    ASSERT_TRUE(loose) << schema;
    EXPECT_THAT(loose->ignored, ElementsAre(path)) << schema;
  }
  // Keywords of another type, annotations and what is unknown restrict nothing.
  EXPECT_EQ(
      prepared(R"({"type": "integer", "minLength": 3, "format": "int32", "x-own": 1, "default": 2, "title": "t"})"),
      R"({"type": "integer"})");
}

TEST(Schema, WhatIsNoSchemaIsRefusedWhetherStrictOrNot) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type": "thing"})", "invalid type: "},
      {R"({"type": []})", "invalid type: "},
      {R"({"properties": []})", "invalid properties: "},
      {R"({"properties": {"a": 3}})", "invalid properties.a: "},
      {R"({"enum": []})", "invalid enum: "},
      {R"({"anyOf": {}})", "invalid anyOf: "},
      {R"({"anyOf": [false]})", "invalid anyOf: "},
      {R"({"type": "array", "minItems": -1})", "invalid minItems: "},
      {R"({"type": "string", "maxLength": 1.5})", "invalid maxLength: "},
      {R"({"type": "integer", "minimum": "1"})", "invalid minimum: "},
      {R"({"$ref": "#/$defs/none"})", "invalid $ref: "},
      {R"({"$ref": "http://example.com/schema"})", "invalid $ref: "},
      {R"({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "type": "null"})",
       "invalid $defs.a.$ref: "},
      {R"({"required": [1]})", "invalid required: "},
  };
  for (const bool strict : {true, false}) {
    for (const auto& [schema, error] : cases)
      EXPECT_THAT(prepared(schema, strict), testing::StartsWith(error)) << schema;
  }
}

TEST(Schema, SizeDepthAndNumbersAreBounded) {
  std::string deep = "{}";
  for (int i = 0; i < 50; ++i) deep = R"({"items": )" + deep + "}";
  EXPECT_THAT(prepared(deep), testing::StartsWith("{"));
  for (int i = 0; i < 20; ++i) deep = R"({"items": )" + deep + "}";
  EXPECT_THAT(prepared(deep), HasSubstr("nested more than 64"));
  EXPECT_THAT(prepared(R"({"description": ")" + std::string(300000, 'x') + "\"}"), HasSubstr("bytes of schema"));
  std::string many = R"({"properties": {"a": {})";
  for (int i = 0; i < 400; ++i) many += fmt::format(R"(, "p{}": {{}})", i);
  EXPECT_THAT(prepared(many + "}}"), HasSubstr("invalid properties: more than 256"));
  std::string values = R"({"enum": [0)";
  for (int i = 0; i < 3000; ++i) values += fmt::format(", {}", i);
  EXPECT_THAT(prepared(values + "]}"), HasSubstr("invalid enum: more than 2000"));
  // allOf repeats what its references name: 2^30 subschemas from a few lines.
  std::string doubling = R"({"$defs": {"d0": {"type": "object"})";
  for (int i = 1; i < 30; ++i)
    doubling +=
        fmt::format(R"(, "d{}": {{"allOf": [{{"$ref": "#/$defs/d{}"}}, {{"$ref": "#/$defs/d{}"}}]}})", i, i - 1, i - 1);
  EXPECT_THAT(prepared(doubling + R"(}, "$ref": "#/$defs/d29"})"), HasSubstr("more than 4000 subschemas"));
}

}  // namespace
}  // namespace fathom::grammar
