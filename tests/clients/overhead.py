"""What the server takes of the processor for a request and for a token, without an engine and with one.

  scripts/clients.sh --python tests/clients/overhead.py

Processor time of the server's process, so other work on the machine does not count. Answers of two lengths tell requests
from tokens: the time of a request is what is left at a length of none.
"""

import argparse
import asyncio

import servers
import wire

TEXT = "Tell me about it. " * 16  # some 100 tokens


async def ask(url, stream, tokens, path="/v1/chat/completions"):
    exchange = await wire.post(url, path, {"model": "m", "messages": [{"role": "user", "content": TEXT}], "max_tokens": tokens,
                                           "stream": stream, "ignore_eos": True, "enable_thinking": False, "seed": 1})
    assert await exchange.head() == 200
    if stream:
        async for _ in exchange.events():
            pass
    else:
        await exchange.body()
    exchange.close()


async def many(url, stream, tokens, requests, at_once):
    left = iter(range(requests))

    async def client():
        for _ in left:
            await ask(url, stream, tokens)
    await asyncio.gather(*[client() for _ in range(at_once)])


def microseconds(server, stream, tokens, requests, at_once):
    before = server.cpu_seconds()
    asyncio.run(many(server.url, stream, tokens, requests, at_once))
    return 1e6 * (server.cpu_seconds() - before) / requests


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400)
    requests = parser.parse_args().requests
    for name, start in (("server alone", lambda: servers.scripted("1")), ("with the engine", lambda: servers.serve("--quiet", "--threads", "1"))):
        server = start()
        try:
            for at_once in (1, 16):
                for stream in (True, False):
                    n = requests // (4 if at_once == 1 else 1)
                    microseconds(server, stream, 8, 20, at_once)
                    short, long = (microseconds(server, stream, t, n, at_once) for t in (8, 136))
                    token = (long - short) / 128
                    print(f"{name}, {at_once:2} at once, {'streamed' if stream else 'whole   '}: {short - 8 * token:6.0f} us a request, "
                          f"{token:6.1f} us a token", flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
