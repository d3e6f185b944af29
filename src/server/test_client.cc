#include "server/test_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

namespace fathom::server {
namespace {

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

std::string join_chunks(std::string_view raw) {
  std::string out;
  while (!raw.empty()) {
    const std::size_t line = raw.find("\r\n");
    if (line == std::string_view::npos) break;
    const auto n = static_cast<std::size_t>(std::strtoul(std::string(raw.substr(0, line)).c_str(), nullptr, 16));
    raw.remove_prefix(line + 2);
    if (n == 0) break;
    out += raw.substr(0, n);
    raw.remove_prefix(std::min(raw.size(), n + 2));
  }
  return out;
}

}  // namespace

std::string Reply::header(std::string_view name) const {
  const std::string all = lower(head);
  const std::size_t at = all.find("\r\n" + lower(name) + ": ");
  if (at == std::string::npos) return {};
  const std::size_t begin = at + name.size() + 4;
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

TestClient::TestClient(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

TestClient::~TestClient() {
  if (fd_ >= 0) ::close(fd_);
}

bool TestClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

void TestClient::shut_sending() { ::shutdown(fd_, SHUT_WR); }

void TestClient::reset() {
  const linger now{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  ::close(fd_);
  fd_ = -1;
}

bool TestClient::read_some() {
  pollfd p{fd_, POLLIN, 0};
  if (::poll(&p, 1, 30'000) <= 0) return false;
  char buffer[65536];
  const auto n = ::recv(fd_, buffer, sizeof(buffer), 0);
  if (n <= 0) return false;
  received_.append(buffer, static_cast<std::size_t>(n));
  return true;
}

bool TestClient::read_until(std::string_view text) {
  while (received_.find(text) == std::string::npos) {
    if (!read_some()) return false;
  }
  return true;
}

Reply TestClient::read_all() {
  while (read_some()) {
  }
  Reply reply;
  std::string_view rest = received_;
  // Interim responses come first.
  while (rest.substr(0, 12) == "HTTP/1.1 100") rest.remove_prefix(rest.find("\r\n\r\n") + 4);
  const std::size_t end = rest.find("\r\n\r\n");
  if (end == std::string_view::npos) return reply;
  reply.head = rest.substr(0, end + 2);
  reply.status = std::atoi(reply.head.substr(9, 3).c_str());
  reply.body = rest.substr(end + 4);
  if (reply.header("transfer-encoding") == "chunked") reply.body = join_chunks(reply.body);
  return reply;
}

std::string request_text(std::string_view method, std::string_view path, std::string_view body,
                         std::string_view extra) {
  return fmt::format(
      "{} {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}", method,
      path, body.size(), extra, body);
}

Reply fetch(std::uint16_t port, std::string_view method, std::string_view path, std::string_view body,
            std::string_view extra) {
  TestClient client(port);
  client.send(request_text(method, path, body, fmt::format("Connection: close\r\n{}", extra)));
  return client.read_all();
}

std::vector<std::string> events_of(std::string_view stream) {
  std::vector<std::string> events;
  while (!stream.empty()) {
    const std::size_t end = std::min(stream.find("\n\n"), stream.size());
    std::string_view block = stream.substr(0, end);
    stream.remove_prefix(std::min(stream.size(), end + 2));
    std::string event;
    while (!block.empty()) {
      const std::size_t line_end = std::min(block.find('\n'), block.size());
      const std::string_view line = block.substr(0, line_end);
      block.remove_prefix(std::min(block.size(), line_end + 1));
      if (line.substr(0, 7) == "event: ") event += std::string(line.substr(7)) + " ";
      if (line.substr(0, 6) == "data: ") event += line.substr(6);
    }
    if (!event.empty()) events.push_back(event);
  }
  return events;
}

}  // namespace fathom::server
