// Machines that are not at hand, as folders that look like their sysfs.
#include "base/topology.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <numeric>
#include <string>

#include "base/numa.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

class Topology : public ::testing::Test {
 protected:
  Topology() {
    std::string name = (fs::temp_directory_path() / "fathom-topology-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  ~Topology() override { fs::remove_all(root_); }

  void file(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path, std::ios::binary) << text;
  }
  void siblings(int cpu, const std::string& ids) {
    file("cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list", ids + "\n");
  }
  std::vector<int> order(int n) const {
    std::vector<int> allowed(static_cast<std::size_t>(n));
    std::iota(allowed.begin(), allowed.end(), 0);
    std::vector<int> ids;
    for (const Processor& p : read_processors(root_, allowed)) ids.push_back(p.id);
    return ids;
  }

  // Two nodes of two cores of two processors each; node 1's are 2, 3, 6, 7.
  void two_nodes() {
    file("cpu/online", "0-7\n");
    for (int cpu = 0; cpu < 8; ++cpu) siblings(cpu, std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4));
    file("node/online", "0-1\n");
    file("node/has_memory", "0-1\n");
    file("node/node0/cpulist", "0-1,4-5\n");
    file("node/node1/cpulist", "2-3,6-7\n");
  }

  fs::path root_;
};

TEST_F(Topology, CoresBeforeTheirSecondThreadsAndNodesInTurn) {
  two_nodes();
  EXPECT_EQ(order(8), (std::vector<int>{0, 2, 1, 3, 4, 6, 5, 7}));
  const auto all = read_processors(root_, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(all[1], (Processor{.id = 2, .core = 2, .node = 1}));
  EXPECT_EQ(all[7], (Processor{.id = 7, .core = 3, .node = 1}));
  EXPECT_EQ(count_cores(all), 4);
}

TEST_F(Topology, OnlyWhatIsAllowedAndOnline) {
  two_nodes();
  file("cpu/online", "0,2-7\n");
  const auto all = read_processors(root_, {1, 4, 5, 6});
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0], (Processor{.id = 4, .core = 0, .node = 0}));
  EXPECT_EQ(all[1], (Processor{.id = 6, .core = 2, .node = 1}));
  EXPECT_EQ(count_cores(all), 3);
}

TEST_F(Topology, ProcessorsOfANodeWithoutMemoryBelongToTheNearest) {
  two_nodes();
  file("node/online", "0,2-3\n");
  file("node/has_memory", "0,3\n");
  file("node/node2/cpulist", "2-3,6-7\n");
  file("node/node2/distance", "40 10 20\n");  // to 0, 2, 3
  file("node/node3/cpulist", "\n");
  EXPECT_EQ(read_processors(root_, {2})[0].node, 3);
  file("node/node2/distance", "12 10 20\n");
  EXPECT_EQ(read_processors(root_, {2})[0].node, 0);
  fs::remove(root_ / "node/node2/distance");
  EXPECT_EQ(read_processors(root_, {2})[0].node, 0);
}

TEST_F(Topology, NothingToReadOrNonsenseGivesPlainProcessors) {
  const std::vector<Processor> plain = {{.id = 0, .core = 0, .node = 0}, {.id = 5, .core = 5, .node = 0}};
  EXPECT_EQ(read_processors(root_ / "missing", {0, 5}), plain);
  const std::string garbage[] = {"",
                                 "-",
                                 "0-",
                                 "5-0",
                                 "0-99999999999999999999",
                                 "0-8192",
                                 "0,0",
                                 "a",
                                 "0 5",
                                 std::string(1 << 20, '0'),
                                 std::string("0-5\0", 4),
                                 "\xff\xfe"};
  for (const std::string& text : garbage) {
    SCOPED_TRACE(text.substr(0, 30));
    for (const char* path :
         {"cpu/online", "node/online", "node/has_memory", "node/node0/cpulist", "node/node0/distance"}) {
      file(path, text);
    }
    siblings(0, text);
    siblings(5, text);
    EXPECT_EQ(read_processors(root_, {0, 5}), plain);
  }
  fs::remove(root_ / "cpu/online");
  fs::create_directory(root_ / "cpu/online");
  EXPECT_EQ(read_processors(root_, {0, 5}), plain);
  siblings(5, "0-4");  // does not name 5 itself
  EXPECT_EQ(read_processors(root_, {0, 5}), plain);
}

TEST_F(Topology, IdLists) {
  EXPECT_EQ(parse_id_list("0-2,7\n"), (std::vector<int>{0, 1, 2, 7}));
  EXPECT_EQ(parse_id_list("8191"), (std::vector<int>{8191}));
  EXPECT_TRUE(parse_id_list("2,1").empty());
  EXPECT_TRUE(parse_id_list("-1").empty());
}

TEST_F(Topology, QuotaOfTheGroupAndThoseAboveIt) {
  const std::string v2 = "0::/a/b\n";
  EXPECT_EQ(cgroup_cores(root_, v2), 0);
  file("a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cores(root_, v2), 0);
  file("a/cpu.max", "250000 100000\n");
  EXPECT_EQ(cgroup_cores(root_, v2), 2.5);
  file("a/b/cpu.max", "400000 100000\n");
  EXPECT_EQ(cgroup_cores(root_, v2), 2.5);
  file("cpu.max", "100000 100000\n");  // a container sees its own group as the root
  EXPECT_EQ(cgroup_cores(root_, "0::/\n"), 1);
  EXPECT_EQ(cgroup_cores(root_, "0::/not/here\n"), 1);
  for (const char* odd : {"", "x", "1", "0 0", "-5 100000", "nan 1", "100000 0", "inf 1"}) {
    file("cpu.max", odd);
    EXPECT_EQ(cgroup_cores(root_, "0::/\n"), 0) << odd;
  }
  file("cpu/c/cpu.cfs_quota_us", "150000\n");
  file("cpu/c/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cores(root_, "3:memory:/m\n4:cpuacct,cpu:/c\n"), 1.5);
  file("cpu/c/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cgroup_cores(root_, "4:cpu:/c\n"), 0);
  EXPECT_EQ(cgroup_cores(root_, "nonsense\n::\n0::\n0::relative\n0::/../..\n"), 0);
}

TEST_F(Topology, MemoryIsInterleavedOverTheNodesOfTheProcessors) {
  EXPECT_TRUE(nodes_to_interleave({}).empty());
  EXPECT_TRUE(nodes_to_interleave({{.id = 0, .core = 0, .node = 3}, {.id = 1, .core = 1, .node = 3}}).empty());
  two_nodes();
  EXPECT_EQ(nodes_to_interleave(read_processors(root_, {0, 1, 2, 3})), (std::vector<unsigned long>{3}));
  EXPECT_TRUE(nodes_to_interleave(read_processors(root_, {2, 3})).empty());
  EXPECT_EQ(nodes_to_interleave({{.id = 0, .core = 0, .node = 1}, {.id = 1, .core = 1, .node = 64}}),
            (std::vector<unsigned long>{2, 1}));
}

TEST_F(Topology, OneNodeLeavesThePolicyOfMemoryAlone) {
  const auto policy = [] {
    int mode = -1;
    return syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 ? mode : -1;
  };
  const int before = policy();
  EXPECT_FALSE(interleave_memory(read_processors(root_, {0, 1})));
  EXPECT_EQ(policy(), before);
}

TEST(UsableProcessors, AreDistinctAndAtLeastOne) {
  const auto all = usable_processors();
  ASSERT_FALSE(all.empty());
  EXPECT_GE(count_cores(all), 1);
  EXPECT_LE(count_cores(all), static_cast<int>(all.size()));
}

}  // namespace
}  // namespace fathom
