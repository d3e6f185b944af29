"""Many streams at once for a while, with clients that cancel, vanish and read slowly; then the server must be as before.

  scripts/clients.sh --python tests/clients/soak.py --streams 200 --seconds 60

Every request is answered in full, refused with a reason or given up by its client; the same question gets the same
answer every time; memory stops growing after the first third; at the end nothing runs, waits or holds a page.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import re
import sys
import time

import servers
import wire

PROMPTS = [f"Tell me a story about a {a} {b}." for a in ("red", "small", "clever", "sad") for b in ("fox", "king", "ship", "tree")]
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


class Soak:
    def __init__(self, server, streams, seconds, seed):
        self.server, self.streams, self.seconds, self.seed = server, streams, seconds, seed
        self.count = collections.Counter()
        self.faults = []
        self.answers = {}
        self.rss = []
        self.end = time.monotonic() + seconds

    def fault(self, what):
        self.count["fault"] += 1
        if len(self.faults) < 20:
            self.faults.append(what)

    def request(self, dice):
        """A path, its body, and what the answer must be equal for."""
        text, seed, limit = dice.choice(PROMPTS), dice.randrange(3), dice.choice((8, 24, 60))
        path = dice.choices((CHAT, MESSAGES, RESPONSES), (6, 2, 2))[0]
        body = {"model": "m", "seed": seed, "enable_thinking": dice.random() < 0.5, "stream": dice.random() < 0.85}
        if path == RESPONSES:
            body |= {"input": text, "max_output_tokens": limit}
        else:
            body |= {"messages": [{"role": "user", "content": text}], "max_tokens": limit}
        if path == CHAT and dice.random() < 0.1:
            body["n"] = 2
        key = (path, text, seed, limit, body["enable_thinking"], body.get("n"))
        return path, body, key

    async def stream(self, exchange, path, leave_after, slow):
        """The text of a whole stream; None where the client left."""
        text, last, events = [], None, 0
        async for data in exchange.events():
            events += 1
            if leave_after is not None and events >= leave_after:
                return None
            if slow:
                await asyncio.sleep(0.05)
            if data == b"[DONE]":
                last = "[DONE]"
                continue
            event = json.loads(data)
            if "error" in event and event["error"]:
                return event["error"]
            last = event.get("type")
            if path == CHAT:
                for choice in event["choices"]:
                    d = choice["delta"]
                    text.append((choice["index"], d.get("reasoning_content") or d.get("content") or ""))
            elif last == "content_block_delta":
                text.append((0, event["delta"].get("text") or event["delta"].get("thinking") or ""))
            elif last in ("response.output_text.delta", "response.reasoning_text.delta"):
                text.append((0, event["delta"]))
        if last not in ("[DONE]", "message_stop", "response.completed", "response.incomplete"):
            raise ConnectionResetError(f"the stream ended with {last}")
        return "|".join("".join(t for i, t in text if i == index) for index in (0, 1))

    async def one(self, dice):
        path, body, key = self.request(dice)
        manner = dice.choices(("whole", "cancel", "reset", "slow", "leave early", "nonsense"), (70, 12, 5, 4, 4, 5))[0]
        if manner == "nonsense":
            body = {"messages": dice.choice((5, [], [{}], [{"role": "user"}]))}
        exchange = await wire.post(self.server.url, path, body, receive_buffer=4096 if manner == "slow" else None)
        try:
            if manner == "leave early":
                await asyncio.sleep(dice.random() * 0.2)
                self.count["left before the answer"] += 1
                return exchange.reset() if dice.random() < 0.5 else exchange.close()
            status = await exchange.head()
            if manner == "nonsense":
                self.count["refused"] += 1
                return status == 400 or self.fault(f"nonsense was answered {status}")
            if status == 429:
                self.count["told to come again"] += 1
                assert int(exchange.headers["retry-after"]) >= 1
                return await asyncio.sleep(dice.random())
            if status != 200:
                return self.fault(f"{path} was answered {status}")
            if not body["stream"]:
                answer = json.loads(await exchange.body())
                return self.count.update(["whole"]) if answer["usage"] else self.fault("an answer without usage")
            leave = dice.randint(1, 30) if manner in ("cancel", "reset") else None
            text = await self.stream(exchange, path, leave, manner == "slow")
            if text is None:
                self.count["left in a stream"] += 1
                return exchange.reset() if manner == "reset" else exchange.close()
            if isinstance(text, dict):
                return self.fault(f"{path}: {text}")
            self.count["streamed"] += 1
            if self.answers.setdefault(key, text) != text:
                self.fault(f"{key} had two answers: {self.answers[key]!r} and {text!r}")
        finally:
            exchange.close()

    async def client(self, i):
        dice = random.Random(self.seed * 100_000 + i)
        while time.monotonic() < self.end:
            try:
                await asyncio.wait_for(self.one(dice), 120)
            except asyncio.TimeoutError:
                self.fault("no end of an answer within 120 s")
            except (OSError, asyncio.IncompleteReadError, AssertionError) as error:
                self.fault(repr(error))

    async def watch(self):
        """Memory beside the cache's pages, which become resident when they are first used."""
        page_mib = next(float(found[1]) / 1024 for line in self.server.log if (found := re.search(r" of ([0-9.]+) KiB, 128 tokens", line)))
        most = 0
        while time.monotonic() < self.end:
            m = await asyncio.to_thread(self.server.metrics)
            most = max(most, m["fathom_cache_pages"] - m["fathom_cache_pages_free"])
            self.rss.append(self.server.rss_mib() - most * page_mib)
            await asyncio.sleep(self.seconds / 60)

    async def run(self):
        await asyncio.gather(self.watch(), *[self.client(i) for i in range(self.streams)])

    def settled(self):
        """What is not as it was before, at most ten seconds after the last client has left."""
        for _ in range(100):
            m = self.server.metrics()
            left = {name: m[name] for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
                    if m.get(name)}
            if not left:
                return {}
            time.sleep(0.1)
        return left

    def report(self):
        third = len(self.rss) // 3
        before, after = max(self.rss[:third] or [0]), max(self.rss[third:])
        grown = after - before
        left = self.settled()
        print(f"{sum(self.count.values())} requests in {self.seconds} s by {self.streams} clients: "
              + ", ".join(f"{n} {what}" for what, n in self.count.most_common()))
        print(f"{len(self.answers)} different questions; memory beside the cache {self.rss[0]:.0f} MiB at first, at most {before:.0f} MiB in the "
              f"first third, {after:.0f} MiB after it; left over: {left or 'nothing'}")
        if grown > 24 + 0.1 * before:
            self.faults.append(f"memory grew by {grown:.0f} MiB after the first third")
        if left:
            self.faults.append(f"left over: {left}")
        if self.server.get("/health").status_code != 200:
            self.faults.append("the server is not healthy")
        if self.count["streamed"] < self.streams // 4:
            self.faults.append("hardly anything was streamed")
        fds = len(os.listdir(f"/proc/{self.server.process.pid}/fd"))
        if fds > 64:
            self.faults.append(f"{fds} descriptors are open")
        return self.faults


def soak(streams, seconds, seed, *options):
    server = servers.serve("--quiet", "--cache", "0.125", *options)
    try:
        s = Soak(server, streams, seconds, seed)
        asyncio.run(s.run())
        faults = s.report()
    finally:
        status = server.stop()
    return faults + ([f"exit status {status}"] if status else [])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    found = soak(a.streams, a.seconds, a.seed)
    print("\n".join(found) or "no faults")
    sys.exit(bool(found))
