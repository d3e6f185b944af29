#include "grammar/trial_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>

#include "grammar/compiler.h"

namespace fathom::grammar {
namespace {

constexpr std::uint32_t kMostBytes = 64U << 20U;  // of a message; rules are far smaller
constexpr unsigned kWallFactor = 12;              // a trial may wait for a busy machine, but not for ever

bool write_all(int fd, const void* data, std::size_t n) {
  const auto* p = static_cast<const char*>(data);
  while (n > 0) {
    const ssize_t done = ::send(fd, p, n, MSG_NOSIGNAL);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    p += done;
    n -= static_cast<std::size_t>(done);
  }
  return true;
}

bool read_all(int fd, void* data, std::size_t n) {
  auto* p = static_cast<char*>(data);
  while (n > 0) {
    const ssize_t done = ::recv(fd, p, n, 0);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    p += done;
    n -= static_cast<std::size_t>(done);
  }
  return true;
}

// A message is a number of bytes and the bytes. Of an answer the first one is a Code, or kFine.
constexpr char kFine = 'y';

bool write_message(int fd, const std::string& text) {
  const auto n = static_cast<std::uint32_t>(text.size());
  return write_all(fd, &n, sizeof(n)) && write_all(fd, text.data(), n);
}

bool read_message(int fd, std::string& text) {
  std::uint32_t n = 0;
  if (!read_all(fd, &n, sizeof(n)) || n > kMostBytes) return false;
  text.resize(n);
  return read_all(fd, text.data(), n);
}

void limit(int resource, rlim_t value) {
  const rlimit l = {value, value};
  ::setrlimit(resource, &l);
}

// A trial: says what came of it, and ends.
[[noreturn]] void try_rules(int fd, Compiler& compiler, const std::string& key, const TrialLimits& limits) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, static_cast<rlim_t>(limits.cpu_seconds));
  ::alarm(static_cast<unsigned>(limits.cpu_seconds) * kWallFactor);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  std::size_t pages = 0;
  if (std::ifstream("/proc/self/statm") >> pages)
    limit(RLIMIT_AS, pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + limits.more_bytes);
#endif
  std::string answer(1, kFine);
  const auto rules = rules_of(key);
  const auto program = rules ? compiler.compile(*rules) : tl::unexpected(rules.error());
  if (!program) answer = static_cast<char>(program.error().code) + program.error().what;
  write_message(fd, answer);
  ::_exit(0);
}

[[noreturn]] void serve(int fd, const text::ChatFormat& format, const TrialLimits& limits) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_NAME, "fathom-grammar");
  Compiler compiler(format, format.tokenizer().vocab_size());
  bool prepared = false;
  std::string key;
  while (read_message(fd, key)) {
    // The vocabulary, which all trials share.
    if (!prepared) prepared = compiler.compile({.content = {Content::Kind::kRegex, "a"}}).has_value();
    const pid_t child = ::fork();
    if (child == 0) try_rules(fd, compiler, key, limits);
    int status = 0;
    while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    const Error error = child > 0 ? Error{Code::kInvalid, fmt::format("takes more than {} s or {} MiB to compile",
                                                                      limits.cpu_seconds, limits.more_bytes >> 20U)}
                                  : Error{Code::kExhausted, "no process to compile it in"};
    if (!write_message(fd, static_cast<char>(error.code) + error.what)) break;
  }
  ::_exit(0);
}

tl::unexpected<Error> gone() { return fail(Code::kUnavailable, "grammars cannot be compiled at the moment"); }

}  // namespace

Result<std::unique_ptr<TrialProcess>> TrialProcess::start(const text::ChatFormat& format, TrialLimits limits) {
  int ends[2] = {};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return fail(Code::kUnavailable, "no socket for grammars: {}", std::generic_category().message(errno));
  const pid_t pid = ::fork();
  if (pid < 0) {
    const int error = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    return fail(Code::kUnavailable, "no process for grammars: {}", std::generic_category().message(error));
  }
  if (pid == 0) {
    ::close(ends[0]);
    serve(ends[1], format, limits);
  }
  ::close(ends[1]);
  return std::unique_ptr<TrialProcess>(new TrialProcess(pid, ends[0]));
}

TrialProcess::~TrialProcess() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  ::close(socket_);
}

Result<> TrialProcess::run(const Rules& rules) {
  std::string answer;
  if (!write_message(socket_, key_of(rules)) || !read_message(socket_, answer) || answer.empty()) return gone();
  if (answer[0] == kFine) return {};
  return tl::unexpected(Error{static_cast<Code>(answer[0]), answer.substr(1)});
}

void TrialProcess::interrupt() { ::shutdown(socket_, SHUT_RDWR); }

}  // namespace fathom::grammar
