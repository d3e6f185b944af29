#include "server/server.h"

#include <utility>

namespace fathom::server {

Result<std::unique_ptr<Server>> Server::start(const text::ChatFormat& format, Generator& generator, ApiOptions api,
                                              HttpServer::Options http) {
  std::unique_ptr<Server> server(new Server);
  server->api_ = std::make_unique<Api>(format, generator, std::move(api));
  const auto handler = [to = server->api_.get()](std::shared_ptr<Exchange> exchange, HttpRequest request) {
    to->handle(std::move(exchange), std::move(request));
  };
  FATHOM_ASSIGN(server->http_, HttpServer::start(std::move(http), handler, Api::unreadable));
  return server;
}

}  // namespace fathom::server
