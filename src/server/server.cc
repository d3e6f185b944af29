#include "server/server.h"

#include <utility>

#include "server/json_out.h"
#include "server/page.h"

namespace fathom::server {
namespace {

HttpAnswer while_loading(const HttpRequest& request) {
  std::string_view path = request.path;
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const PageFile* file = nullptr;
  if (path == "/" && wants_page(request)) file = page_file("index.html");
  if (path.substr(0, 6) == "/page/") file = page_file(path.substr(6));
  if (file != nullptr && request.method == "GET") return page_answer(*file, request);
  if (path != "/health" && path != "/ping") {
    Refusal r = refusal(503, "", "service_unavailable", "the model is being loaded");
    r.retry_after = 5;
    return error_answer(r, is_messages_path(path), request.id);
  }
  HttpAnswer answer;
  answer.status = 503;
  answer.headers.emplace_back("Retry-After", "5");
  answer.body = Obj().str("status", "loading").done();
  return answer;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::listen(HttpServer::Options http) {
  std::unique_ptr<Server> server(new Server);
  const auto handler = [s = server.get()](std::shared_ptr<Exchange> exchange, HttpRequest request) {
    if (Api* api = s->serving_; api != nullptr) api->handle(std::move(exchange), std::move(request));
    else exchange->send(while_loading(request));
  };
  FATHOM_ASSIGN(server->http_, HttpServer::start(std::move(http), handler, Api::unreadable));
  return server;
}

void Server::serve(const text::ChatFormat& format, Generator& generator, ApiOptions api) {
  api_ = std::make_unique<Api>(format, generator, std::move(api));
  serving_ = api_.get();
}

Result<std::unique_ptr<Server>> Server::start(const text::ChatFormat& format, Generator& generator, ApiOptions api,
                                              HttpServer::Options http) {
  FATHOM_ASSIGN(auto server, listen(std::move(http)));
  server->serve(format, generator, std::move(api));
  return server;
}

}  // namespace fathom::server
