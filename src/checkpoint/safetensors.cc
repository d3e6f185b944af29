#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

namespace fathom::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian and used as they lie");

constexpr std::array<DType, kDTypes> kAllDTypes = {DType::kF32,   DType::kBf16, DType::kF8E4M3, DType::kF8E8M0,
                                                   DType::kFp4x2, DType::kI32,  DType::kI64};

// Receives the header's JSON event by event, so that no tree is built and no hostile shape of JSON costs more than its
// bytes. Offsets are left relative to the payload; finish() makes them absolute.
class HeaderReader {
 public:
  explicit HeaderReader(Header& out) : out_(out) {}

  const std::string& why() const { return why_; }

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(std::int64_t v) { return unexpected(fmt::format("the negative number {}", v)); }
  bool number_float(double, const std::string& text) {
    return unexpected(fmt::format("the number {}, no unsigned 64-bit integer", printable(text)));
  }
  bool number_unsigned(std::uint64_t v) {
    if (at_ == At::kShape) return add_dimension(v);
    if (at_ == At::kOffsets && n_offsets_ < 2) {
      (n_offsets_++ == 0 ? tensor_.begin : tensor_.end) = v;
      return true;
    }
    return unexpected(fmt::format("the number {}", v));
  }
  bool string(std::string& v) {
    if (at_ == At::kMetadata) {
      out_.metadata.emplace_back(std::move(key_), std::move(v));
      return true;
    }
    if (at_ == At::kTensor && field_ == Field::kDType) {
      if (!dtype_from(v, tensor_.dtype)) {
        return stop(fmt::format("dtype found {}, expected one of F32 BF16 F8_E4M3 F8_E8M0 I8 I32 I64", printable(v)));
      }
      return field_done();
    }
    return unexpected("a string");
  }
  bool binary(std::vector<std::uint8_t>&) { return unexpected("binary data"); }

  bool start_object(std::size_t) {
    if (at_ == At::kStart) {
      at_ = At::kNames;
      return true;
    }
    if (at_ != At::kNames) return unexpected("an object");
    if (key_ == "__metadata__") {
      if (std::exchange(have_metadata_, true)) return stop("__metadata__ appears twice");
      at_ = At::kMetadata;
      return true;
    }
    if (key_.size() > kMaxNameBytes) return stop(fmt::format("a name longer than {} bytes", kMaxNameBytes));
    if (out_.tensors.size() >= kMaxTensorsPerFile) return stop(fmt::format("more than {} tensors", kMaxTensorsPerFile));
    tensor_ = {};
    tensor_.name = key_;
    seen_ = 0;
    n_offsets_ = 0;
    at_ = At::kTensor;
    return true;
  }
  bool key(std::string& v) {
    if (at_ != At::kTensor) {
      key_ = std::move(v);
      return true;
    }
    if (v == "dtype") field_ = Field::kDType;
    else if (v == "shape") field_ = Field::kShape;
    else if (v == "data_offsets") field_ = Field::kOffsets;
    else return stop(fmt::format("field \"{}\" found, expected only dtype, shape and data_offsets", printable(v)));
    if ((seen_ & bit(field_)) != 0) return stop(fmt::format("field \"{}\" appears twice", v));
    return true;
  }
  bool end_object() {
    if (at_ == At::kTensor) {
      if (seen_ != 7) return stop("one of dtype, shape and data_offsets is missing");
      out_.tensors.push_back(std::move(tensor_));
    }
    at_ = at_ == At::kNames ? At::kEnd : At::kNames;
    return true;
  }
  bool start_array(std::size_t) {
    if (at_ == At::kTensor && field_ == Field::kShape) at_ = At::kShape;
    else if (at_ == At::kTensor && field_ == Field::kOffsets) at_ = At::kOffsets;
    else return unexpected("an array");
    return true;
  }
  bool end_array() {
    if (at_ == At::kOffsets && n_offsets_ != 2) return stop("data_offsets has not two numbers");
    at_ = At::kTensor;
    return field_done();
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& e) {
    // The library's text quotes raw bytes of the file, so only its verdict is passed on.
    const bool encoding = std::string_view(e.what()).find("UTF-8") != std::string_view::npos;
    why_ = fmt::format("the header is not valid {} at byte {}", encoding ? "UTF-8" : "JSON", position);
    return false;
  }

 private:
  enum class At { kStart, kNames, kTensor, kShape, kOffsets, kMetadata, kEnd };
  enum class Field : unsigned { kDType, kShape, kOffsets };
  static unsigned bit(Field f) { return 1U << static_cast<unsigned>(f); }

  bool field_done() {
    seen_ |= bit(field_);
    return true;
  }
  bool add_dimension(std::uint64_t v) {
    if (tensor_.shape.size() >= kMaxRank) return stop(fmt::format("more than {} dimensions", kMaxRank));
    if (v > static_cast<std::uint64_t>(INT64_MAX)) return stop(fmt::format("dimension {} is too large", v));
    tensor_.shape.push_back(static_cast<std::int64_t>(v));
    return true;
  }
  bool stop(const std::string& why) {
    const bool inside = at_ == At::kTensor || at_ == At::kShape || at_ == At::kOffsets;
    why_ = inside ? fmt::format("tensor {}: {}", printable(tensor_.name), why) : why;
    return false;
  }
  bool unexpected(std::string_view found) {
    switch (at_) {
      case At::kStart: return stop(fmt::format("the header is {}, expected a JSON object", found));
      case At::kNames: return stop(fmt::format("entry {}: found {}, expected an object", printable(key_), found));
      case At::kMetadata:
        return stop(fmt::format("__metadata__ entry {}: found {}, expected a string", printable(key_), found));
      case At::kShape: return stop(fmt::format("shape holds {}, expected unsigned integers", found));
      case At::kOffsets: return stop(fmt::format("data_offsets holds {}, expected two unsigned integers", found));
      case At::kTensor: {
        constexpr std::array kNames = {"dtype", "shape", "data_offsets"};
        return stop(fmt::format("{} is {}", kNames[static_cast<unsigned>(field_)], found));
      }
      case At::kEnd: break;
    }
    return stop("something follows the header's object");
  }

  Header& out_;
  At at_ = At::kStart;
  Field field_ = Field::kDType;
  unsigned seen_ = 0;  // bits of the fields the current tensor has had
  unsigned n_offsets_ = 0;
  bool have_metadata_ = false;
  std::string key_;
  TensorInfo tensor_;
  std::string why_;
};

Result<> check_extent(const TensorInfo& t, std::string_view what) {
  if (t.end < t.begin) {
    return fail(Code::kCorrupt, "{}: tensor {}: data_offsets [{}, {}] run backwards", what, printable(t.name), t.begin,
                t.end);
  }
  std::int64_t elements = 0;
  if (!element_count(t.shape, elements) || elements > INT64_MAX / 8) {
    return fail(Code::kCorrupt, "{}: tensor {}: shape {} has more elements than a file can hold", what,
                printable(t.name), to_string(t.shape));
  }
  const std::uint64_t expected = static_cast<std::uint64_t>(elements) * size_of(t.dtype);
  if (t.end - t.begin != expected) {
    return fail(Code::kCorrupt, "{}: tensor {}: data_offsets span {} bytes, expected {} for {} {}", what,
                printable(t.name), t.end - t.begin, expected, name_of(t.dtype), to_string(t.shape));
  }
  return {};
}

// Payloads follow each other exactly, from 0 to `payload`. Sorts the tensors into payload order.
Result<> check_layout(std::vector<TensorInfo>& tensors, std::uint64_t payload, std::string_view what) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end != b.end ? a.end < b.end : a.name < b.name;
  });
  std::uint64_t at = 0;
  const std::string* previous = nullptr;
  for (const TensorInfo& t : tensors) {
    if (t.begin < at) {
      return fail(Code::kCorrupt, "{}: tensor {} starts at payload byte {}, inside {} which ends at {}", what,
                  printable(t.name), t.begin, printable(*previous), at);
    }
    if (t.begin > at) {
      return fail(Code::kCorrupt, "{}: tensor {} starts at payload byte {}, expected {}: a gap of {} bytes", what,
                  printable(t.name), t.begin, at, t.begin - at);
    }
    if (t.end > payload) {
      return fail(Code::kCorrupt, "{}: truncated: tensor {} ends at payload byte {}, but the file has only {}", what,
                  printable(t.name), t.end, payload);
    }
    at = t.end;
    previous = &t.name;
  }
  if (at != payload) {
    return fail(Code::kCorrupt, "{}: {} bytes follow the last tensor, expected none", what, payload - at);
  }
  return {};
}

std::vector<std::uint32_t> order_by_name(const std::vector<TensorInfo>& tensors) {
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return tensors[a].name < tensors[b].name; });
  return order;
}

Result<> check_unique(const std::vector<TensorInfo>& tensors, std::string_view what) {
  const std::vector<std::uint32_t> order = order_by_name(tensors);
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (tensors[order[i]].name == tensors[order[i - 1]].name) {
      return fail(Code::kCorrupt, "{}: tensor {} appears twice", what, printable(tensors[order[i]].name));
    }
  }
  return {};
}

}  // namespace

Result<Header> parse_header(std::span<const std::byte> file, std::string_view what) {
  if (file.size() < 8) {
    return fail(Code::kCorrupt, "{}: {} bytes, too short for a safetensors file (its header length takes 8)", what,
                file.size());
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  if (length > kMaxHeaderBytes) {
    return fail(Code::kCorrupt, "{}: header length {}, more than the {} a safetensors header may have", what, length,
                kMaxHeaderBytes);
  }
  if (length > file.size() - 8) {
    return fail(Code::kCorrupt, "{}: truncated: header length {}, but only {} bytes follow it", what, length,
                file.size() - 8);
  }
  Header header;
  HeaderReader reader(header);
  const auto* text = reinterpret_cast<const char*>(file.data()) + 8;
  if (length == 0 || *text != '{')
    return fail(Code::kCorrupt, "{}: the header does not start with an opening brace", what);
  if (!nlohmann::json::sax_parse(text, text + length, &reader)) {
    return fail(Code::kCorrupt, "{}: {}", what, reader.why());
  }
  for (const TensorInfo& t : header.tensors) FATHOM_TRY(check_extent(t, what));
  FATHOM_TRY(check_unique(header.tensors, what));
  FATHOM_TRY(check_layout(header.tensors, file.size() - 8 - length, what));
  for (TensorInfo& t : header.tensors) {
    t.begin += 8 + length;
    t.end += 8 + length;
  }
  return header;
}

SafetensorsFile::SafetensorsFile(MappedFile map, Header header)
    : map_(std::move(map)), header_(std::move(header)), by_name_(order_by_name(header_.tensors)) {}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  FATHOM_ASSIGN(MappedFile map, MappedFile::open(path));
  FATHOM_ASSIGN(Header header, parse_header(map.bytes(), path.string()));
  return SafetensorsFile(std::move(map), std::move(header));
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](std::uint32_t i, std::string_view n) { return header_.tensors[i].name < n; });
  if (it == by_name_.end() || header_.tensors[*it].name != name) return nullptr;
  return &header_.tensors[*it];
}

bool dtype_from(std::string_view text, DType& out) {
  const auto* it = std::find_if(kAllDTypes.begin(), kAllDTypes.end(), [&](DType t) { return name_of(t) == text; });
  if (it == kAllDTypes.end()) return false;
  out = *it;
  return true;
}

bool element_count(std::span<const std::int64_t> shape, std::int64_t& out) {
  out = 1;
  for (const std::int64_t n : shape) {
    if (n < 0 || __builtin_mul_overflow(out, n, &out)) return false;
  }
  return true;
}

std::string to_string(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string printable(std::string_view name) {
  std::size_t keep = std::min<std::size_t>(name.size(), 120);
  while (keep > 0 && keep < name.size() && (static_cast<unsigned char>(name[keep]) & 0xc0U) == 0x80U) --keep;
  std::string out;
  for (const char c : name.substr(0, keep)) {
    const auto u = static_cast<unsigned char>(c);
    if (u < 0x20 || u == 0x7f) out += fmt::format("\\x{:02x}", u);
    else out += c;
  }
  if (keep < name.size()) out += "...";
  return out;
}

}  // namespace fathom::checkpoint
