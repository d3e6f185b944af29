// ForcedCall: makes the model begin a tool call where tool_choice asks for one. prompt-encoding.md 3.5.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "engine/request.h"
#include "text/chat_format.h"
#include "text/render.h"

namespace fathom::server {

// After the reasoning, if the answer begins in it, the opener of the block (unless the prompt has it) and the beginning
// of a call, with its name where `name` is not empty. What follows is free.
// vocab: of the model.
std::unique_ptr<engine::Constraint> force_call(const text::ChatFormat& format, std::int32_t vocab,
                                               text::ParserState initial, std::string_view name);

}  // namespace fathom::server
