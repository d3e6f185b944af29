// The page at /: files of src/server/page, made part of the program by cmake/embed.cmake.
#pragma once

#include <string_view>

#include "server/http.h"

namespace fathom::server {

struct PageFile {
  std::string_view name;  // "index.html"
  std::string_view bytes;
};

// nullptr where there is none.
const PageFile* page_file(std::string_view name);
// Answers a request for `file`: with 304 where the client has it already. The page may load from this server alone, and
// run no script but its own.
HttpAnswer page_answer(const PageFile& file, const HttpRequest& request);
// Whether a client wants to show what it gets from /, as browsers do and curl does not.
bool wants_page(const HttpRequest& request);

}  // namespace fathom::server
