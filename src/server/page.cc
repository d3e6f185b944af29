#include "server/page.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "server/page_files.h"

namespace fathom::server {
namespace {

std::string_view type_of(std::string_view name) {
  const std::string_view ending = name.substr(name.rfind('.') + 1);
  if (ending == "html") return "text/html; charset=utf-8";
  if (ending == "css") return "text/css; charset=utf-8";
  return "text/javascript; charset=utf-8";
}

// FNV-1a: names a version of a file for caches; nothing depends on it being hard to forge.
std::uint64_t hash_of(std::string_view bytes) {
  std::uint64_t h = 14695981039346656037U;
  for (const char c : bytes) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return h;
}

}  // namespace

const PageFile* page_file(std::string_view name) {
  for (const PageFile& file : kPageFiles) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

HttpAnswer page_answer(const PageFile& file, const HttpRequest& request) {
  HttpAnswer answer;
  const std::string tag = fmt::format("\"{:016x}\"", hash_of(file.bytes));
  answer.headers = {{"ETag", tag},
                    {"Cache-Control", "no-cache"},
                    {"Content-Security-Policy",
                     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
                     "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
                    {"X-Content-Type-Options", "nosniff"},
                    {"X-Frame-Options", "DENY"},
                    {"Referrer-Policy", "no-referrer"},
                    {"Cross-Origin-Opener-Policy", "same-origin"}};
  if (file.name == "index.html") answer.headers.emplace_back("Vary", "Accept");
  const std::string* known = request.header("if-none-match");
  if (known != nullptr && known->find(tag) != std::string::npos) {
    answer.status = 304;
    answer.content_type = "";
    return answer;
  }
  answer.content_type = type_of(file.name);
  answer.body = file.bytes;
  return answer;
}

bool wants_page(const HttpRequest& request) {
  const std::string* accept = request.header("accept");
  return accept != nullptr && accept->find("text/html") != std::string::npos;
}

}  // namespace fathom::server
