// The OpenAPI document of everything that api.h answers: openapi.json, made part of the program.
#pragma once

#include <string>
#include <string_view>

namespace fathom::server {

// With the version of the program in it.
std::string openapi_document(std::string_view version);

}  // namespace fathom::server
