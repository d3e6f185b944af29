// /openapi.json says what the server does. http-api.md; scripts/clients.sh fuzzes the server by it.
#include <algorithm>
#include <set>
#include <string>

#include "server/server_fixture.h"

namespace fathom::server {
namespace {

using Endpoints = std::set<std::pair<std::string, std::string>>;

// "/v1/models/{id}" as "/v1/models/{}".
std::string without_names(std::string path) {
  for (auto at = path.find('{'); at != std::string::npos; at = path.find('{', at + 1))
    path.erase(at + 1, path.find('}', at) - at - 1);
  return path;
}

TEST_F(ServerTest, OpenapiNamesEveryRouteAndNoOther) {
  start();
  const Reply r = get("/openapi.json");
  ASSERT_EQ(r.status, 200);
  EXPECT_EQ(r.header("content-type"), "application/json");
  const Json document = json_of(r.body);
  EXPECT_EQ(document["openapi"], "3.1.0");
  EXPECT_NE(document["info"]["version"], "@VERSION@");
  Endpoints written;
  for (const auto& [path, methods] : document["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      std::string upper = method;
      std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
      written.emplace(upper, without_names(path));
    }
  }
  const auto routed = Api::endpoints();
  EXPECT_EQ(written, Endpoints(routed.begin(), routed.end()));
}

// Every $ref leads somewhere.
TEST_F(ServerTest, OpenapiHoldsTogether) {
  start();
  const Json document = json_of(get("/openapi.json").body);
  int refs = 0;
  const std::function<void(const Json&)> walk = [&](const Json& node) {
    if (node.is_object() && node.contains("$ref")) {
      const std::string to = node["$ref"];
      EXPECT_TRUE(document.contains(Json::json_pointer(to.substr(1)))) << to;
      ++refs;
    }
    if (node.is_structured()) {
      for (const Json& child : node) walk(child);
    }
  };
  walk(document);
  EXPECT_GT(refs, 100);
}

}  // namespace
}  // namespace fathom::server
