// Runs the program as a user would: arguments and input in, output, errors and exit code out. For tests.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace fathom::cli {

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

class Cli : public testing::Test {
 protected:
  Cli() {
    std::string name = (std::filesystem::temp_directory_path() / "fathom-cli-XXXXXX").string();
    dir_ = ::mkdtemp(name.data());
    ::unsetenv("FATHOM_MODEL");
    ::setenv("FATHOM_DEVICE", "cpu", 1);  // what is expected here was computed there
  }
  ~Cli() override { std::filesystem::remove_all(dir_); }

  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name, std::ios::binary) << text;
    return (dir_ / name).string();
  }

  Outcome fathom(std::vector<std::string> args, const std::string& input = "") {
    const std::string in = write("in", input);
    const std::string out = (dir_ / "out").string();
    const std::string err = (dir_ / "err").string();
    args.insert(args.begin(), FATHOM_PROGRAM);
    std::vector<char*> argv;
    for (std::string& a : args) argv.push_back(a.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, in.c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, out_path_.empty() ? out.c_str() : out_path_.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&files, 2, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t pid = 0;
    EXPECT_EQ(::posix_spawn(&pid, FATHOM_PROGRAM, &files, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
    int status = 0;
    ::waitpid(pid, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), read(out), read(err)};
  }

  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  std::filesystem::path dir_;
  std::string out_path_;
};

}  // namespace fathom::cli
