"""The page at / in a real headless browser, against a live server with fathom-tiny. Run with pytest; see browser.py."""

import json
import os

import pytest
from browser import Page, running_server
from selenium.webdriver.common.keys import Keys

HOSTILE = (
    "<script>window.harmed=1</script><img src=x onerror='window.harmed=1'><svg onload=window.harmed=1>"
    "<iframe srcdoc='<script>parent.harmed=1</script>'></iframe> [a](javascript:window.harmed=1) "
    "[b](data:text/html,<script>harmed=1</script>) ![c](https://stranger.example/c.png) "
    "<a href='javascript:harmed=1'>d</a> `<b>`\n\n```html\n<script>window.harmed=1</script>\n```\n\n"
    "| <script>harmed=1</script> | x |\n|---|---|\n| <img src=x onerror=harmed=1> | y |\n"
)


@pytest.fixture(scope="session")
def url():
    if "FATHOM_URL" in os.environ:
        yield os.environ["FATHOM_URL"].rstrip("/") + "/"
    else:
        with running_server() as address:
            yield address


@pytest.fixture(scope="module")
def browser(url):
    p = Page(url)
    yield p
    p.quit()


@pytest.fixture
def page(browser):
    browser.reset()
    yield browser
    browser.check()


def test_answers_with_its_thinking_folded(page):
    page.shot("empty-light")
    page.ask("What is the capital of France?")
    page.idle()
    assert "Paris" in page.answers()[0]
    think = page.one(".turn.bot details.think")
    assert think.get_attribute("open") is None
    assert not page.one(".think .text").is_displayed()
    page.one(".think summary").click()
    assert "France" in page.one(".think .text").text
    figures = page.one(".turn.bot .stat").text
    assert "tokens/s" in figures and "% from cache" in figures, figures
    assert page.one("#depth").is_displayed()
    assert page.one("#title").text == "What is the capital of France?"
    page.shot("answer-light")


def test_the_next_turn_finds_the_cache(page):
    page.ask("Once there was a king who had three sons, and the youngest was called Simple. " * 4 + "Who was the youngest?")
    page.idle()
    page.ask("And who had three sons?")
    page.wait(lambda: len(page.all(".turn.bot .stat")) == 2)
    cached = int(page.all(".turn.bot .stat")[1].text.split(", ")[-1].split(" %")[0])
    assert cached > 5


def test_thinking_can_be_switched_off(page):
    page.alt("e")
    page.alt("e")
    assert page.js("return document.getElementById('effort').value") == "none"
    page.ask("What is the capital of France?")
    page.idle()
    assert not page.one(".turn.bot details.think").is_displayed()


def test_streams_what_a_slow_line_brings_and_stops(page):
    page.devtools("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=6000, uploadThroughput=-1)
    page.ask("Tell me a story about the sea.")
    page.wait(lambda: page.one(".turn.bot.live").text.strip() != "")
    seen = set()
    page.wait(lambda: seen.add(page.one(".turn.bot").text) or len(seen) > 4)
    page.shot("streaming-light")
    page.keys(Keys.ESCAPE)
    page.idle()
    assert "Stopped." in page.one(".turn.bot").text
    assert page.one("#send").is_displayed()


def test_answers_again_in_the_place_of_the_answer(page):
    page.ask("What is the capital of Italy?")
    page.idle()
    page.alt("r")
    page.idle()
    assert len(page.all(".turn.bot")) == 1 and len(page.all(".turn.user")) == 1
    assert "Rome" in page.answers()[0]


def test_a_message_is_edited_and_what_followed_comes_back(page):
    for text in ("What is the capital of Italy?", "What is the capital of France?"):
        page.ask(text)
        page.idle()
    before = page.answers()
    page.all(".turn.user")[0].find_element("css selector", ".acts button").click()
    page.keys(Keys.CONTROL + "a")
    page.keys("What is the capital of Spain?", Keys.ENTER)
    page.idle()
    assert len(page.answers()) == 1 and "Madrid" in page.answers()[0]
    page.one("#toast-act").click()
    page.wait(lambda: page.answers() == before)


def test_up_in_the_empty_field_edits_the_last_message(page):
    page.ask("What is the capital of Italy?")
    page.idle()
    page.one("#input").send_keys(Keys.ARROW_UP)
    field = page.driver.switch_to.active_element
    assert field.get_attribute("value") == "What is the capital of Italy?"
    field.send_keys(Keys.ESCAPE)
    assert page.all(".turn.user .bubble")[0].is_displayed()


def test_a_tool_is_called_and_its_result_given(page):
    page.one("#settings-open").click()
    page.one("#tools-example").click()
    page.shot("settings-light")
    page.one("#settings-ok").click()
    page.ask("What is the weather in Paris?")
    page.idle()
    assert page.one(".call .name").text.startswith("get_weather")
    assert page.one(".call .args dd").text == "Paris"
    assert "DSML" not in page.one("#log").text
    page.one(".call textarea").send_keys('{"sky": "sunny", "temperature": 20}')
    page.shot("tool-light")
    page.one(".give").click()
    page.wait(lambda: len(page.all(".turn.bot .stat")) == 2)
    assert page.answers()[-1] != ""
    assert "sunny" in page.one(".call .result").text


def test_tools_that_are_no_list_are_refused_with_the_reason(page):
    page.one("#settings-open").click()
    page.one("#tools").send_keys("{nonsense")
    page.one("#settings-ok").click()
    assert page.one("#settings").is_displayed()
    assert "no list of tools" in page.one("#tools-wrong").text


def test_dark_and_light(page):
    page.media("light")
    assert page.brightness() > 200
    page.media("dark")
    assert page.brightness() < 60
    page.shot("empty-dark")
    page.alt("t")
    assert "light" in page.one("#theme").text and page.brightness() > 200
    page.open()
    assert page.brightness() > 200
    page.alt("t")
    assert "dark" in page.one("#theme").text and page.brightness() < 60


def test_conversations_outlive_a_reload(page):
    page.ask("What is the capital of France?")
    page.idle()
    page.alt("n")
    page.ask("What is the capital of Italy?")
    page.idle()
    page.open()
    titles = [e.text for e in page.all("#list .open")]
    assert titles == ["What is the capital of Italy?", "What is the capital of France?"]
    page.all("#list .open")[1].click()
    assert "Paris" in page.answers()[0]
    page.all("#list .drop")[1].click()
    assert len(page.all("#list .open")) == 1 and page.answers() == []
    page.one("#toast-act").click()
    assert len(page.all("#list .open")) == 2 and "Paris" in page.answers()[0]


def test_an_answer_goes_on_while_another_conversation_is_shown(page):
    page.fake()
    page.ask("first")
    page.wait(lambda: page.js("return Boolean(window.delta)"))
    page.js("delta({content: 'begun'})")
    page.wait(lambda: page.answers() == ["begun"])
    page.alt("n")
    assert page.answers() == [] and page.one("#send").is_displayed()
    page.js("delta({content: ' and done'}); end()")
    page.wait(lambda: not page.all("#list .busy"))
    page.one("#list .open").click()
    assert page.answers() == ["begun and done"]


def test_hostile_text_is_text(page):
    page.fake()
    page.ask(HOSTILE.replace("\n", " "))
    page.wait(lambda: page.js("return Boolean(window.delta)"))
    for letter in range(0, len(HOSTILE), 7):
        page.js("delta({content: arguments[0], reasoning_content: arguments[0]})", HOSTILE[letter : letter + 7])
    page.js("delta({tool_calls: [{index: 0, id: 'x', function: {name: arguments[0], arguments: arguments[1]}}]}); end()",
            HOSTILE, json.dumps({HOSTILE: HOSTILE}))
    page.idle()
    page.open()  # what was kept is read back
    assert HOSTILE[:40] in page.one(".turn.user .bubble").text
    assert page.js("return window.harmed") is None
    assert page.all("#log script, #log img, #log iframe, #log svg, #log b") == []
    assert page.js("return [...document.querySelectorAll('#log a')].map((a) => a.href)") == ["https://stranger.example/c.png"]


def test_a_store_that_was_tampered_with_does_no_harm(page):
    page.js("""
      localStorage.setItem('fathom.index', JSON.stringify([{id: 'a', title: arguments[0], changed: Date.now()}, 5, null]));
      localStorage.setItem('fathom.c.a', JSON.stringify({title: arguments[0], messages: [null, 7, {role: 'assistant',
        content: {a: 1}, calls: [null, {name: arguments[0]}], stats: 'x'}, {role: 'user', content: arguments[0]}]}));
      localStorage.setItem('fathom.settings', '{broken');""", HOSTILE)
    page.open()
    assert len(page.all(".turn")) == 2
    assert page.js("return window.harmed") is None


def test_markdown_grows_into_what_it_is_as_a_whole(page):
    text = "# T\n\nA *b* **c** `d`\n\n- x\n- y\n  - z\n\n1. q\n2. r\n\n```py\n\tdef f():\n\n    pass\n```\n\n| a | b |\n|--:|---|\n| 1 | 2 |\n\n> q\n> r\n\nend"
    grown, whole = page.async_js("""
      const [text, done] = arguments;
      import('/page/markdown.js').then(({Growing, markdown}) => {
        const box = document.createElement('div');
        const growing = new Growing(box);
        for (let i = 1; i <= text.length; i++) growing.set(text.slice(0, i));
        const other = document.createElement('div');
        other.append(...markdown(text));
        done([box.innerHTML, other.innerHTML]);
      });""", text)
    assert grown == whole
    assert "\tdef f()" in grown.replace("<span class=\"k\">", "").replace("</span>", "")
    for part in ("<h1>T</h1>", "<em>b</em>", "<strong>c</strong>", '<ol start="1">', "<blockquote>", '<th class="right">a</th>'):
        assert part in whole, part


@pytest.mark.parametrize("piece", ["*a", "[", "](", "`", "> ", "- ", "|a", "#", "<", "\\", "_a ", "http://", "/*", "'\\'", "  ", "\n- - "])
def test_no_text_makes_markdown_slow(page, piece):
    # Quadratic time would be minutes here; the limit is that of the script.
    done = page.async_js("""
      const [piece, done] = arguments;
      import('/page/markdown.js').then(({markdown}) => {
        markdown(piece.repeat(100000 / piece.length));
        markdown('```js\\n' + piece.repeat(30000 / piece.length));
        done(true);
      });""", piece)
    assert done


@pytest.mark.parametrize(
    "refusal, says",
    [
        ({"status": 429, "body": {"error": {"message": "full"}}, "headers": {"Retry-After": "2"}}, "busy"),
        ({"status": 400, "body": {"error": {"message": "x", "code": "context_length_exceeded"}}}, "no longer fits"),
        ({"status": 400, "body": {"error": {"message": "tools[0]: expected an object"}}}, "tools[0]: expected an object"),
        ({"status": 500, "body": {}}, "failed (500)"),
    ],
)
def test_errors_say_what_to_do(page, refusal, says):
    page.fake(refusal)
    page.ask("Hello")
    page.wait(lambda: says in page.one(".fault").text)
    page.js("window.refusal = null")
    page.one(".fault button").click()
    page.wait(lambda: page.js("return Boolean(window.delta)"))
    page.js("delta({content: 'There.'}); end()")
    page.idle()
    assert page.answers() == ["There."]


def test_a_broken_stream_keeps_what_came(page):
    page.fake()
    page.ask("Hello")
    page.wait(lambda: page.js("return Boolean(window.delta)"))
    page.js("delta({content: 'half'}); breakOff()")
    page.wait(lambda: "ended before it was complete" in page.one(".fault").text)
    assert page.answers() == ["half"]
    page.shot("fault-light")


def test_progress_of_a_long_prompt_is_shown(page):
    page.fake()
    page.ask("Hello")
    page.wait(lambda: page.js("return Boolean(window.push)"))
    page.js("push(': keep-alive prefill 2048/8192\\n\\n')")
    page.wait(lambda: "2\u202f048 of 8\u202f192" in page.one(".wait").text)
    page.shot("prefill-light")
    page.js("end()")
    page.idle()


def test_a_key_is_asked_for_and_used():
    with running_server(env={"FATHOM_API_KEY": "right"}) as address:
        page = Page(address)
        try:
            page.expected_errors = 4
            assert page.one("#key-ask").is_displayed()
            page.one("#key-new").send_keys("wrong", Keys.ENTER)
            page.wait(lambda: "does not know" in page.one("#key-title").text and page.one("#key-ask").is_displayed())
            page.one("#key-new").send_keys("right", Keys.ENTER)
            page.wait(lambda: page.one("#model").text == "fathom-tiny")
            page.ask("What is the capital of France?")
            page.idle()
            assert "Paris" in page.answers()[0]
            assert page.js("return JSON.stringify(localStorage).includes('right')") is False
            page.check()
        finally:
            page.quit()


def test_a_model_that_is_being_loaded_is_waited_for(page):
    script = page.devtools("Page.addScriptToEvaluateOnNewDocument", source="""
      const real = window.fetch;
      window.loading = true;
      window.fetch = (url, options) => {
        if (!window.loading) return real(url, options);
        const body = String(url).includes('health') ? {status: 'loading'} : {error: {message: 'the model is being loaded'}};
        return Promise.resolve(new Response(JSON.stringify(body), {status: 503}));
      };""")
    page.open()
    page.wait(lambda: "being loaded" in page.one("#banner").text)
    page.shot("loading-light")
    page.ask("What is the capital of France?")
    page.wait(lambda: page.all(".fault"))
    page.js("window.loading = false")
    page.wait(lambda: not page.one("#banner").is_displayed() and page.one("#model").text == "fathom-tiny")
    page.wait(lambda: page.answers() and "Paris" in page.answers()[0])
    page.devtools("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])


def test_a_server_that_is_gone_is_said_and_found_again():
    with running_server() as address:
        page = Page(address)
    try:
        page.expected_errors = 100
        page.ask("Hello")
        page.wait(lambda: "cannot be reached" in page.one(".fault").text)
        page.wait(lambda: "cannot be reached" in page.one("#banner").text)
    finally:
        page.quit()


def test_everything_is_reached_by_keyboard(page):
    page.ask("What is the capital of France?")
    page.idle()
    page.js("document.body.focus(); document.activeElement.blur()")
    reached, hidden_rings = set(), []
    for _ in range(40):
        page.keys(Keys.TAB)
        e = page.driver.switch_to.active_element
        name = e.get_attribute("id") or e.text or e.get_attribute("aria-label")
        if page.js("const s = getComputedStyle(arguments[0]); return s.outlineStyle === 'none' && arguments[0].id !== 'input'", e):
            hidden_rings.append(name)
        reached.add(name)
    for name in ("new", "theme", "keys", "settings-open", "effort", "input", "Edit", "Copy", "Again"):
        assert name in reached, (name, reached)
    assert [n for n in hidden_rings if n not in ("scroll", "title", None, "") and not n.startswith("Fathom")] == [], hidden_rings
    page.js("document.activeElement.blur()")
    page.keys("/")
    assert page.driver.switch_to.active_element.get_attribute("id") == "input"
    page.keys("?")
    assert page.one("#help").is_displayed()
    page.shot("keys-light")
    page.keys(Keys.ESCAPE)
    assert not page.one("#help").is_displayed()


def test_names_for_those_who_listen(page):
    page.ask("What is the capital of France?")
    page.idle()
    unnamed = page.js("""return [...document.querySelectorAll('button, textarea, input, select, progress, meter')].filter((e) =>
      e.offsetParent && !(e.innerText.trim() || e.getAttribute('aria-label') || e.labels?.length)).map((e) => e.outerHTML)""")
    assert unnamed == []
    assert page.one("#say").text or page.js("return document.getElementById('say').textContent") == "The answer is complete."


def test_a_phone(url):
    page = Page(url, width=390, height=844)
    try:
        page.ask("What is the capital of France?")
        page.idle()
        assert page.js("return document.documentElement.scrollWidth") == 390
        assert not page.one("#side").is_displayed()
        page.shot("phone-light")
        page.one("#side-open").click()
        page.wait(lambda: page.one("#new").is_displayed())
        page.shot("phone-list-light")
        page.one("#new").click()
        page.wait(lambda: not page.one("#side").is_displayed())
        page.check()
    finally:
        page.quit()
