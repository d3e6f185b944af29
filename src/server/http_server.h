// HttpServer: HTTP/1.1 on a TCP port. Bounded in bytes, connections and time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "server/http.h"

namespace fathom::server {

class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";  // an address
    std::uint16_t port = 0;          // 0: one that is free
    int threads = 2;
    HttpLimits limits;
  };

  // Listens and answers from then on, on threads of its own. Error: kUnavailable, the address cannot be had.
  static Result<std::unique_ptr<HttpServer>> start(Options options, Handler handler, Refuse refuse);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  // Closes every connection. Nobody may hold an Exchange any more.
  ~HttpServer();

  std::uint16_t port() const;
  // Requests that have been handed on and not been answered.
  int active() const;

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace fathom::server
