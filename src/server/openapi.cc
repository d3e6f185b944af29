#include "server/openapi.h"

#include "server/page.h"
//
#include "server/openapi_file.h"

namespace fathom::server {

std::string openapi_document(std::string_view version) {
  static constexpr std::string_view kPlace = "@VERSION@";
  std::string text(kOpenapiFiles[0].bytes);
  if (const auto at = text.find(kPlace); at != std::string::npos) text.replace(at, kPlace.size(), version);
  return text;
}

}  // namespace fathom::server
