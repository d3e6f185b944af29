"""openai: Chat Completions."""

import json
import time

import openai
import pytest
from pydantic import BaseModel

from talk import NO_THINKING, TOOLS, strictly, user

FRANCE = user("What is the capital of France?")


def ask(client, messages=FRANCE, **more):
    more = {"model": "fathom-tiny", "temperature": 0, "max_tokens": 120, **more}
    return strictly(client.chat.completions.create(messages=messages, **more))


def chunks_of(client, messages=FRANCE, **more):
    more = {"model": "fathom-tiny", "temperature": 0, "max_tokens": 120, **more}
    return [strictly(c) for c in client.chat.completions.create(messages=messages, stream=True, **more)]


def joined(chunks, field, index=0):
    return "".join(
        getattr(c.choices[0].delta, field, None) or "" for c in chunks if c.choices and c.choices[0].index == index)


def test_answers_with_reasoning(client):
    r = ask(client, model="what/ever")
    assert r.id.startswith("chatcmpl-") and r.object == "chat.completion" and r.model == "what/ever"
    message = r.choices[0].message
    assert message.role == "assistant" and "Paris" in message.content
    assert message.reasoning_content and message.tool_calls is None
    assert "<" not in message.content + message.reasoning_content
    assert r.choices[0].finish_reason == "stop" and r.choices[0].logprobs is None
    usage = r.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens
    assert r._request_id


def test_thinks_only_when_asked_to(client):
    silent = ask(client, extra_body=NO_THINKING)
    assert not hasattr(silent.choices[0].message, "reasoning_content")
    assert silent.usage.completion_tokens_details.reasoning_tokens == 0
    for off in ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"thinking": False}}):
        assert ask(client, extra_body=off).choices[0].message.content == silent.choices[0].message.content
    assert not hasattr(ask(client, reasoning_effort="none").choices[0].message, "reasoning_content")
    assert not hasattr(ask(client, model="deepseek-chat").choices[0].message, "reasoning_content")


def test_effort_reaches_the_prompt(client):
    tokens = {e: ask(client, reasoning_effort=e).usage.prompt_tokens for e in ("low", "high", "max")}
    assert len({tokens["low"], tokens["high"], tokens["max"]}) >= 2, tokens
    assert ask(client).usage.prompt_tokens == tokens["high"]
    with pytest.raises(openai.BadRequestError) as no:
        ask(client, extra_body={"reasoning_effort": "heroic"})
    assert no.value.param == "reasoning_effort"


def test_stream_is_the_whole_answer_in_pieces(client):
    whole = ask(client).choices[0]
    chunks = chunks_of(client)
    assert {c.id for c in chunks} == {chunks[0].id} and {c.created for c in chunks} == {chunks[0].created}
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert joined(chunks, "content") == whole.message.content
    assert joined(chunks, "reasoning_content") == whole.message.reasoning_content
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(c.usage is None for c in chunks)
    for c in chunks[1:-1]:
        delta = c.choices[0].delta
        assert bool(delta.content) != bool(getattr(delta, "reasoning_content", None)), "one kind a chunk, none empty"


def test_include_usage(client):
    chunks = chunks_of(client, stream_options={"include_usage": True})
    assert chunks[-1].choices == [] and all(c.usage is None for c in chunks[:-1])
    whole = ask(client).usage
    assert chunks[-1].usage.completion_tokens == whole.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.prompt_tokens
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="m", messages=FRANCE, stream_options={"include_usage": True})


def test_stream_helper(client):
    with client.chat.completions.stream(model="m", messages=user("What is the weather in Paris?"), tools=TOOLS,
                                        temperature=0, max_tokens=200) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments) == {"city": "Paris"}


def test_seed_and_n(client):
    tale = user("Tell me a story about a fox.")
    how = {"messages": tale, "temperature": 1, "max_tokens": 24, "seed": 11, "n": 3, "extra_body": NO_THINKING}
    first = ask(client, **how)
    assert [c.index for c in first.choices] == [0, 1, 2]
    texts = [c.message.content for c in first.choices]
    assert len(set(texts)) > 1, "choices have seeds of their own"
    assert [c.message.content for c in ask(client, **how).choices] == texts
    assert [c.message.content for c in ask(client, **{**how, "seed": 12}).choices] != texts
    chunks = chunks_of(client, **{**how, "stream_options": {"include_usage": True}})
    assert [joined(chunks, "content", i) for i in range(3)] == texts
    assert chunks[-1].usage.completion_tokens == first.usage.completion_tokens > 24


def test_stop_and_length(client):
    r = ask(client, stop=["Paris", "never"], extra_body=NO_THINKING)
    assert r.choices[0].message.content == "The capital of France is " and r.choices[0].finish_reason == "stop"
    chunks = chunks_of(client, stop="Paris", extra_body=NO_THINKING)
    assert joined(chunks, "content") == "The capital of France is "
    short = ask(client, max_tokens=None, max_completion_tokens=4, extra_body=NO_THINKING)
    assert short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 4


def test_logprobs(client):
    r = ask(client, logprobs=True, top_logprobs=3, extra_body=NO_THINKING)
    entries = r.choices[0].logprobs.content
    assert b"".join(bytes(e.bytes) for e in entries).decode() == r.choices[0].message.content
    for e in entries:
        assert e.logprob <= 0 and len(e.top_logprobs) == 3
        assert e.top_logprobs[0].logprob == max(t.logprob for t in e.top_logprobs)
        assert e.token == e.top_logprobs[0].token, "greedy takes the likeliest"
    streamed = [e for c in chunks_of(client, logprobs=True, top_logprobs=3, extra_body=NO_THINKING)
                for e in (c.choices[0].logprobs.content if c.choices[0].logprobs else [])]
    assert streamed == entries
    thinking = ask(client, logprobs=True)
    assert "".join(e["token"] for e in thinking.choices[0].logprobs.reasoning_content).startswith(
        thinking.choices[0].message.reasoning_content)


def test_sampling_fields(client):
    ask(client, temperature=1.3, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.5, logit_bias={"5": -100}, max_tokens=8,
        user="me", metadata={"a": "b"}, store=True, service_tier="auto", prompt_cache_key="k", safety_identifier="s",
        extra_body={"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.1, "some_unknown_field": {"x": [1]}})
    biased = ask(client, logit_bias={str(i): -100 for i in range(4, 1028)}, extra_body=NO_THINKING)
    assert biased.choices[0].message.content != ask(client, extra_body=NO_THINKING).choices[0].message.content


@pytest.mark.parametrize("extra", [NO_THINKING, {}])
def test_tools_auto(client, extra):
    r = ask(client, user("What is the weather in Paris?"), tools=TOOLS, extra_body=extra, max_tokens=200)
    message = r.choices[0].message
    assert r.choices[0].finish_reason == "tool_calls" and message.content is None
    (call,) = message.tool_calls
    assert call.id.startswith("call_") and call.type == "function" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    assert ask(client, tools=TOOLS, extra_body=extra).choices[0].message.tool_calls is None


@pytest.mark.parametrize("extra", [NO_THINKING, {}])
@pytest.mark.parametrize("choice, name", [("required", None), ({"type": "function", "function": {"name": "add"}}, "add"),
                                          ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
                                              {"type": "function", "function": {"name": "add"}}]}}, "add")])
def test_tools_required_and_named(client, extra, choice, name):
    r = ask(client, user("Please add 3 and 4."), tools=TOOLS, tool_choice=choice, extra_body=extra, max_tokens=200)
    calls = r.choices[0].message.tool_calls
    assert calls and r.choices[0].finish_reason == "tool_calls"
    assert all(c.function.name == (name or c.function.name) for c in calls)
    json.loads(calls[0].function.arguments)
    chunks = chunks_of(client, user("Please add 3 and 4."), tools=TOOLS, tool_choice=choice, extra_body=extra, max_tokens=200)
    pieces = [t for c in chunks for t in c.choices[0].delta.tool_calls or []]
    assert [p.function.name for p in pieces if p.id] == [c.function.name for c in calls]
    assert "".join(p.function.arguments or "" for p in pieces if p.index == 0) == calls[0].function.arguments


def test_tools_none(client):
    with_tools = user("What is the weather in Paris?")
    r = ask(client, with_tools, tools=TOOLS, tool_choice="none")
    assert r.choices[0].message.tool_calls is None and r.choices[0].finish_reason != "tool_calls"
    assert r.usage.prompt_tokens == ask(client, with_tools).usage.prompt_tokens, "no tool is shown to the model"


def test_one_call_at_a_time(client):
    r = ask(client, user("What is the weather in Paris?"), tools=TOOLS, parallel_tool_calls=False, max_tokens=200)
    assert len(r.choices[0].message.tool_calls) == 1


@pytest.mark.parametrize("extra", [NO_THINKING, {}])
@pytest.mark.parametrize("keep_reasoning", [True, False])
def test_a_tool_session_replays_exactly(client, extra, keep_reasoning):
    """Every turn's prompt begins with all that the turn before it left in the cache, to the token."""
    messages = [{"role": "system", "content": f"You are Fathom. {extra} {keep_reasoning}"}, *user("What is the weather in Paris?")]
    before = None
    for question, result in (("What is 3 plus 4?", {"weather": "sunny"}), ("What is the weather in Rome?", {"sum": 7}), (None, {"weather": "rain"})):
        r = ask(client, messages, tools=TOOLS, tool_choice="required", extra_body=extra, max_tokens=200)
        if before is not None:
            # The last token that was chosen has not been run through the model.
            assert r.usage.prompt_tokens_details.cached_tokens >= before - 1, (r.usage, before)
            assert r.usage.prompt_cache_hit_tokens == r.usage.prompt_tokens_details.cached_tokens
        message = r.choices[0].message
        assert len(message.tool_calls) == 1
        back = message.to_dict()
        if not keep_reasoning:
            back.pop("reasoning_content", None)
        # As clients do that parse arguments and write them anew.
        back["tool_calls"][0]["function"]["arguments"] = json.dumps(json.loads(message.tool_calls[0].function.arguments), indent=1)
        messages += [back, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": json.dumps(result)}]
        # The call's turn is replayed to its end when its result comes back.
        answer = ask(client, messages, tools=TOOLS, extra_body=extra, max_tokens=100)
        assert answer.usage.prompt_tokens_details.cached_tokens >= r.usage.total_tokens - 1, (answer.usage, r.usage)
        if answer.choices[0].message.tool_calls or not question:
            break
        before = answer.usage.total_tokens if answer.choices[0].finish_reason == "stop" and keep_reasoning else r.usage.total_tokens
        messages += [answer.choices[0].message.to_dict(), *user(question)]


def test_history_without_reasoning_and_with(client):
    call = {"id": "call_elsewhere", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    for reasoning in ({}, {"reasoning_content": "I add."}, {"reasoning": "I add."}, {"reasoning_content": None}, {"reasoning_content": ""}):
        r = ask(client, [*user("1 plus 2?"), {"role": "assistant", "content": None, "tool_calls": [call], **reasoning},
                         {"role": "tool", "tool_call_id": "call_elsewhere", "content": "3"}], tools=TOOLS)
        assert r.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_what_agents_leave_behind_is_accepted(client):
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    ask(client, [*user("a"), {"role": "assistant", "content": "", "tool_calls": []}, *user("b")], max_tokens=2)
    ask(client, [*user("a"), {"role": "assistant", "content": None, "tool_calls": [call]}, *user("b")], max_tokens=2)
    ask(client, [*user("a"), {"role": "tool", "tool_call_id": "nobody", "content": "x"}, *user("b")], max_tokens=2)
    ask(client, [{"role": "system", "content": "s"}, *user("a"), {"role": "system", "content": "late"}], max_tokens=2)
    ask(client, [{"role": "developer", "content": [{"type": "text", "text": "d"}]}, *user("a")], max_tokens=2)
    ask(client, [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], max_tokens=2)


def test_goes_on_with_an_answer(client):
    r = ask(client, [*FRANCE, {"role": "assistant", "content": "The capital of France is", "prefix": True}], extra_body=NO_THINKING)
    assert r.choices[0].message.content.startswith(" Paris"), r.choices[0].message.content
    r = ask(client, [*FRANCE, {"role": "assistant", "content": "The capital of"}],
            extra_body={**NO_THINKING, "continue_final_message": True, "add_generation_prompt": False})
    assert r.choices[0].message.content.startswith(" France"), r.choices[0].message.content


def test_response_formats(client):
    ask(client, response_format={"type": "text"}, max_tokens=4)
    ask(client, response_format={"type": "json_object"}, max_tokens=4)
    with pytest.raises(openai.BadRequestError) as no:
        ask(client, response_format={"type": "xml"})
    assert no.value.param.startswith("response_format")


def test_raw_response_headers(client):
    raw = client.chat.completions.with_raw_response.create(model="m", messages=FRANCE, max_tokens=2, extra_headers={"x-request-id": "mine-7"})
    assert raw.headers["x-request-id"] == "mine-7" and raw.parse()._request_id == "mine-7"
    assert raw.headers["content-type"].startswith("application/json") and raw.headers["server"] == "fathom"


def running(live):
    return live.metrics()["vllm:num_requests_running"]


def settles(live):
    for _ in range(200):
        if running(live) == 0:
            return True
        time.sleep(0.05)
    return False


LONG = {"model": "m", "messages": user("Tell me a long story."), "max_tokens": 100000,
        "extra_body": {"ignore_eos": True, "enable_thinking": False}}


def test_a_timeout_cancels(client, live):
    before = live.metrics()['vllm:request_success_total{model_name="fathom-tiny",engine="0",finished_reason="abort"}']
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).chat.completions.create(**LONG)
    assert settles(live)
    after = live.metrics()['vllm:request_success_total{model_name="fathom-tiny",engine="0",finished_reason="abort"}']
    assert after == before + 1


def test_closing_a_stream_cancels(client, live):
    stream = client.chat.completions.create(stream=True, **LONG)
    for _, _ in zip(range(5), stream):
        pass
    assert running(live) == 1
    stream.close()
    assert settles(live)
