// Internal to api*.cc: one request on its way through the endpoints.
#pragma once

#include <chrono>

#include "server/api.h"

namespace fathom::server {

struct Api::Call {
  std::shared_ptr<Exchange> exchange;
  HttpRequest request;
  std::string endpoint;  // canonical, as in "v1/models"
  bool messages_dialect = false;
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
};

struct Api::Route {
  std::string_view endpoint;
  std::string_view method;  // GET also answers HEAD
  bool open = false;        // without a key
  void (Api::*handler)(Call&) = nullptr;
};

}  // namespace fathom::server
