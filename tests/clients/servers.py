"""Starting and ending a server under test."""

import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("FATHOM_BIN", ROOT / "build/release/bin"))
MODEL = ROOT / "models/fathom-tiny"


class Server:
    """A process that prints "serving ... on http://ADDRESS" when it is ready. Its lines are kept in `log`."""

    def __init__(self, *command, env=None):
        began = time.monotonic()
        self.process = subprocess.Popen(
            [str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, env={**os.environ, **(env or {})})
        self.log = []
        self.url = None
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(60) or self.url is None:
            self.process.kill()
            raise RuntimeError("the server did not start:\n" + "\n".join(self.log[-20:]))
        self.seconds_to_ready = time.monotonic() - began

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))
            if found := re.search(r"^serving .* on (http://\S+)", line):
                self.url = found[1]
                self._ready.set()
        self._ready.set()

    @property
    def v1(self):
        return self.url + "/v1"

    def get(self, path, **how):
        return httpx.get(self.url + path, timeout=60, **how)

    def post(self, path, body, **how):
        return httpx.post(self.url + path, json=body, timeout=60, **how)

    def metrics(self):
        """Every sample of /metrics by its name, and by its name and labels."""
        samples = {}
        for line in self.get("/metrics").text.splitlines():
            if line.startswith("#"):
                continue
            name, value = line.rsplit(" ", 1)
            samples[name] = float(value)
            samples[name.split("{")[0]] = float(value)
        return samples

    def rss_mib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) / 1024
        raise RuntimeError("the server is gone")

    def cpu_seconds(self):
        """Of the processor, by all its threads so far."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self, seconds=30):
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        self._reader.join(5)
        return self.process.returncode


def serve(*options, env=None):
    """`fathom serve` with fathom-tiny on a free port of this machine."""
    return Server(BIN / "fathom", "serve", MODEL, "--port", "0", *options, env=env)


def scripted(*arguments):
    """The server over a generator that says what the prompt tells it to (scripted_server.cc)."""
    return Server(BIN / "fathom_scripted_server", *arguments)
