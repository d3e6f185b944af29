// Headers that break one rule each: refused, with the rule in the error, and never a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <ostream>
#include <random>

#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/test_files.h"

namespace fathom::checkpoint {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

std::string with_length(std::string_view json, std::uint64_t length) {
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out.append(json);
}

std::string file_of(std::string_view json, std::size_t payload) {
  return with_length(json, json.size()) + std::string(payload, '\0');
}

Result<Header> parse(std::string_view file) { return parse_header(std::as_bytes(std::span(file)), "x.safetensors"); }

struct Case {
  const char* name;
  std::string file;
  const char* error;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
std::string name_of_case(const testing::TestParamInfo<Case>& c) { return c.param.name; }

std::string deep(std::size_t n) { return R"({"a":)" + std::string(n, '[') + std::string(n, ']') + "}"; }

std::string repeated_dimensions(int n) {
  std::string shape = "1";
  for (int i = 1; i < n; ++i) shape += ",1";
  return R"({"a":{"dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[0,4]}})";
}

std::vector<Case> cases() {
  const std::string good = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  return {
      {"Empty", "", "too short for a safetensors file"},
      {"SevenBytes", std::string(7, '\0'), "7 bytes, too short"},
      {"LengthZero", with_length("", 0), "does not start with an opening brace"},
      {"LengthBeyondFile", with_length("{}", 3), "truncated: header length 3, but only 2 bytes follow"},
      {"LengthBeyondLimit", with_length("{}", 100'000'001), "header length 100000001, more than"},
      {"LengthMax", with_length("{}", UINT64_MAX), "header length 18446744073709551615, more than"},
      {"LengthWraps", with_length("{}", UINT64_MAX - 7), "more than the 100000000"},
      {"NotJson", file_of("{hello", 0), "not valid JSON at byte"},
      {"JsonCutShort", file_of(R"({"a":{"dtype":"F32")", 0), "not valid JSON at byte"},
      {"TextAfterObject", file_of("{" + good + "} x", 8), "not valid JSON at byte"},
      {"NotUtf8", file_of("{\"\xff\xfe\":{}}", 0), "not valid UTF-8 at byte"},
      {"OverlongUtf8", file_of("{\"\xc0\xaf\":{}}", 0), "not valid UTF-8 at byte"},
      {"LoneSurrogate", file_of(R"({"\ud800":{}})", 0), "not valid"},
      {"Array", file_of("[1]", 0), "does not start with an opening brace"},
      {"TensorIsNumber", file_of(R"({"a":1})", 0), "entry a: found the number 1, expected an object"},
      {"TensorIsNull", file_of(R"({"a":null})", 0), "entry a: found null, expected an object"},
      {"TensorIsArray", file_of(R"({"a":[]})", 0), "entry a: found an array, expected an object"},
      {"Deep", file_of(deep(100'000), 0), "expected an object"},
      {"DeepInShape", file_of(R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4),
       "shape holds an array"},
      {"NoDType", file_of(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4),
       "tensor a: one of dtype, shape and data_offsets"},
      {"NoShape", file_of(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4), "is missing"},
      {"NoOffsets", file_of(R"({"a":{"dtype":"F32","shape":[1]}})", 4), "is missing"},
      {"DTypeTwice", file_of(R"({"a":{"dtype":"F32","dtype":"I8","shape":[1],"data_offsets":[0,4]}})", 4),
       "tensor a: field \"dtype\" appears twice"},
      {"UnknownField", file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"strides":[1]}})", 4),
       "field \"strides\" found, expected only dtype, shape and data_offsets"},
      {"UnknownDType", file_of(R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})", 2),
       "tensor a: dtype found F16, expected one of F32 BF16"},
      {"DTypeIsNumber", file_of(R"({"a":{"dtype":4,"shape":[1],"data_offsets":[0,4]}})", 4), "dtype is the number 4"},
      {"ShapeIsNumber", file_of(R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4), "shape is the number 1"},
      {"ShapeIsString", file_of(R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", 4),
       "shape holds a string"},
      {"NegativeDimension", file_of(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4),
       "negative number -1"},
      {"FractionalDimension", file_of(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4),
       "the number 1.5"},
      {"DimensionBeyond64Bits",
       file_of(R"({"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}})", 4),
       "the number 18446744073709551616"},
      {"DimensionBeyond63Bits",
       file_of(R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}})", 4),
       "dimension 9223372036854775808 is too large"},
      {"ShapeOverflows", file_of(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4),
       "more elements than a file can hold"},
      {"BytesOverflow", file_of(R"({"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})", 4),
       "more elements than a file can hold"},
      {"ZeroHidesOverflow",
       file_of(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", 0),
       "more elements than a file can hold"},
      {"TooManyDimensions", file_of(repeated_dimensions(9), 4), "more than 8 dimensions"},
      {"NameTooLong",
       file_of("{\"" + std::string(513, 'n') + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4),
       "a name longer than 512 bytes"},
      {"OneOffset", file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4),
       "data_offsets has not two numbers"},
      {"ThreeOffsets", file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4),
       "data_offsets holds the number 8"},
      {"NegativeOffset", file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 4),
       "negative number -4"},
      {"BackwardOffsets", file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4),
       "[4, 0] run backwards"},
      {"OffsetsAgainstShape", file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
       "data_offsets span 4 bytes, expected 8 for F32 [2]"},
      {"OffsetsBeyondFile", file_of("{" + good + "}", 7),
       "truncated: tensor a ends at payload byte 8, but the file has only 7"},
      {"OffsetsNearMax",
       file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551611,18446744073709551615]}})", 4),
       "a gap of"},
      {"BytesAfterLast", file_of("{" + good + "}", 9), "1 bytes follow the last tensor"},
      {"PayloadWithoutTensors", file_of("{}", 1), "1 bytes follow the last tensor"},
      {"Gap", file_of("{" + good + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[9,13]}})", 13),
       "tensor b starts at payload byte 9, expected 8: a gap of 1 bytes"},
      {"GapAtStart", file_of(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
       "expected 0: a gap of 4 bytes"},
      {"Overlap", file_of("{" + good + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
       "tensor b starts at payload byte 4, inside a which ends at 8"},
      {"SameBytesTwice", file_of("{" + good + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
       "inside a which ends at 8"},
      {"NameTwice", file_of("{" + good + R"(,"a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})", 12),
       "tensor a appears twice"},
      {"MetadataNotStrings", file_of(R"({"__metadata__":{"a":1}})", 0), "__metadata__ entry a: found the number 1"},
      {"MetadataTwice", file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "__metadata__ appears twice"},
      {"ControlBytesAreShownEscaped", file_of(R"({"\u001b[2J":1})", 0), "entry \\x1b[2J: found"},
  };
}

class MalformedHeader : public testing::TestWithParam<Case> {};

TEST_P(MalformedHeader, IsRefused) {
  const auto r = parse(GetParam().file);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::kCorrupt);
  EXPECT_THAT(r.error().what, HasSubstr("x.safetensors: "));
  EXPECT_THAT(r.error().what, HasSubstr(GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(All, MalformedHeader, testing::ValuesIn(cases()), name_of_case);

TEST(Header, WhatTheRulesAllowIsRead) {
  // Spaces behind, a scalar, no bytes at all, names with escapes.
  const auto r = parse(file_of(R"({"\u00e9":{"shape":[],"data_offsets":[0,2],"dtype":"BF16"},)"
                               R"("":{"dtype":"I8","shape":[0,3],"data_offsets":[2,2]}}   )",
                               2));
  ASSERT_TRUE(r) << r.error().what;
  ASSERT_EQ(r->tensors.size(), 2U);
  EXPECT_EQ(r->tensors[0].name, "\xc3\xa9");
  EXPECT_EQ(r->tensors[0].shape, Shape{});
  EXPECT_TRUE(parse(file_of("{}", 0)));
}

// Cut after every byte of a whole header and around every tensor's end.
TEST(Header, TruncationAnywhereIsRefused) {
  const std::string whole = LooseCheckpoint::load("tests/data/models/micro-random").file();
  const Header header = parse(whole).value();
  std::vector<std::size_t> cuts;
  for (std::size_t i = 0; i < header.tensors.front().begin; i += i < 64 ? 1 : 97) cuts.push_back(i);
  for (const TensorInfo& t : header.tensors) {
    for (const std::size_t at : {t.begin, t.begin + 1, t.end - 1, t.end}) {
      if (at < whole.size()) cuts.push_back(at);
    }
  }
  for (const std::size_t n : cuts) {
    const auto r = parse(std::string_view(whole).substr(0, n));
    ASSERT_FALSE(r) << n;
    EXPECT_THAT(r.error().what, AnyOf(HasSubstr("truncated"), HasSubstr("too short"))) << n;
  }
}

// One byte changed, many times over: refused or read, but within its own bounds.
TEST(Header, AChangedByteNeverLeadsOutside) {
  const std::string whole = LooseCheckpoint::load("tests/data/models/micro-random-fp").file();
  const std::size_t header_end = parse(whole).value().tensors.front().begin;
  std::mt19937 random(20260101);
  for (int i = 0; i < 300; ++i) {
    std::string bad = whole;
    bad[random() % header_end] = static_cast<char>(random());
    const auto r = parse(bad);
    if (!r) continue;
    for (const TensorInfo& t : r->tensors) {
      ASSERT_LE(t.begin, t.end);
      ASSERT_LE(t.end, bad.size());
    }
  }
}

struct IndexCase {
  const char* name;
  std::string text;
  const char* error;
};
void PrintTo(const IndexCase& c, std::ostream* out) { *out << c.name; }

class MalformedIndex : public testing::TestWithParam<IndexCase> {};

TEST_P(MalformedIndex, IsRefused) {
  const auto r = parse_index(GetParam().text, "index.json");
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::kCorrupt);
  EXPECT_THAT(r.error().what, HasSubstr("index.json: "));
  EXPECT_THAT(r.error().what, HasSubstr(GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(
    All, MalformedIndex,
    testing::Values(
        IndexCase{"Empty", "", "not valid JSON"}, IndexCase{"Array", "[]", "an array, expected a JSON object"},
        IndexCase{"Number", "3", "the index is 3, expected a JSON object"},
        IndexCase{"NotUtf8", "{\"\xff\":1}", "not valid UTF-8"},
        IndexCase{"NoMap", R"({"metadata":{}})", "weight_map: found nothing"},
        IndexCase{"MapIsArray", R"({"weight_map":[]})", "weight_map: found an array"},
        IndexCase{"MapIsString", R"({"weight_map":"a"})", "weight_map: found a string"},
        IndexCase{"MapTwice", R"({"weight_map":{},"weight_map":{}})", "weight_map appears twice"},
        IndexCase{"FileIsNumber", R"({"weight_map":{"a":1}})", "weight_map entry a: found 1, expected a file name"},
        IndexCase{"FileIsObject", R"({"weight_map":{"a":{}}})", "weight_map entry a: found an object"},
        IndexCase{"FileIsNull", R"({"weight_map":{"a":null}})", "weight_map entry a: found null"},
        IndexCase{"FileEmpty", R"({"weight_map":{"a":""}})", "expected the plain name"},
        IndexCase{"FileAbove", R"({"weight_map":{"a":"../x.safetensors"}})",
                  "found \"../x.safetensors\", expected the plain name"},
        IndexCase{"FileAbsolute", R"({"weight_map":{"a":"/etc/passwd"}})", "found \"/etc/passwd\""},
        IndexCase{"FileIsParent", R"({"weight_map":{"a":".."}})", "expected the plain name"},
        IndexCase{"FileWithNul", R"({"weight_map":{"a":"x\u0000y"}})", "found \"x\\x00y\""},
        IndexCase{"TensorTwice", R"({"weight_map":{"a":"x","a":"y"}})", "tensor a appears twice, in x and y"},
        IndexCase{"Deep", R"({"other":)" + std::string(100'000, '[') + "1", "nested deeper than 32 levels"}),
    [](const testing::TestParamInfo<IndexCase>& c) { return c.param.name; });

TEST(Index, PassesOverWhatItDoesNotKnow) {
  const auto r = parse_index(
      R"({"metadata":{"total_size":12.0,"by":{"total_size":1}},"weight_map":{"b":"y","a":"x","c":"x"},"z":[{"a":1}]})",
      "i");
  ASSERT_TRUE(r) << r.error().what;
  EXPECT_EQ(r->files, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(r->entries, (std::vector<Index::Entry>{{"a", 0}, {"b", 1}, {"c", 0}}));
  EXPECT_EQ(r->total_bytes, 12U);
}

}  // namespace
}  // namespace fathom::checkpoint
