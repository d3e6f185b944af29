// Any text as config.json. What is accepted is valid, survives writing and reading, and spans a table of bounded size.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "checkpoint/config.h"
#include "checkpoint/schema.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fathom::checkpoint;
  const auto config = parse_config({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!config) return 0;
  FATHOM_CHECK(validate(*config).has_value(), "what is accepted is valid");
  auto again = parse_config(to_json(*config), "rewritten");
  FATHOM_CHECK(again.has_value(), "what is written is read");
  again->draft = config->draft;  // without a kind, the constants are not written
  FATHOM_CHECK(*again == *config, "writing and reading changes nothing");
  if (std::int64_t{config->layers} * config->routed_experts < 4096) {
    for_each_slot(*config, [](const Slot& slot) {
      std::int64_t n = 0;
      FATHOM_CHECK(element_count(slot.shape, n) && n > 0, "every tensor of the table has a size");
    });
  }
  return 0;
}
