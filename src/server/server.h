// Server: the HTTP APIs of a model, on a port. http-api.md.
//
// Whoever ends it ends the engine first: the engine tells every request its end, and then nobody holds a connection.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "server/api.h"
#include "server/http_server.h"

namespace fathom::server {

class Server {
 public:
  // Listens, and answers that the model is being loaded: /health with 503 and the status "loading", the page, which
  // waits, and all else with 503. Errors: those of HttpServer::start.
  static Result<std::unique_ptr<Server>> listen(HttpServer::Options http);
  // From now on the model is served. Once. format and generator outlive the server.
  void serve(const text::ChatFormat& format, Generator& generator, ApiOptions api);
  // Both at once.
  static Result<std::unique_ptr<Server>> start(const text::ChatFormat& format, Generator& generator, ApiOptions api,
                                               HttpServer::Options http);

  ~Server() {
    if (api_ != nullptr) api_->stop_compiling();  // null where it never served: a port was taken, a model did not load
  }

  std::uint16_t port() const { return http_->port(); }
  // Takes no new work; what has begun goes on. After serve().
  void drain() { api_->drain(); }
  // Requests that have not been answered.
  int active() const { return http_->active(); }

 private:
  Server() = default;
  std::unique_ptr<Api> api_;
  std::atomic<Api*> serving_ = nullptr;  // api_, when it may be used
  std::unique_ptr<HttpServer> http_;     // goes first
};

}  // namespace fathom::server
