// For tests: a client that speaks HTTP by hand, so that it can also speak it badly.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom::server {

struct Reply {
  int status = 0;
  std::string head;
  std::string body;  // chunks joined
  // The value of a header, by its name in any case; empty where there is none.
  std::string header(std::string_view name) const;
};

// One connection to a port of this machine.
class TestClient {
 public:
  explicit TestClient(std::uint16_t port);
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;
  ~TestClient();

  bool send(std::string_view bytes);
  void shut_sending();
  // Closes so that the other side sees a reset.
  void reset();
  // Until `text` has come, everything so far included; false at the end of the connection or after half a minute.
  bool read_until(std::string_view text);
  // Until the other side closes.
  Reply read_all();
  const std::string& received() const { return received_; }

 private:
  bool read_some();
  int fd_ = -1;
  std::string received_;
};

// One request on a connection of its own. extra: further header lines, each with its end.
Reply fetch(std::uint16_t port, std::string_view method, std::string_view path, std::string_view body = "",
            std::string_view extra = "");
std::string request_text(std::string_view method, std::string_view path, std::string_view body, std::string_view extra);
// The data of each event of a stream, and its name in front where it has one, as in "ping {...}".
std::vector<std::string> events_of(std::string_view stream);

}  // namespace fathom::server
