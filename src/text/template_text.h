// The fixed texts of the prompt format. prompt-encoding.md 2.9 to 2.11. In Prompt::fixed_text the spellings of <think>,
// </think> and ｜DSML｜ among them become control tokens.
#pragma once

#include <string_view>

namespace fathom::text {

inline constexpr std::string_view kToolsBeforeSchemas =
    R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";

inline constexpr std::string_view kToolsAfterSchemas =
    R"(

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
)";

inline constexpr std::string_view kResponseFormat =
    R"(## Response Format:

You MUST strictly adhere to the following schema to reply:
)";

// Text A and text B of 2.11.
inline constexpr std::string_view kEffortAbsolute =
    R"(Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.

)";
inline constexpr std::string_view kEffortBeyond =
    R"(Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no assumption remains unchecked and no error remains undiscovered.

)";

}  // namespace fathom::text
