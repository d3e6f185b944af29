"""A real browser at the page of a live server: what browser_test.py needs of both.

The server is FATHOM_URL, or one that is started here: that of the folder FATHOM_BIN (default: build/release/bin) with models/fathom-tiny.
Needs chromium and chromedriver on the PATH, and the Python package selenium. FATHOM_SHOTS=FOLDER keeps pictures.
"""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import time
import urllib.request

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Takes the place of fetch for the endpoint of answers: the test says what arrives, and when. A test of what the page does
# with an answer needs answers that no model gives on request.
FAKE_SERVER = """
const real = window.real ?? window.fetch;
window.real = real;
window.asked = [];
window.fetch = async (url, options = {}) => {
  if (!String(url).includes('chat/completions')) return real(url, options);
  window.asked.push({body: JSON.parse(options.body), headers: options.headers});
  if (window.refusal) {
    const {status, body, headers} = window.refusal;
    return new Response(JSON.stringify(body), {status, headers});
  }
  const encoder = new TextEncoder();
  const stream = new ReadableStream({start(to) {
    options.signal?.addEventListener('abort', () => { try { to.error(options.signal.reason); } catch {} });
    window.push = (bytes) => to.enqueue(encoder.encode(bytes));
    window.delta = (delta, finish = null) =>
      window.push('data: ' + JSON.stringify({choices: [{index: 0, delta, finish_reason: finish}]}) + '\\n\\n');
    window.end = () => { window.delta({}, 'stop'); window.push('data: [DONE]\\n\\n'); to.close(); };
    window.breakOff = () => to.close();
  }});
  return new Response(stream, {status: 200});
};
"""


@contextlib.contextmanager
def running_server(*flags, env=None):
    """The URL of a server of fathom-tiny; it ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = str(pathlib.Path(os.environ.get("FATHOM_BIN", ROOT / "build/release/bin")) / "fathom")
    command = [program, "serve", str(ROOT / "models/fathom-tiny"), "--port", str(port), "--quiet", *flags]
    process = subprocess.Popen(command, env={**os.environ, **(env or {})}, stderr=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(url + "health")
                break
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)


class Page:
    """The page in a browser of its own, with an empty store."""

    def __init__(self, url, width=1280, height=850):
        options = webdriver.ChromeOptions()
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--window-size={max(width, 500)},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        options.binary_location = shutil.which("chromium") or shutil.which("google-chrome")
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.driver.set_script_timeout(60)
        self.url = url
        self.expected_errors = 0  # console errors that the test itself causes, such as a 401
        if width < 500:
            self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=True)
        self.open()

    def reset(self):
        """As if the browser were new."""
        self.expected_errors = 0
        self.js("localStorage.clear(); sessionStorage.clear()")
        self.media("")
        self.devtools("Network.enable")
        self.devtools("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)
        self.open()
        self.driver.get_log("browser")

    def open(self):
        self.driver.get(self.url)
        self.wait(lambda: self.one("#model").text != "" or self.one("#key-ask").is_displayed() or self.one("#banner").is_displayed())

    def quit(self):
        self.driver.quit()

    def devtools(self, command, **arguments):
        return self.driver.execute_cdp_cmd(command, arguments)

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def async_js(self, script, *arguments):
        return self.driver.execute_async_script(script, *arguments)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, condition, seconds=60):
        return WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(lambda _: condition())

    def keys(self, *keys):
        """Goes to whatever has the focus."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def alt(self, key):
        self.keys(Keys.ALT + key)

    def ask(self, text):
        self.one("#input").send_keys(text, Keys.ENTER)

    def idle(self):
        self.wait(lambda: not self.one("#stop").is_displayed() and self.all(".turn.bot .acts button"))

    def answers(self):
        return [e.text for e in self.all(".turn.bot .md")]

    def media(self, scheme):
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def brightness(self):
        """Of the background, 0 to 255."""
        colour = self.js("return getComputedStyle(document.body).backgroundColor")
        numbers = [float(x) for x in colour[colour.index("(") + 1 : -1].replace("/", ",").split(",")[:3]]
        return sum(numbers) / 3

    def fake(self, refusal=None):
        self.js(FAKE_SERVER + "window.refusal = arguments[0];", refusal)

    def shot(self, name):
        folder = os.environ.get("FATHOM_SHOTS")
        if folder:
            pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(f"{folder}/{name}.png")

    def requests(self):
        """Every address that the browser was made to ask since the last call."""
        events = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def check(self):
        """Nothing was asked of others, and nothing went wrong that the test did not mean to."""
        strangers = [u for u in self.requests() if not u.startswith((self.url, "data:"))]
        assert strangers == [], strangers
        errors = [e["message"] for e in self.driver.get_log("browser") if e["level"] == "SEVERE"]
        assert len(errors) <= self.expected_errors, errors
