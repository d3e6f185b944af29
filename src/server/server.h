// Server: the HTTP APIs of a model, on a port. http-api.md.
//
// Whoever ends it ends the engine first: the engine tells every request its end, and then nobody holds a connection.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "server/api.h"
#include "server/http_server.h"

namespace fathom::server {

class Server {
 public:
  // format and generator outlive it. Errors: those of HttpServer::start.
  static Result<std::unique_ptr<Server>> start(const text::ChatFormat& format, Generator& generator, ApiOptions api,
                                               HttpServer::Options http);

  std::uint16_t port() const { return http_->port(); }
  // Takes no new work; what has begun goes on.
  void drain() { api_->drain(); }
  // Requests that have not been answered.
  int active() const { return http_->active(); }

 private:
  Server() = default;
  std::unique_ptr<Api> api_;
  std::unique_ptr<HttpServer> http_;  // goes first
};

}  // namespace fathom::server
