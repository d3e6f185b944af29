"""From the start of the process to its first answer, with its files in the page cache and without.

  scripts/clients.sh --python tests/clients/startup.py --runs 10
"""

import argparse
import os
import time

import servers


def forget(*paths):
    """Lets the kernel drop these files from its page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def start(cold):
    if cold:
        forget(servers.BIN / "fathom", *[p for p in servers.MODEL.iterdir() if p.is_file()])
    began = time.monotonic()
    server = servers.serve("--quiet")
    ready = time.monotonic() - began
    assert server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}).status_code == 200
    answered = time.monotonic() - began
    server.stop()
    return 1e3 * ready, 1e3 * answered


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    for name, cold in (("warm", False), ("cold", True)):
        times = sorted(start(cold) for _ in range(runs))
        ready, answered = times[0], times[runs // 2]
        print(f"{name}: ready after {ready[0]:.0f} ms at best, {answered[0]:.0f} ms in the middle of {runs}; "
              f"first answer after {ready[1]:.0f} and {answered[1]:.0f} ms")
