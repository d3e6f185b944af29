// fathom serve as a process: its log, its signals, its end.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace fathom::cli {
namespace {

using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;

// What comes from a descriptor until `text` is in it, or the end; within a minute.
bool read_until(int fd, std::string& all, const std::string& text) {
  while (all.find(text) == std::string::npos) {
    pollfd p{fd, POLLIN, 0};
    char buffer[4096];
    const auto n = ::poll(&p, 1, 60'000) > 0 ? ::read(fd, buffer, sizeof(buffer)) : 0;
    if (n <= 0) return false;
    all.append(buffer, static_cast<std::size_t>(n));
  }
  return true;
}

class Serve : public testing::Test {
 protected:
  void start(std::vector<std::string> flags = {}, const std::string& program = FATHOM_PROGRAM) {
    std::vector<std::string> args = {program, "serve", std::string(FATHOM_SOURCE_DIR) + "/models/fathom-tiny", "--port",
                                     "0"};
    args.insert(args.end(), flags.begin(), flags.end());
    std::vector<char*> argv;
    for (std::string& a : args) argv.push_back(a.data());
    argv.push_back(nullptr);
    int ends[2] = {};
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, ends[1], 2);
    ASSERT_EQ(::posix_spawn(&pid_, program.c_str(), &files, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
    ::close(ends[1]);
    log_fd_ = ends[0];
    ASSERT_TRUE(read_until(log_fd_, log_, "\nserving ") && read_until(log_fd_, log_, "\n")) << log_;
    port_ = static_cast<std::uint16_t>(std::atoi(log_.c_str() + log_.rfind(':') + 1));
  }
  ~Serve() override {
    if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
    if (log_fd_ >= 0) ::close(log_fd_);
    for (const int fd : sockets_) ::close(fd);
  }

  // A connection that has sent a request, with `Connection: close`.
  int ask(const std::string& method, const std::string& path, const std::string& body = "") {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockets_.push_back(fd);
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_port = htons(port_);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0) return fd;
    const std::string text =
        method + " " + path +
        " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
        "\r\n\r\n" + body;
    EXPECT_EQ(::send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
    return fd;
  }
  static std::string rest(int fd) {
    std::string all;
    read_until(fd, all, "no such text");
    return all;
  }
  // A stream that has begun to answer, of so many tokens.
  int stream(int tokens) {
    const int fd =
        ask("POST", "/v1/completions",
            R"({"prompt":"Once","stream":true,"ignore_eos":true,"max_tokens":)" + std::to_string(tokens) + "}");
    std::string begun;
    EXPECT_TRUE(read_until(fd, begun, "data: ")) << begun;
    return fd;
  }
  void signal_and_wait_for(const std::string& line) {
    ::kill(pid_, SIGTERM);
    EXPECT_TRUE(read_until(log_fd_, log_, line)) << log_;
  }
  int exit_code() {
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  pid_t pid_ = -1;
  int log_fd_ = -1;
  std::uint16_t port_ = 0;
  std::string log_;
  std::vector<int> sockets_;
};

constexpr int kForever = 60'000;  // tokens: minutes

TEST_F(Serve, WritesOneLineARequest) {
  start();
  EXPECT_THAT(log_, HasSubstr("listening on http://127.0.0.1:"));
  rest(ask("POST", "/v1/completions", R"({"prompt":"Once","max_tokens":3,"ignore_eos":true})"));
  rest(ask("GET", "/nowhere\"x"));
  ASSERT_TRUE(read_until(log_fd_, log_, "nowhere") && read_until(log_fd_, log_, " ms=")) << log_;
  EXPECT_THAT(log_, ContainsRegex("\ntime=2[0-9T:-]*Z id=req_[^ ]* peer=127.0.0.1 method=POST path=\"/v1/completions\" "
                                  "status=200 ms=[0-9]* finish=length prompt=[0-9]* cached=0 completion=3 n=1 "));
  EXPECT_THAT(log_, ContainsRegex("method=GET path=\"/nowhere\\\\\"x\" status=404 "));
  EXPECT_EQ(log_.find("Once"), std::string::npos) << "prompts are not logged";
}

TEST_F(Serve, ASignalLetsAnswersEnd) {
  start();
  const int fd = stream(300);
  signal_and_wait_for("draining: ");
  const std::string end = rest(fd);
  EXPECT_THAT(end, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_THAT(end, HasSubstr("data: [DONE]"));
  EXPECT_EQ(exit_code(), 0);
}

TEST_F(Serve, ASecondSignalStopsAtOnce) {
  start();
  const int fd = stream(kForever);
  signal_and_wait_for("draining: 1 requests");
  EXPECT_THAT(rest(ask("GET", "/health")), HasSubstr("draining"));
  EXPECT_THAT(rest(ask("POST", "/v1/completions", R"({"prompt":"Once"})")), HasSubstr("503"));
  ::kill(pid_, SIGTERM);
  const std::string end = rest(fd);
  EXPECT_THAT(end, HasSubstr("\"error\""));
  EXPECT_THAT(end, HasSubstr("data: [DONE]"));
  EXPECT_EQ(exit_code(), 0);
}

// field-faults.md: a device whose context is lost keeps its server answering errors, /v1/models still 200. Here it ends
// what there is with an error, says so, and ends itself, so that its supervisor starts it anew.
TEST_F(Serve, ADeviceFaultIsSeenAndEndsTheProcess) {
  std::string name = (std::filesystem::temp_directory_path() / "fathom-fault-XXXXXX").string();
  const std::filesystem::path dir = ::mkdtemp(name.data());
  const std::string program = dir / "fathom";
  std::filesystem::copy_file(FATHOM_PROGRAM, program);
  std::filesystem::copy_file(FATHOM_FAILING_PLUGIN, dir / "libfathom_cuda.so");
  start({"--device", "cuda"}, program);
  const std::string once = R"({"prompt":"Once","max_tokens":3})";
  EXPECT_THAT(rest(ask("POST", "/v1/completions", once)), HasSubstr(" 200 OK"));
  EXPECT_THAT(rest(ask("GET", "/health")), HasSubstr(" 200 OK"));
  const int fd = stream(kForever);
  std::ofstream(dir / "fault") << "now";
  const std::string end = rest(fd);
  EXPECT_THAT(end, HasSubstr("\"error\""));
  EXPECT_THAT(end, HasSubstr("data: [DONE]"));
  const std::string health = rest(ask("GET", "/health"));
  EXPECT_THAT(health, HasSubstr(" 503 "));
  EXPECT_THAT(health, HasSubstr(R"("status":"failed")"));
  EXPECT_THAT(health, HasSubstr("illegal memory access"));
  EXPECT_THAT(rest(ask("POST", "/v1/completions", once)), HasSubstr(" 503 "));
  EXPECT_EQ(exit_code(), 1) << "by itself";
  EXPECT_TRUE(read_until(log_fd_, log_, "illegal memory access")) << log_;
  std::filesystem::remove_all(dir);
}

TEST_F(Serve, DrainingHasAnEnd) {
  start({"--drain-seconds", "1"});
  const int fd = stream(kForever);
  signal_and_wait_for("for 1 s at most");
  EXPECT_THAT(rest(fd), HasSubstr("\"error\""));
  EXPECT_EQ(exit_code(), 0);
}

}  // namespace
}  // namespace fathom::cli
