#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <system_error>

#include "checkpoint/config.h"
#include "checkpoint/content.h"
#include "checkpoint/index.h"
#include "checkpoint/names.h"
#include "checkpoint/safetensors.h"

namespace fathom::checkpoint {
namespace {

constexpr const char* kConfigName = "config.json";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

bool is_draft(std::string_view name) { return name.starts_with("mtp."); }

bool is_there(const std::filesystem::path& p) {
  std::error_code ignored;
  // A dangling link counts: opening it says what is wrong with it.
  return std::filesystem::symlink_status(p, ignored).type() != std::filesystem::file_type::not_found;
}

}  // namespace

// Opens step by step; what is wrong goes into the checkpoint's problems, so that one report has it all.
class CheckpointBuilder {
 public:
  CheckpointBuilder(const std::filesystem::path& folder, OpenOptions options) : options_(options) { c_.path_ = folder; }

  Result<Checkpoint> open() {
    std::error_code error;
    if (!std::filesystem::is_directory(c_.path_, error)) {
      return fail(Code::kNotFound,
                  "{}: found {}, expected the folder of a checkpoint (config.json and safetensors files)",
                  c_.path_.string(), is_there(c_.path_) ? "a file" : "nothing");
    }
    FATHOM_TRY(read_config());
    FATHOM_TRY(read_index());
    open_files();
    if (unreadable_ == 0) {
      if (index_) check_index();
      FATHOM_TRY(check());
    }
    if (options_.access == Access::kData) {
      FATHOM_TRY(report());
      FATHOM_TRY(make_usable());
      check_ids(c_, c_.problems_);
      FATHOM_TRY(report());
    }
    return std::move(c_);
  }

 private:
  Result<> read_config() {
    const std::filesystem::path file = c_.path_ / kConfigName;
    FATHOM_ASSIGN(const std::string text, read_text_file(file, kMaxConfigBytes));
    FATHOM_ASSIGN(c_.config_, parse_config(text, file.string()));
    return {};
  }

  // Leaves the names of the files to open in c_.files_.
  Result<> read_index() {
    const std::filesystem::path file = c_.path_ / kIndexName;
    const bool single = is_there(c_.path_ / kSingleName);
    if (!is_there(file)) {
      if (!single) {
        return fail(Code::kNotFound, "{}: found neither {} nor {}", c_.path_.string(), kIndexName, kSingleName);
      }
      c_.files_.push_back({kSingleName, 0});
      return {};
    }
    FATHOM_ASSIGN(const std::string text, read_text_file(file, kMaxIndexBytes));
    FATHOM_ASSIGN(index_, parse_index(text, file.string()));
    std::vector<bool> wanted(index_->files.size(), options_.draft);
    if (!options_.draft) {
      for (const Index::Entry& e : index_->entries) {
        if (!is_draft(e.tensor)) wanted[e.file] = true;
      }
    }
    file_of_index_.assign(index_->files.size(), kNotOpened);
    for (std::size_t i = 0; i < index_->files.size(); ++i) {
      if (!wanted[i]) continue;
      file_of_index_[i] = static_cast<std::uint32_t>(c_.files_.size());
      c_.files_.push_back({index_->files[i], 0});
    }
    if (single && !std::binary_search(index_->files.begin(), index_->files.end(), kSingleName)) {
      c_.notes_.push_back(fmt::format("{} is ignored: {} does not name it", kSingleName, kIndexName));
    }
    return {};
  }

  void open_files() {
    for (std::uint32_t i = 0; i < c_.files_.size(); ++i) {
      auto opened = SafetensorsFile::open(c_.path_ / c_.files_[i].name);
      if (!opened) {
        ++unreadable_;
        c_.problems_.add({"", "", opened.error().what, ""});
        continue;
      }
      auto [map, header] = std::move(*opened).release();
      c_.files_[i].bytes = map.bytes().size();
      for (TensorInfo& t : header.tensors) {
        payload_bytes_ += t.end - t.begin;
        const std::span<const std::byte> bytes = map.bytes().subspan(t.begin, t.end - t.begin);
        add(std::move(t), bytes, i);
      }
      c_.maps_.push_back(std::move(map));
    }
    std::sort(c_.tensors_.begin(), c_.tensors_.end(), [](const Tensor& a, const Tensor& b) { return a.name < b.name; });
  }

  void add(TensorInfo t, std::span<const std::byte> bytes, std::uint32_t file) {
    if (index_) stored_.push_back({t.name, file});
    if (!options_.draft && is_draft(t.name)) return;
    if (!is_transformers_name(t.name)) {
      c_.tensors_.push_back({std::move(t.name), t.dtype, std::move(t.shape), bytes, file, {}});
      return;
    }
    OfficialName official = official_name(t.name);
    if (official.merged != Merged::kNo) return add_merged(t, official, bytes, file);
    c_.tensors_.push_back({std::move(official.name), t.dtype, std::move(t.shape), bytes, file, std::move(t.name)});
  }

  // One view per expert and matrix. The scale blocks of FP8 must not straddle w1 and w3.
  void add_merged(const TensorInfo& t, const OfficialName& official, std::span<const std::byte> bytes,
                  std::uint32_t file) {
    const bool gate_up = official.merged == Merged::kGateUp;
    const std::int64_t parts = gate_up ? 2 : 1;
    if (t.shape.size() != 3 || t.shape[0] != c_.config_.routed_experts || t.shape[1] % parts != 0 ||
        (gate_up && t.dtype == DType::kF8E4M3 && t.shape[1] % 256 != 0)) {
      c_.problems_.add(
          {c_.files_[file].name, t.name, to_string(t.shape),
           fmt::format("[{}, {}, ...], the rows of all {} experts{}", c_.config_.routed_experts, gate_up ? "2I" : "d",
                       c_.config_.routed_experts, gate_up ? ", I a multiple of 128 where they are FP8" : "")});
      return;
    }
    if (bytes.empty()) return;
    const Shape shape = {t.shape[1] / parts, t.shape[2]};
    const std::size_t step = bytes.size() / static_cast<std::size_t>(t.shape[0] * parts);
    for (std::int64_t i = 0; i < t.shape[0] * parts; ++i) {
      const char* matrix = !gate_up ? "w2" : i % 2 == 0 ? "w1" : "w3";
      c_.tensors_.push_back({merged_part(official, i / parts, matrix), t.dtype, shape,
                             bytes.subspan(static_cast<std::size_t>(i) * step, step), file, t.name});
    }
  }

  // The index and the headers must tell the same.
  void check_index() {
    std::sort(stored_.begin(), stored_.end(), [](const Stored& a, const Stored& b) { return a.name < b.name; });
    auto s = stored_.begin();
    for (const Index::Entry& e : index_->entries) {
      for (; s != stored_.end() && s->name < e.tensor; ++s) not_in_index(*s);
      const std::uint32_t file = file_of_index_[e.file];
      bool found = false;
      for (; s != stored_.end() && s->name == e.tensor; ++s) {
        if (s->file == file) found = true;
        else not_in_index(*s);
      }
      if (!found && file != kNotOpened) {
        c_.problems_.add(
            {index_->files[e.file], e.tensor, "nothing", fmt::format("the tensor that {} promises", kIndexName)});
      }
    }
    for (; s != stored_.end(); ++s) not_in_index(*s);
    if (index_->total_bytes && options_.draft && *index_->total_bytes != payload_bytes_) {
      c_.problems_.add({kIndexName, "metadata.total_size", fmt::format("{}", *index_->total_bytes),
                        fmt::format("{}, the bytes of all tensors", payload_bytes_)});
    }
  }

  struct Stored {
    std::string name;
    std::uint32_t file;
  };
  void not_in_index(const Stored& s) {
    c_.problems_.add(
        {c_.files_[s.file].name, s.name, "a tensor", fmt::format("none: {} does not place it here", kIndexName)});
  }

  Result<> check() {
    std::vector<Found> found;
    found.reserve(c_.tensors_.size());
    for (const Tensor& t : c_.tensors_) {
      if (!found.empty() && found.back().name == t.name) {
        c_.problems_.add({std::string(c_.file_of(t)), std::string(t.stored_name()), "a second tensor of this name",
                          fmt::format("the one in {} alone", found.back().file)});
        continue;
      }
      found.push_back({t.name, t.stored_name(), c_.file_of(t), t.dtype, t.shape});
    }
    decide_draft(c_.config_, found);
    // DSpark tensors need DSpark constants.
    if (auto ok = validate(c_.config_); !ok) {
      return fail(Code::kInvalid, "{}: {}", (c_.path_ / kConfigName).string(), ok.error().what);
    }
    check_tensors(c_.config_, found, c_.problems_);
    return {};
  }

  Result<> report() const {
    if (c_.problems_.empty()) return {};
    return fail(Code::kCorrupt, "{}: {} problem{}:\n  {}", c_.path_.string(), c_.problems_.total,
                c_.problems_.total == 1 ? "" : "s", c_.problems_.summary());
  }

  // Copies what cannot be used where it lies.
  Result<> make_usable() {
    for_each_slot(c_.config_, [&](const Slot& slot) {
      if (slot.form != Form::kFull) return;
      if (const Tensor* t = c_.find(slot.name); t->dtype == DType::kBf16) {
        to_widen_.push_back(static_cast<std::size_t>(t - c_.tensors_.data()));
      }
    });
    for (const std::size_t i : to_widen_) FATHOM_TRY(widen(c_.tensors_[i]));
    for (Tensor& t : c_.tensors_) {
      if (reinterpret_cast<std::uintptr_t>(t.bytes.data()) % size_of(t.dtype) == 0) continue;
      FATHOM_ASSIGN(std::byte* const copy, own(t.bytes.size()));
      std::memcpy(copy, t.bytes.data(), t.bytes.size());
      t.bytes = {copy, t.bytes.size()};
    }
    return {};
  }

  // BF16 to F32: its bits are the upper half.
  Result<> widen(Tensor& t) {
    const std::size_t n = t.bytes.size() / 2;
    FATHOM_ASSIGN(std::byte* const wide, own(4 * n));
    std::memset(wide, 0, 4 * n);
    for (std::size_t i = 0; i < n; ++i) std::memcpy(wide + 4 * i + 2, t.bytes.data() + 2 * i, 2);
    t.dtype = DType::kF32;
    t.bytes = {wide, 4 * n};
    return {};
  }

  // `new` aligns to 16, more than any element needs.
  Result<std::byte*> own(std::size_t bytes) {
    std::unique_ptr<std::byte[]> buffer(new (std::nothrow) std::byte[bytes]);
    if (buffer == nullptr) return fail(Code::kExhausted, "{}: no memory for {} bytes", c_.path_.string(), bytes);
    c_.copied_bytes_ += bytes;
    c_.owned_.push_back(std::move(buffer));
    return c_.owned_.back().get();
  }

  static constexpr std::uint32_t kNotOpened = UINT32_MAX;

  OpenOptions options_;
  Checkpoint c_;
  std::optional<Index> index_;
  std::vector<std::uint32_t> file_of_index_;  // position in the index's files -> in c_.files_
  std::vector<Stored> stored_;                // all headers' names, kept to compare with an index
  std::vector<std::size_t> to_widen_;
  std::uint64_t payload_bytes_ = 0;
  int unreadable_ = 0;
};

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& folder, OpenOptions options) {
  return CheckpointBuilder(folder, options).open();
}

const Tensor* Checkpoint::find(std::string_view name) const {
  const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const Tensor& t, std::string_view n) { return t.name < n; });
  return it == tensors_.end() || it->name != name ? nullptr : &*it;
}

std::uint64_t Checkpoint::tensor_bytes() const {
  std::uint64_t total = 0;
  for (const Tensor& t : tensors_) total += t.bytes.size();
  return total;
}

Result<> Checkpoint::check_unchanged() const {
  for (const MappedFile& m : maps_) {
    if (m.changed()) {
      return fail(Code::kCorrupt, "{}: changed or replaced since it was opened; open the checkpoint again",
                  m.path().string());
    }
  }
  return {};
}

}  // namespace fathom::checkpoint
