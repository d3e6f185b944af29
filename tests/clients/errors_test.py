"""Errors, as the classes that the SDKs raise; keys; overload; draining. http-api.md 2 and 3."""

import concurrent.futures
import signal
import socket
import time

import anthropic
import httpx
import openai
import pytest

import servers
from talk import TOOLS, user

HELLO = user("Hi")
FOREVER = {"model": "m", "max_tokens": 100000, "messages": user("Tell me a story."), "extra_body": {"ignore_eos": True}}


@pytest.mark.parametrize("more, param, code", [
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0].content[0]", "unsupported_content"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "messages[0].content[0]", "unsupported_content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "invalid_value"),
    ({"messages": [{"role": "assistant"}]}, "messages[0]", "invalid_value"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]}]},
     "messages[0].tool_calls[0].id", "invalid_value"),
    ({"temperature": 2.1}, "temperature", "invalid_value"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"n": 17}, "n", "invalid_value"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    ({"stop": ["a"] * 17}, "stop", "invalid_value"),
    ({"seed": "seven"}, "seed", "invalid_value"),
    ({"tools": [*TOOLS, TOOLS[0]]}, "tools[2].function.name", "invalid_value"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice", "invalid_value"),
    ({"functions": [{"name": "f"}]}, "functions", "unsupported"),
    ({"modalities": ["text", "audio"], }, "modalities", "unsupported"),
    ({"audio": {"voice": "alloy", "format": "wav"}}, "audio", "unsupported"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "invalid_value"),
])
def test_bad_requests_name_the_field(client, more, param, code):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as no:
            client.chat.completions.create(**{"model": "m", "messages": HELLO, "stream": stream, **more})
        e = no.value
        assert (e.param, e.code, e.type) == (param, code, "invalid_request_error")
        assert param in e.message and e.request_id.startswith("req_")


def test_bodies_that_are_not_requests(live):
    for body in (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"messages": "\xff"}', b'{"a": "\\ud800"}', b"[" * 200_000,
                 b'{"messages": ' + b'[' * 200 + b']' * 200 + b"}"):
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
                     "/tokenize", "/detokenize"):
            r = httpx.post(live.url + path, content=body, headers={"content-type": "application/json"})
            assert r.status_code == 400, (path, body[:20], r.text)
            assert r.json()["error"]["type"] == "invalid_request_error" and r.json()["error"]["message"]
            if "messages" not in path:
                assert set(r.json()["error"]) == {"message", "type", "param", "code"}


def test_the_prompt_is_too_long(client):
    limit = client.models.retrieve("fathom-tiny").max_model_len
    for ask in (lambda t: client.chat.completions.create(model="m", messages=user(t)),
                lambda t: client.completions.create(model="m", prompt=t), lambda t: client.responses.create(model="m", input=t)):
        with pytest.raises(openai.BadRequestError, match=f"This model's maximum context length is {limit} tokens") as no:
            ask("word " * 200_000)
        assert no.value.code == "context_length_exceeded"
        assert no.value.body["n_ctx"] == limit and no.value.body["n_prompt_tokens"] > limit


def test_what_is_not_there(live, client):
    for path in ("/v1/embeddings", "/v1/images/generations", "/v1/files", "/nowhere", "/v1/chat", "/v1/messages/batches"):
        r = live.post(path, {})
        assert r.status_code == 404, path
        assert r.json()["error"]["message"]
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="m", input="x")
    for method, path, allow in (("GET", "/v1/chat/completions", "POST"), ("DELETE", "/v1/messages", "POST"), ("POST", "/v1/models", "GET"),
                                ("PUT", "/tokenize", "POST")):
        r = httpx.request(method, live.url + path)
        assert r.status_code == 405 and allow in r.headers["allow"], path
    r = live.post("/v1/messages/batches", {})
    assert r.json()["type"] == "error" and r.json()["error"]["type"] == "not_found_error"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("sk-first\nsk-second\n", encoding="ascii")
    server = servers.serve("--api-key-file", keys, "--slots", "1", "--queue", "1", "--strict-model-names",
                           env={"FATHOM_API_KEY": "sk-environment"})
    yield server
    server.stop()
    assert not any("sk-" in line for line in server.log), "a key is never logged"
    assert not any("Tell me" in line for line in server.log), "nor is a prompt"
    assert any("status=401" in line for line in server.log) and any("id=req_" in line for line in server.log)


def test_keys(guarded):
    for key in ("sk-first", "sk-second", "sk-environment"):
        assert list(openai.OpenAI(base_url=guarded.v1, api_key=key).models.list())
        assert list(anthropic.Anthropic(base_url=guarded.url, api_key=key).models.list())
        assert list(anthropic.Anthropic(base_url=guarded.url, auth_token=key, api_key=None).models.list())
    for key in ("sk-firs", "sk-firstx", "other"):
        with pytest.raises(openai.AuthenticationError) as no:
            openai.OpenAI(base_url=guarded.v1, api_key=key, max_retries=0).models.list()
        assert no.value.code == "invalid_api_key"
        with pytest.raises(anthropic.AuthenticationError) as no:
            anthropic.Anthropic(base_url=guarded.url, api_key=key, max_retries=0).messages.create(model="m", max_tokens=1, messages=HELLO)
        assert no.value.body["error"]["type"] == "authentication_error"
    assert guarded.get("/health").status_code == 200 and guarded.get("/version").status_code == 200
    assert guarded.get("/metrics").status_code == 401


def test_strict_model_names(guarded):
    c = openai.OpenAI(base_url=guarded.v1, api_key="sk-first", max_retries=0)
    c.chat.completions.create(model="fathom-tiny", messages=HELLO, max_tokens=1)
    with pytest.raises(openai.NotFoundError) as no:
        c.chat.completions.create(model="gpt-9", messages=HELLO)
    assert no.value.code == "model_not_found" and no.value.param == "model"
    with pytest.raises(anthropic.NotFoundError):
        anthropic.Anthropic(base_url=guarded.url, api_key="sk-first", max_retries=0).messages.create(model="gpt-9", max_tokens=1, messages=HELLO)


def test_a_full_queue_is_a_rate_limit(guarded):
    c = openai.OpenAI(base_url=guarded.v1, api_key="sk-first", max_retries=0)
    forever = {**FOREVER, "model": "fathom-tiny", "stream": True}
    streams = []
    try:
        streams.append(c.chat.completions.create(**forever))
        next(streams[0])  # it runs; the next one waits
        streams.append(c.chat.completions.create(**forever))
        with pytest.raises(openai.RateLimitError) as no:
            for _ in range(3):
                streams.append(c.chat.completions.create(**forever))
        assert no.value.code == "rate_limit_exceeded" and 1 <= int(no.value.response.headers["retry-after"]) <= 60
        with pytest.raises(anthropic.RateLimitError):
            anthropic.Anthropic(base_url=guarded.url, api_key="sk-first", max_retries=0).messages.create(
                model="fathom-tiny", max_tokens=1, messages=HELLO)
        # The SDK's own retries get through once there is room.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            patient = pool.submit(c.with_options(max_retries=5).chat.completions.create, model="fathom-tiny", messages=HELLO, max_tokens=1)
            time.sleep(0.2)
            while streams:
                streams.pop().close()
            assert patient.result(60).choices
    finally:
        for s in streams:
            s.close()


def test_a_request_that_waits_too_long(tmp_path):
    server = servers.serve("--slots", "1", "--queue-seconds", "1")
    try:
        c = openai.OpenAI(base_url=server.v1, api_key="x", max_retries=0)
        first = c.chat.completions.create(stream=True, **FOREVER)
        next(first)
        with pytest.raises(openai.InternalServerError) as no:
            c.chat.completions.create(model="m", messages=HELLO)
        assert no.value.status_code == 503 and no.value.code == "service_unavailable" and "retry-after" in no.value.response.headers
        with pytest.raises(openai.APIError, match="wait"):  # a stream has begun: the error is an event
            for _ in c.chat.completions.create(model="m", messages=HELLO, stream=True):
                pass
        with pytest.raises(anthropic.APIStatusError, match="wait"):
            with anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0).messages.stream(
                    model="m", max_tokens=5, messages=HELLO) as stream:
                list(stream)
    finally:
        first.close()
        server.stop()


def test_sigterm_lets_answers_end_and_a_second_one_does_not(tmp_path):
    server = servers.serve()
    c = openai.OpenAI(base_url=server.v1, api_key="x", max_retries=0)
    stream = c.chat.completions.create(model="m", messages=user("Tell me a story."), max_tokens=400, stream=True, extra_body={"ignore_eos": True})
    next(stream)
    server.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 10
    while server.get("/health").status_code == 200 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.get("/health").json()["status"] == "draining"
    with pytest.raises(openai.InternalServerError) as no:
        c.chat.completions.create(model="m", messages=HELLO)
    assert no.value.status_code == 503
    *_, last = stream
    assert last.choices[0].finish_reason == "length"
    assert server.process.wait(20) == 0

    server = servers.serve()
    c = openai.OpenAI(base_url=server.v1, api_key="x", max_retries=0)
    stream = c.chat.completions.create(stream=True, **FOREVER)
    next(stream)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGTERM)
    with pytest.raises(openai.APIError):  # the end of the stream is an error, not silence
        for _ in stream:
            pass
    assert server.process.wait(10) == 0


def test_a_half_sent_body_does_not_block_others(live):
    host, port = live.url.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(50)]
    for s in slow:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
    began = time.monotonic()
    assert live.get("/health").status_code == 200
    assert live.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1}).status_code == 200
    assert time.monotonic() - began < 10
    for s in slow:
        s.close()
