// Ctrl-C as a question the work asks itself: "was I asked to stop?".
#pragma once

namespace fathom::cli {

// From here on SIGINT sets a flag instead of ending the process; a second one before the flag is cleared ends it.
// Blocking reads return early.
void catch_interrupts();
bool interrupted();
void clear_interrupt();

}  // namespace fathom::cli
