#include "ops/kernel_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace fathom::ops {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

LeafSet named(const std::vector<std::string>& names) {
  auto found = leaves_named(names);
  EXPECT_TRUE(found) << found.error().what;
  return found.value_or(LeafSet{});
}

std::string error_of(const std::vector<std::string>& names) {
  const auto found = leaves_named(names);
  return found ? "no error" : found.error().what;
}

TEST(KernelTable, NamesAndLeavesAreUnique) {
  std::set<std::string_view> names;
  std::set<Leaf> leaves;
  for (const KernelLine& line : kernel_table()) {
    EXPECT_TRUE(names.insert(line.kernel).second) << line.kernel;
    if (line.portable()) continue;
    const bool first = leaves.insert(line.leaf).second;
    EXPECT_TRUE(first || line.leaf == Leaf::kCodes) << line.kernel;  // packing is for all of its lines or for none
  }
  EXPECT_EQ(leaves.size(), static_cast<std::size_t>(Leaf::kNone)) << "every leaf has a line";
}

// A twin for every leaf, and no number of rows without a kernel, wherever it runs.
TEST(KernelTable, PortableKernelsCoverEveryNumberOfRowsOnce) {
  std::set<std::int64_t> rows{0, 1, kAnyRows};
  for (const KernelLine& line : kernel_table()) {
    EXPECT_LE(line.least_rows, line.most_rows) << line.kernel;
    rows.insert({line.least_rows, line.most_rows});
    if (line.portable()) {
      EXPECT_EQ(line.needs, Needs::kAny) << line.kernel;
    }
  }
  for (const KernelLine& line : kernel_table()) {
    for (const std::int64_t n : rows) {
      int covered = 0;
      for (const KernelLine& l : kernel_table()) {
        if (l.operation == line.operation && l.weights == line.weights && l.portable() && l.takes_rows(n)) ++covered;
      }
      EXPECT_EQ(covered, 1) << line.operation << " " << line.weights << ", " << n << " rows";
      const KernelLine* chosen = chosen_line(line.operation, line.weights, n, {});
      ASSERT_NE(chosen, nullptr);
      EXPECT_TRUE(chosen->portable());
    }
  }
}

TEST(KernelTable, LeavesNeedTheirGpuAndTheirCode) {
  for (const KernelLine& line : kernel_table()) {
    if (line.portable()) continue;
    EXPECT_FALSE(KernelChoice().uses(line.leaf)) << line.kernel;
    for (const int capability : {80, 86, 89, 90, 100, 103, 120}) {
      for (const bool hopper_code : {false, true}) {
        const bool able = line.needs == Needs::kAny || (line.needs == Needs::kFrom90 && capability >= 90) ||
                          (capability == 90 && hopper_code);
        const KernelChoice choice(capability, hopper_code, {});
        EXPECT_EQ(choice.uses(line.leaf), able) << line.kernel << " on " << capability;
        EXPECT_EQ(choice.takes(line.leaf, line.least_rows), able);
        EXPECT_EQ(choice.takes(line.leaf, line.most_rows), able);
        if (line.least_rows > 0) {
          EXPECT_FALSE(choice.takes(line.leaf, line.least_rows - 1)) << line.kernel;
        }
        if (line.most_rows < kAnyRows) {
          EXPECT_FALSE(choice.takes(line.leaf, line.most_rows + 1)) << line.kernel;
        }
        if (able) {
          EXPECT_FALSE(chosen_line(line.operation, line.weights, line.least_rows, choice)->portable()) << line.kernel;
        }
      }
    }
  }
}

TEST(KernelTable, ALeafThatIsTurnedOffGivesItsRowsBack) {
  LeafSet all;
  for (const KernelLine& line : kernel_table()) {
    if (line.portable()) continue;
    const LeafSet off = named({std::string(line.kernel)});
    EXPECT_TRUE(off.has(line.leaf));
    const KernelChoice choice(90, true, off);
    EXPECT_FALSE(choice.uses(line.leaf));
    EXPECT_FALSE(choice.takes(line.leaf, line.least_rows));
    EXPECT_NE(chosen_line(line.operation, line.weights, line.least_rows, choice)->leaf, line.leaf);
    EXPECT_THAT(describe_off(off), AllOf(StartsWith(" without "), HasSubstr(std::string(line.kernel))));
    all.add(line.leaf);
  }
  const LeafSet named_all = named({"all"});
  for (const KernelLine& line : kernel_table()) {
    if (!line.portable()) {
      EXPECT_TRUE(named_all.has(line.leaf)) << line.kernel;
    }
  }
  EXPECT_EQ(describe_off(named({})), "");
}

TEST(KernelTable, OtherNamesAreRefusedWithTheList) {
  EXPECT_THAT(error_of({"early-lunch"}), HasSubstr("early-lunch is no kernel"));
  EXPECT_THAT(error_of({"early-lunch"}), HasSubstr("early-launch"));
  EXPECT_THAT(error_of({"early-launch", "linear.fp8.list8"}), HasSubstr("linear.fp8.list8 is a portable kernel"));
  EXPECT_THAT(error_of({""}), HasSubstr("can be turned off"));
}

}  // namespace
}  // namespace fathom::ops
