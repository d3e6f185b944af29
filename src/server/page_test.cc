// The page at / as a browser fetches it. What it does there: tests/browser/browser_test.py.
#include "server/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "server/server_fixture.h"

namespace fathom::server {
namespace {

using testing::HasSubstr;
using testing::Not;

class PageTest : public ServerTest {};

TEST_F(PageTest, BrowsersGetThePageOthersAShortText) {
  start();
  const Reply page = get("/", "Accept: text/html,application/xhtml+xml\r\n");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.header("content-type"), "text/html; charset=utf-8");
  EXPECT_THAT(page.body, HasSubstr("<title>Fathom</title>"));
  const Reply text = get("/", "Accept: */*\r\n");
  EXPECT_EQ(text.header("content-type"), "text/plain; charset=utf-8");
  EXPECT_THAT(text.body, HasSubstr("/v1"));
}

// Both what the policy forbids and what the files do not try.
TEST_F(PageTest, LoadsFromThisServerAlone) {
  start();
  const Reply page = get("/", "Accept: text/html\r\n");
  EXPECT_THAT(
      page.header("content-security-policy"),
      testing::AllOf(HasSubstr("default-src 'none'"), HasSubstr("script-src 'self';"), HasSubstr("style-src 'self';"),
                     HasSubstr("connect-src 'self';"), Not(HasSubstr("unsafe"))));
  int files = 0;
  for (std::size_t at = page.body.find("\"page/"); at != std::string::npos; at = page.body.find("\"page/", at + 1)) {
    const std::string name = page.body.substr(at + 1, page.body.find('"', at + 1) - at - 1);
    EXPECT_EQ(get("/" + name).status, 200) << name;
    ++files;
  }
  EXPECT_EQ(files, 3);
  for (const char* name :
       {"index.html", "app.js", "markdown.js", "store.js", "stream.js", "style.css", "theme.js", "turns.js"}) {
    const PageFile* file = page_file(name);
    ASSERT_NE(file, nullptr) << name;
    EXPECT_THAT(std::string(file->bytes), testing::AllOf(Not(HasSubstr("innerHTML")), Not(HasSubstr("src=\"http")),
                                                         Not(HasSubstr("href=\"http")), Not(HasSubstr(" style="))))
        << name;
  }
}

TEST_F(PageTest, WhatIsKnownIsNotSentAgain) {
  start();
  const Reply first = get("/page/app.js");
  EXPECT_EQ(first.header("content-type"), "text/javascript; charset=utf-8");
  const Reply again = get("/page/app.js", "If-None-Match: " + first.header("etag") + "\r\n");
  EXPECT_EQ(again.status, 304);
  EXPECT_EQ(again.body, "");
  EXPECT_EQ(get("/page/app.js", "If-None-Match: \"other\"\r\n").status, 200);
  EXPECT_EQ(get("/page/..%2fapi.cc").status, 404);
  EXPECT_EQ(get("/page/").status, 404);
}

TEST_F(PageTest, NeedsNoKeyItself) {
  api.keys = {"secret"};
  start();
  EXPECT_EQ(get("/", "Accept: text/html\r\n").status, 200);
  EXPECT_EQ(get("/page/style.css").status, 200);
  EXPECT_EQ(get("/v1/models").status, 401);
}

// What the page shows while an answer grows.
TEST_F(PageTest, ChunksSayWhatHasBeenUsed) {
  generator.say("one two three<｜end▁of▁sentence｜>");
  start();
  const std::string asked =
      R"({"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"none","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}})";
  const Reply reply = post("/v1/chat/completions", asked);
  std::vector<int> used;
  int cached = -1;
  for (const std::string& event : events_of(reply.body)) {
    if (event == "[DONE]") continue;
    const Json chunk = json_of(event);
    used.push_back(chunk["usage"]["completion_tokens"].get<int>());
    if (chunk["choices"].empty()) cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  }
  ASSERT_GE(used.size(), 3U);
  EXPECT_TRUE(std::is_sorted(used.begin(), used.end()));
  EXPECT_LT(used.front(), used.back());
  EXPECT_EQ(cached, 2);
}

}  // namespace
}  // namespace fathom::server
