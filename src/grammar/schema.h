// JSON Schema as it comes in a request, made into one that the grammar library honours to the letter. http-api.md 4.6.
//
// The library reads some keywords only in some places and passes over others. Here every keyword that restricts is
// either one that will be honoured, or one that is named: an error where the request is strict, else left out.
#pragma once

#include <cstddef>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "text/json_value.h"

namespace fathom::grammar {

inline constexpr std::size_t kMaxSchemaBytes = std::size_t{256} << 10U;
inline constexpr int kMaxSchemaDepth = 64;
inline constexpr std::size_t kMaxSchemas = 4000;            // subschemas, merged ones counted where they are used
inline constexpr std::size_t kMaxOptionalProperties = 256;  // of one object: the library's work grows with their square
inline constexpr std::size_t kMaxEnumValues = 2000;         // of one enum

struct SchemaFault {
  bool unsupported = false;  // a sound schema that cannot be honoured; else it is no schema
  std::string path;          // as in "properties.a.items"; empty: the schema itself
  std::string what;          // a sentence for a human, without the path
};

struct Schema {
  text::JsonValue value;
  std::vector<std::string> ignored;  // "PATH.KEYWORD", what was left out; only where not strict
};

// The schema to compile:
//   - objects that declare properties and say nothing of others are closed; arrays of prefixItems likewise;
//   - allOf is merged where its parts speak of different things, oneOf is taken for anyOf;
//   - a name that is required and nowhere declared is declared;
//   - a type that only shows in the keywords is written down.
// Each of these allows a part of what the schema allows, and nothing more. Time is linear in the schema's text, but for
// what allOf repeats, which kMaxSchemas bounds.
tl::expected<Schema, SchemaFault> prepare_schema(const text::JsonValue& schema, bool strict);

// What "$ref" of `schema` names within `root`, followed to its end; `schema` itself where there is none; nullptr where
// it leads nowhere or in a circle.
const text::JsonValue* resolve_ref(const text::JsonValue& root, const text::JsonValue& schema);

}  // namespace fathom::grammar
