// The device as a backend: memory, copies, faults, recorded steps, forks.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "cuda/twin.h"
#include "support/golden.h"

namespace fathom::testing {
namespace {

using Memory = OnDevice;

TEST_F(Memory, IsZeroedAlignedAndReused) {
  for (const std::size_t bytes : {0UL, 1UL, 255UL, 256UL, 450'000UL, 9UL << 20}) {
    for (int turn = 0; turn < 3; ++turn) {
      auto b = device().allocate(bytes);
      ASSERT_TRUE(b);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b->get()) % 256, 0U);
      std::vector<std::uint8_t> values(bytes, 1);
      device().copy_out(values.data(), b->get(), bytes);
      EXPECT_EQ(std::count(values.begin(), values.end(), 0), static_cast<std::ptrdiff_t>(bytes)) << "turn " << turn;
      std::fill(values.begin(), values.end(), 0xff);
      device().copy_in(b->get(), values.data(), bytes);
    }
  }
}

TEST_F(Memory, WeightsOfEverySizeArrive) {
  std::vector<std::vector<std::uint8_t>> weights;
  for (const std::size_t bytes : {1UL, 1UL << 20, 8UL << 20, (8UL << 20) + 1, 1000UL, 700UL << 20}) {
    auto& w = weights.emplace_back(bytes);
    for (std::size_t i = 0; i < bytes; ++i) w[i] = static_cast<std::uint8_t>(i * 13 + i / 509 + bytes);
  }
  std::vector<const std::byte*> placed;
  for (const auto& w : weights) {
    const auto at = device().adopt(std::as_bytes(std::span(w)));
    ASSERT_TRUE(at) << at.error().what;
    placed.push_back(*at);
  }
  for (int turn = 0; turn < 2; ++turn) {  // read before anything waited, and after
    for (std::size_t i = weights.size(); i-- > 0;) {
      std::vector<std::uint8_t> out(weights[i].size());
      device().copy_out(out.data(), placed[i], out.size());
      EXPECT_EQ(out, weights[i]) << i;
    }
    ASSERT_TRUE(device().finish());
  }
}

TEST_F(Memory, CopiesOfEverySizeArrive) {
  for (const std::size_t bytes : {1UL, 4096UL, 4UL << 20, (4UL << 20) + 1, 33UL << 20}) {
    std::vector<std::uint8_t> in(bytes);
    for (std::size_t i = 0; i < bytes; ++i) in[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
    const Twin<std::uint8_t> a(in);
    auto b = device().allocate(bytes);
    ASSERT_TRUE(b);
    device().copy(b->get(), reinterpret_cast<const std::byte*>(a.device()), bytes);
    std::vector<std::uint8_t> out(bytes);
    device().copy_out(out.data(), b->get(), bytes);
    EXPECT_EQ(out, in) << bytes;
    const auto adopted = device().adopt(std::as_bytes(std::span(in)));
    ASSERT_TRUE(adopted);
    device().copy_out(out.data(), *adopted, bytes);
    EXPECT_EQ(out, in) << bytes;
  }
}

// A table whose elements no 32 bits can count.
TEST_F(Memory, BeyondFourGibibytes) {
  constexpr std::int64_t kWidth = 64;
  constexpr std::int64_t kIds = 40'000'000;
  const auto table = device().allocate(static_cast<std::size_t>(kIds * kWidth) * sizeof(float));
  if (!table) GTEST_SKIP() << table.error().what;
  const std::vector<float> row = normal(kWidth, 6);
  const std::int32_t id = kIds - 1;
  device().copy_in(table->get() + static_cast<std::size_t>(id) * kWidth * sizeof(float), row.data(),
                   row.size() * sizeof(float));
  const Twin<std::int32_t> ids({0, id});
  auto x = Twin<float>::poisoned(2 * kWidth);
  device().embed({.ids = ids.device(),
                  .table = {.dtype = DType::kF32, .data = table->get(), .rows = kIds, .cols = kWidth},
                  .streams = 1,
                  .x = x.on_device(2, kWidth)});
  std::vector<float> want(kWidth, 0.0F);
  want.insert(want.end(), row.begin(), row.end());
  EXPECT_EQ(x.fetch(), want);
}

TEST_F(Memory, TooMuchIsAnErrorAndNoFault) {
  const auto b = device().allocate(std::size_t{1} << 50);
  ASSERT_FALSE(b);
  EXPECT_EQ(b.error().code, Code::kExhausted);
  EXPECT_NE(b.error().what.find(std::to_string(std::size_t{1} << 50).substr(0, 6)), std::string::npos)
      << b.error().what;
  EXPECT_TRUE(device().finish());
}

// In a process of its own: a faulty context is of no further use to anyone.
TEST(DeviceFault, IsReportedNamedAndFinal) {
  auto opened = ops::open_cuda({.blame = true});
  if (!opened) GTEST_SKIP() << opened.error().what;
  opened->reset();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fault = [] {
    auto backend = ops::open_cuda({.blame = true});
    auto memory = (*backend)->allocate(1 << 20);
    auto* x = reinterpret_cast<float*>(memory->get());
    // Ids from nowhere.
    (*backend)->embed({.ids = reinterpret_cast<const std::int32_t*>(0x10),
                       .table = {.dtype = DType::kF32, .data = memory->get(), .rows = 8, .cols = 8},
                       .streams = 1,
                       .x = mat(x, 4, 8)});
    const auto first = (*backend)->finish();
    (*backend)->rms_norm({.x = mat(x, 4, 8), .w = x, .y = mat(x, 4, 8), .eps = 1});
    const auto second = (*backend)->finish();
    std::fprintf(stderr, "%s\n", first ? "no fault" : first.error().what.c_str());
    std::_Exit(!first && first.error().code == Code::kInternal && !second && second.error().what == first.error().what
                   ? 7
                   : 8);
  };
  EXPECT_EXIT(fault(), ::testing::ExitedWithCode(7), "embed");
}

// A process that has looked at models forks; both halves then use the device. The test runs in a process of its own,
// which must not have opened a device before: so only the driver's library is looked for here.
TEST(DeviceFork, BothHalvesCanUseTheDevice) {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr) GTEST_SKIP() << "no driver";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto both = [] {
    if (open_model("micro-random").tensors().empty()) std::_Exit(1);
    const pid_t child = fork();
    const auto opened = ops::open_cuda({});
    const bool works = opened && (*opened)->allocate(1000) && (*opened)->finish();
    if (child == 0) std::_Exit(works ? 0 : 2);
    int status = 0;
    waitpid(child, &status, 0);
    std::_Exit(works && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 7 : 3);
  };
  EXPECT_EXIT(both(), ::testing::ExitedWithCode(7), "");
}

// Whole models with recording on and off: the same bytes, whatever the batch.
class Replay : public ::testing::TestWithParam<std::pair<std::string, ops::Numerics>> {
 protected:
  void SetUp() override {
    if (Device::get().backend == nullptr) GTEST_SKIP() << Device::get().why;
  }
};

struct Decoder {
  Decoder(const std::string& name, ops::Numerics n, bool replay) {
    backend = std::move(*ops::open_cuda({.replay = replay}));
    model = std::move(
        *model::Model::load(open_model(name), *backend, {.numerics = n, .max_step_tokens = 64, .max_logit_rows = 64}));
  }
  // Decodes `steps` tokens of `n` sequences at once; all logits, step by step.
  std::vector<float> decode(int n, int steps) {
    std::vector<cache::Sequence> sequences;
    for (int i = 0; i < n; ++i) sequences.push_back(std::move(*cache::Sequence::create(model->layout(), *backend)));
    std::vector<float> all;
    const auto vocab = static_cast<std::uint32_t>(model->config().vocab);
    std::mt19937 rng(5);
    for (int s = 0; s < steps; ++s) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
      std::vector<model::Chunk> chunks;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<std::int32_t>(rng() % vocab);
        EXPECT_TRUE(sequences[i].reserve(1));
        chunks.push_back({.ids = std::span(ids).subspan(i, 1),
                          .start = sequences[i].length(),
                          .slot = sequences[i].slot(),
                          .pages = sequences[i].pages(),
                          .logits = model::Rows::kLast});
      }
      const auto out = model->forward(chunks);
      EXPECT_TRUE(out) << out.error().what;
      if (!out) return {};
      const auto logits = fetch(*backend, *out);
      all.insert(all.end(), logits.begin(), logits.end());
      for (auto& sequence : sequences) sequence.advance(1);
    }
    return all;
  }
  std::unique_ptr<ops::Backend> backend;
  std::unique_ptr<model::Model> model;
};

TEST_P(Replay, OnAndOffGiveTheSameBytes) {
  Decoder on(GetParam().first, GetParam().second, true);
  Decoder off(GetParam().first, GetParam().second, false);
  const int steps = small_sizes() ? 9 : 150;
  for (const int n : {1, 2, 5, 17, 1}) {
    if (small_sizes() && n > 2) continue;
    const auto a = on.decode(n, steps);
    const auto b = off.decode(n, steps);
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << n << " sequences";
    EXPECT_EQ(std::count_if(a.begin(), a.end(), [](float x) { return !std::isfinite(x); }), 0);
  }
}

// Every size of batch in turn, each often enough to be recorded and launched.
TEST_P(Replay, EveryBatchSizeInTurn) {
  Decoder on(GetParam().first, GetParam().second, true);
  Decoder off(GetParam().first, GetParam().second, false);
  for (int n = 1; n <= (small_sizes() ? 3 : 64); ++n) {
    const auto a = on.decode(n, 3);
    const auto b = off.decode(n, 3);
    ASSERT_EQ(a.size(), b.size());
    ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << n << " sequences";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Replay,
                         ::testing::Values(std::pair("micro-random-fp", ops::kFloat),
                                           std::pair("micro-random", ops::kOfficial),
                                           std::pair("fathom-tiny", ops::kOfficialBf16)),
                         [](const auto& param_info) {
                           std::string name = param_info.param.first;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace fathom::testing
