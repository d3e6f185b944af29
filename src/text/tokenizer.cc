#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "base/check.h"
#include "base/mapped_file.h"
#include "text/bpe.h"
#include "text/detokenizer.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_file.h"

namespace fathom::text {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{64} << 20;

// The added tokens, found in text by the longest spelling that begins at a place.
class AddedTokens {
 public:
  // Errors (kCorrupt): two ids with one spelling.
  static Result<AddedTokens> build(std::vector<AddedToken> tokens) {
    AddedTokens a;
    a.sorted_ = std::move(tokens);
    std::sort(a.sorted_.begin(), a.sorted_.end(), [](const auto& x, const auto& y) { return x.content < y.content; });
    for (std::size_t i = 0; i < a.sorted_.size(); ++i) {
      if (i > 0 && a.sorted_[i].content == a.sorted_[i - 1].content) {
        return fail(Code::kCorrupt, "the added tokens {} and {} have the same content", a.sorted_[i - 1].id,
                    a.sorted_[i].id);
      }
      a.begins_[static_cast<std::uint8_t>(a.sorted_[i].content[0])] = true;
    }
    return a;
  }

  std::optional<std::int32_t> id_of(std::string_view content) const {
    const auto it = std::lower_bound(sorted_.begin(), sorted_.end(), content,
                                     [](const AddedToken& t, std::string_view s) { return t.content < s; });
    if (it == sorted_.end() || it->content != content) return std::nullopt;
    return it->id;
  }

  // The longest token that begins at text[at]; null if none does. Narrows the sorted list byte by byte, so it looks at
  // no more of the text than a spelling has.
  const AddedToken* match(std::string_view text, std::size_t at) const {
    const AddedToken* longest = nullptr;
    auto low = sorted_.begin();
    auto high = sorted_.end();
    for (std::size_t n = 0; low != high; ++n) {
      if (low->content.size() == n) longest = &*low++;
      if (at + n == text.size()) break;
      const auto byte = static_cast<std::uint8_t>(text[at + n]);
      const auto at_n = [n](const AddedToken& t) { return static_cast<std::uint8_t>(t.content[n]); };
      low = std::partition_point(low, high, [&](const AddedToken& t) { return at_n(t) < byte; });
      high = std::partition_point(low, high, [&](const AddedToken& t) { return at_n(t) == byte; });
    }
    return longest;
  }

  bool begins(char c) const { return begins_[static_cast<std::uint8_t>(c)]; }
  const std::vector<AddedToken>& sorted() const { return sorted_; }

 private:
  std::vector<AddedToken> sorted_;  // by content, so that a prefix comes before what it begins
  std::array<bool, 256> begins_ = {};
};

}  // namespace

struct Tokenizer::State {
  PreTokenizer pieces;
  AddedTokens added;
  TokenBytes bytes;            // of all ids
  std::vector<bool> is_added;  // by id
  Bpe bpe;

  static Result<std::unique_ptr<const State>> build(TokenizerFile file);
  Result<> spell(const TokenizerFile& file);
  Result<> index_merges(const TokenizerFile& file);
  void encode_plain(std::string_view text, std::vector<std::int32_t>& ids) const;
  void encode_special(std::string_view text, std::vector<std::int32_t>& ids) const;
};

// Gives every id its bytes. The ids of vocabulary and added tokens together must be 0..n-1 without holes.
Result<> Tokenizer::State::spell(const TokenizerFile& file) {
  std::size_t size = file.vocab.size();
  for (const AddedToken& t : added.sorted()) size = std::max(size, static_cast<std::size_t>(t.id) + 1);
  if (size > file.vocab.size() + added.sorted().size()) {
    return fail(Code::kCorrupt, "added token ids run to {}, but only {} tokens are listed", size - 1,
                file.vocab.size() + added.sorted().size());
  }
  constexpr std::size_t kNone = ~std::size_t{0};
  std::vector<std::size_t> entry(file.vocab.size(), kNone);  // id -> index in the file
  for (std::size_t i = 0; i < file.vocab.size(); ++i) {
    const std::int64_t id = file.vocab[i].id;
    if (id < 0 || id >= static_cast<std::int64_t>(entry.size()) || entry[static_cast<std::size_t>(id)] != kNone) {
      return fail(Code::kCorrupt, "vocabulary id {} is out of range or used twice; expected each of 0 to {} once", id,
                  entry.size() - 1);
    }
    entry[static_cast<std::size_t>(id)] = i;
  }
  std::vector<const AddedToken*> added_by_id(size, nullptr);
  for (const AddedToken& t : added.sorted()) {
    const AddedToken*& place = added_by_id[static_cast<std::size_t>(t.id)];
    if (place != nullptr) return fail(Code::kCorrupt, "added token id {} appears twice", t.id);
    place = &t;
  }
  bytes.reserve(size, file.letters.size());
  is_added.resize(size);
  std::string spelled;
  for (std::size_t id = 0; id < size; ++id) {
    const AddedToken* as_added = added_by_id[id];
    is_added[id] = as_added != nullptr;
    if (id >= entry.size()) {
      if (as_added == nullptr) return fail(Code::kCorrupt, "no token has the id {}", id);
      bytes.push_back(as_added->content);
      continue;
    }
    const std::string_view letters = file.at(file.vocab[entry[id]].token);
    if (as_added != nullptr) {
      if (as_added->content != letters) {
        return fail(Code::kCorrupt, "id {} is \"{}\" in the vocabulary and \"{}\" among the added tokens", id, letters,
                    as_added->content);
      }
      bytes.push_back(as_added->content);
    } else {
      if (!letters_to_bytes(letters, spelled) || spelled.empty()) {
        return fail(Code::kCorrupt, "vocabulary entry {} (\"{}\") is not written in byte letters", id, letters);
      }
      bytes.push_back(spelled);
    }
  }
  return {};
}

Result<> Tokenizer::State::index_merges(const TokenizerFile& file) {
  TokenBytes parts;
  parts.reserve(file.merges.size() * 2, file.letters.size());
  std::string spelled;
  for (const auto& [left, right] : file.merges) {
    for (const TokenizerFile::Span part : {left, right}) {
      if (!letters_to_bytes(file.at(part), spelled)) {
        return fail(Code::kCorrupt, "merge {}: \"{}\" is not written in byte letters", parts.size() / 2, file.at(part));
      }
      parts.push_back(spelled);
    }
  }
  std::vector<Bpe::Merge> merges(file.merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::string_view left = parts[2 * i];  // the right part lies behind it
    merges[i] = {{left.data(), left.size() + parts[2 * i + 1].size()}, left.size()};
  }
  FATHOM_ASSIGN(bpe, Bpe::build(bytes, is_added, merges));
  return {};
}

Result<std::unique_ptr<const Tokenizer::State>> Tokenizer::State::build(TokenizerFile file) {
  auto state = std::make_unique<State>();
  FATHOM_ASSIGN(state->added, AddedTokens::build(std::move(file.added)));
  FATHOM_TRY(state->spell(file));
  FATHOM_TRY(state->index_merges(file));
  return std::unique_ptr<const State>(std::move(state));
}

void Tokenizer::State::encode_plain(std::string_view text, std::vector<std::int32_t>& ids) const {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = pieces.piece_end(text, begin);
    bpe.encode(text.substr(begin, end - begin), ids);
    begin = end;
  }
}

void Tokenizer::State::encode_special(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::size_t plain = 0;  // where the ordinary text since the last added token begins
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* token = added.begins(text[at]) ? added.match(text, at) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    encode_plain(text.substr(plain, at - plain), ids);
    ids.push_back(token->id);
    at += token->content.size();
    plain = at;
  }
  encode_plain(text.substr(plain), ids);
}

Tokenizer::Tokenizer(std::unique_ptr<const State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view what) {
  FATHOM_ASSIGN(TokenizerFile file, read_tokenizer_file(json, what));
  auto state = State::build(std::move(file));
  if (!state) return fail(state.error().code, "{}: {}", what, state.error().what);
  return Tokenizer(std::move(*state));
}

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto file = std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json" : path;
  FATHOM_ASSIGN(const std::string json, read_text_file(file, kMaxFileBytes));
  return parse(json, file.string());
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, Mode mode) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 4 + 1);
  encode_to(text, mode, ids);
  return ids;
}

void Tokenizer::encode_to(std::string_view text, Mode mode, std::vector<std::int32_t>& ids) const {
  FATHOM_CHECK(text.size() < 0x7FFFFFFF, "text to encode is shorter than 2 GiB");
  if (mode == Mode::kPlain) {
    state_->encode_plain(text, ids);
  } else {
    state_->encode_special(text, ids);
  }
}

std::int32_t Tokenizer::vocab_size() const { return static_cast<std::int32_t>(state_->bytes.size()); }

std::optional<std::string_view> Tokenizer::token_bytes(std::int32_t id) const {
  if (id < 0 || id >= vocab_size()) return std::nullopt;
  return state_->bytes[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Tokenizer::control_id(std::string_view spelling) const {
  return state_->added.id_of(spelling);
}

bool Tokenizer::is_added(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && state_->is_added[static_cast<std::size_t>(id)];
}

Result<std::string> Tokenizer::decode(std::span<const std::int32_t> ids) const {
  Detokenizer stream(*this);
  std::string text;
  for (const std::int32_t id : ids) {
    FATHOM_ASSIGN(const std::string piece, stream.push(id));
    text += piece;
  }
  return text + stream.finish();
}

}  // namespace fathom::text
