"""Throughput and latencies of streams at once, of this server or of any other that speaks Chat Completions or Completions.

  scripts/clients.sh --python tests/clients/load.py --streams 1 16 200
  scripts/clients.sh --python tests/clients/load.py --completions --url http://127.0.0.1:8000 --model NAME --extra '{}'

Each client asks again as soon as it has been answered; every answer has the same length. Prompts are all different. The
gap between tokens is that between events of a stream that bring text.
"""

import argparse
import asyncio
import json
import time

import servers
import wire


def percentile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


class Load:
    def __init__(self, url, completions, fields, seconds):
        self.url, self.completions, self.fields, self.seconds = url, completions, fields, seconds
        self.path = "/v1/completions" if completions else "/v1/chat/completions"
        self.mark = b'"text":' if completions else b'"content":'

    async def client(self, i):
        round_ = 0
        while time.monotonic() < self.end:
            round_ += 1
            text = f"Tell me story {round_} about the {i}. king."
            asked = {"prompt": text} if self.completions else {"messages": [{"role": "user", "content": text}]}
            body = {**asked, "temperature": 1, "seed": i * 1000 + round_, "stream": True, "stream_options": {"include_usage": True}, **self.fields}
            began = last = time.perf_counter()
            exchange = await wire.post(self.url, self.path, body)
            try:
                if await exchange.head() != 200:
                    self.failed += 1
                    await asyncio.sleep(0.1)
                    continue
                first = True
                async for data in exchange.events():
                    now = time.perf_counter()
                    if b'"usage":{' in data or b'"usage": {' in data:
                        self.generated += json.loads(data)["usage"]["completion_tokens"]
                    brought = data.partition(self.mark)[2].lstrip()[:2]
                    if brought[:1] != b'"' or brought == b'""':
                        continue
                    (self.first if first else self.gaps).append(now - last)
                    first, last = False, now
                self.whole.append(time.perf_counter() - began)
            finally:
                exchange.close()

    async def run(self, streams):
        self.first, self.gaps, self.whole, self.failed, self.generated = [], [], [], 0, 0
        began = time.monotonic()
        self.end = began + self.seconds
        await asyncio.gather(*[self.client(i) for i in range(streams)])
        took = time.monotonic() - began
        ms = lambda values: " / ".join(f"{1e3 * percentile(values, q):.1f}" for q in (0.5, 0.9, 0.99))
        print(f"{streams:4} streams: {self.generated / took:8.0f} tokens/s, {len(self.whole) / took:6.1f} answers/s; ms at 50/90/99 %: "
              f"first token {ms(self.first)}, between {ms(self.gaps)}, whole {ms(self.whole)}"
              + (f"; {self.failed} refused" if self.failed else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a server that runs; one of fathom-tiny is started otherwise")
    parser.add_argument("--model", default="fathom-tiny")
    parser.add_argument("--completions", action="store_true", help="plain text in place of a chat")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 200])
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--seconds", type=float, default=15, help="for each number of streams")
    parser.add_argument("--extra", type=json.loads, default={"ignore_eos": True, "enable_thinking": False}, help="more fields of the request")
    parser.add_argument("serve", nargs="*", help="options of fathom serve, behind --")
    a = parser.parse_args()
    server = None if a.url else servers.serve("--quiet", *a.serve)
    load = Load(a.url or server.url, a.completions, {"model": a.model, "max_tokens": a.tokens, **a.extra}, a.seconds)
    try:
        for streams in a.streams:
            asyncio.run(load.run(streams))
    finally:
        if server:
            server.stop()


if __name__ == "__main__":
    main()
