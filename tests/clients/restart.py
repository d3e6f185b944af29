"""A restart with a warm disk cache, as whole processes: a conversation of many tokens, the server ends, another one starts
on the same folder, the conversation goes on.

  scripts/clients.sh --python tests/clients/restart.py --history 32768
"""

import argparse
import random
import tempfile
import time

import httpx
import servers


def first_token(server, prompt):
    """Milliseconds to an answer of one token, and how many of the prompt were remembered."""
    began = time.monotonic()
    body = {"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "temperature": 0}
    answer = httpx.post(server.v1 + "/completions", json=body, timeout=3600).json()
    return 1e3 * (time.monotonic() - began), answer["usage"]["prompt_tokens_details"]["cached_tokens"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=int, default=32768)
    history = parser.parse_args().history
    rng = random.Random(1)
    prompt = [rng.randrange(100, 3500) for _ in range(history)]
    turn = [rng.randrange(100, 3500) for _ in range(32)]
    with tempfile.TemporaryDirectory() as folder:
        server = servers.serve("--quiet", "--cache-folder", folder)
        cold, cached = first_token(server, prompt)
        assert cached == 0
        began = time.monotonic()
        server.stop()
        ended = 1e3 * (time.monotonic() - began)
        began = time.monotonic()
        server = servers.serve("--quiet", "--cache-folder", folder)
        ready = 1e3 * (time.monotonic() - began)
        first, cached = first_token(server, prompt + turn)
        total = 1e3 * (time.monotonic() - began)
        server.stop()
    print(f"history of {history} tokens: first token {cold:.0f} ms without any cache; the server ended in {ended:.0f} ms; "
          f"again ready after {ready:.0f} ms, first token of the next turn {first:.0f} ms later ({cached} of "
          f"{len(prompt) + len(turn)} tokens remembered), {total:.0f} ms after the process began")
