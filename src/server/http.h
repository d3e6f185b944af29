// HTTP as the rest of this room sees it: a request that has been read, and the way back to its client. No sockets here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom::server {

struct HttpRequest {
  std::string method;
  std::string path;  // without the query
  std::string id;    // for logs and for the client: the client's own x-request-id, or one made here
  std::string peer;  // address of the client
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;

  // nullptr where there is none.
  const std::string* header(std::string_view name) const;
};

struct HttpAnswer {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// The way back to the client of one request. It is answered once: by send(), or by begin_stream(), write() and
// end_stream(). All calls but post() belong to the connection's own order, in which the handler and posted work run.
class Exchange {
 public:
  Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  virtual ~Exchange() = default;

  // Runs `work` in the connection's order. From any thread, without waiting.
  virtual void post(std::function<void()> work) = 0;

  // Goes with every answer to this request.
  virtual void add_header(std::string name, std::string value) = 0;
  virtual void send(HttpAnswer answer) = 0;
  // Server-sent events. What `keep_alive` returns is sent when nothing else has been for some seconds.
  virtual void begin_stream(std::function<std::string()> keep_alive) = 0;
  virtual void write(std::string bytes) = 0;
  virtual void end_stream() = 0;

  // Called once if the client goes away, or reads too slowly, before it has been answered. Forgotten when it has been.
  virtual void on_gone(std::function<void()> call) = 0;
  virtual bool answered() const = 0;
};

// Called in the connection's order; may answer at once or keep the exchange.
using Handler = std::function<void(std::shared_ptr<Exchange>, HttpRequest)>;
// What a request that could not be read is answered with.
using Refuse = std::function<HttpAnswer(const HttpRequest&, int status, std::string_view code, std::string message)>;

struct HttpLimits {
  std::size_t body_bytes = std::size_t{64} << 20U;
  std::uint32_t header_bytes = 64U << 10U;
  int connections = 1024;
  int header_seconds = 30;     // to send a request's header, and how long an idle connection is kept
  int body_idle_seconds = 60;  // without a byte of the body
  int body_seconds = 300;      // for all of it
  int write_seconds = 60;      // for the client to take what is written
  std::size_t unread_bytes = std::size_t{4} << 20U;  // that a client of a stream may leave; above it has gone away
  int keep_alive_seconds = 5;
};

std::string_view reason_of(int status);

}  // namespace fathom::server
