"""anthropic: Messages, count_tokens, models."""

import json

import anthropic
import pytest

from talk import CLAUDE_TOOLS, strictly, user

FRANCE = user("What is the capital of France?")
WEATHER = user("What is the weather in Paris?")


def ask(claude, messages=FRANCE, **more):
    more = {"model": "claude-anything", "max_tokens": 200, "extra_body": {"temperature": 0, **more.pop("extra_body", {})}, **more}
    return strictly(claude.messages.create(messages=messages, **more))


def events_of(claude, messages=FRANCE, **more):
    more = {"model": "claude-anything", "max_tokens": 200, "extra_body": {"temperature": 0, **more.pop("extra_body", {})}, **more}
    return [strictly(e) for e in claude.messages.create(messages=messages, stream=True, **more)]


def runs(names):
    return [n for i, n in enumerate(names) if i == 0 or names[i - 1] != n]


def block(kind):
    return ["content_block_start", *([f"{k}" for k in kind]), "content_block_stop"]


def shape(events):
    return runs([e.delta.type if e.type == "content_block_delta" else e.type for e in events if e.type != "ping"])


THOUGHT = block(["thinking_delta", "signature_delta"])
TEXT = block(["text_delta"])
CALL = block(["input_json_delta"])


def test_answers(claude):
    r = ask(claude, system="You are Fathom.")
    assert r.id.startswith("msg_") and r.type == "message" and r.role == "assistant" and r.model == "claude-anything"
    assert [b.type for b in r.content] == ["thinking", "text"]
    assert "Paris" in r.content[1].text and r.stop_reason == "end_turn" and r.stop_sequence is None
    u = r.usage
    again = ask(claude, system="You are Fathom.").usage
    assert again.cache_read_input_tokens > 0
    assert again.input_tokens + again.cache_read_input_tokens == u.input_tokens + u.cache_read_input_tokens
    assert r._request_id


def test_stream_events_in_order(claude):
    events = events_of(claude)
    assert events[0].type == "message_start" and events[0].message.content == [] and events[0].message.usage.input_tokens > 0
    assert shape(events) == ["message_start", *THOUGHT, *TEXT, "message_delta", "message_stop"]
    assert [e.index for e in events if e.type == "content_block_start"] == [0, 1]
    text = "".join(e.delta.text for e in events if e.type == "content_block_delta" and e.delta.type == "text_delta")
    assert text == ask(claude).content[1].text
    assert events[-2].delta.stop_reason == "end_turn" and events[-2].usage.output_tokens > 0


def test_stream_helper(claude):
    with claude.messages.stream(model="m", max_tokens=200, messages=WEATHER, extra_body={"temperature": 0}, tools=CLAUDE_TOOLS) as stream:
        kinds = {e.type for e in stream}
        final = stream.get_final_message()
    assert {"thinking", "input_json"} <= kinds
    assert final.content[-1].input == {"city": "Paris"} and final.stop_reason == "tool_use"


def test_thinking_follows_the_request(claude):
    off = ask(claude, thinking={"type": "disabled"})
    assert [b.type for b in off.content] == ["text"] and "Paris" in off.content[0].text
    assert shape(events_of(claude, thinking={"type": "disabled"})) == ["message_start", *TEXT, "message_delta", "message_stop"]
    for on in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
        assert [b.type for b in ask(claude, thinking=on).content] == ["thinking", "text"]
    low, top = (claude.messages.count_tokens(model="m", messages=FRANCE, output_config={"effort": e}).input_tokens for e in ("low", "max"))
    assert low != top


@pytest.mark.parametrize("thinking", [{"type": "disabled"}, {"type": "adaptive"}])
def test_a_tool_session_replays_exactly(claude, thinking):
    how = {"tools": CLAUDE_TOOLS, "thinking": thinking}
    messages = list(WEATHER)
    r = ask(claude, messages, **how)
    call = r.content[-1]
    assert call.type == "tool_use" and call.id.startswith("toolu_") and call.input == {"city": "Paris"} and r.stop_reason == "tool_use"
    assert shape(events_of(claude, messages, **how))[-len(CALL) - 2:] == [*CALL, "message_delta", "message_stop"]
    pieces = [e.delta.partial_json for e in events_of(claude, messages, **how)
              if e.type == "content_block_delta" and e.delta.type == "input_json_delta"]
    assert json.loads("".join(pieces)) == {"city": "Paris"}
    used = r.usage.input_tokens + r.usage.cache_read_input_tokens + r.usage.output_tokens
    for content in ([b.to_dict() for b in r.content], [b.to_dict() for b in r.content if b.type != "thinking"]):
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}],
                  "cache_control": {"type": "ephemeral"}}
        answer = ask(claude, [*messages, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}], **how)
        assert answer.usage.cache_read_input_tokens >= used - 1, (answer.usage, used)


@pytest.mark.parametrize("thinking", [{"type": "disabled"}, {"type": "adaptive"}])
@pytest.mark.parametrize("choice, names", [({"type": "any"}, {"get_weather", "add"}), ({"type": "tool", "name": "add"}, {"add"}),
                                           ({"type": "any", "disable_parallel_tool_use": True}, {"get_weather", "add"})])
def test_tool_choice(claude, thinking, choice, names):
    r = ask(claude, user("Please add 3 and 4."), tools=CLAUDE_TOOLS, tool_choice=choice, thinking=thinking)
    calls = [b for b in r.content if b.type == "tool_use"]
    assert calls and {c.name for c in calls} <= names and r.stop_reason == "tool_use"
    assert len(calls) == 1 or not choice.get("disable_parallel_tool_use")


def test_tool_choice_none(claude):
    r = ask(claude, WEATHER, tools=CLAUDE_TOOLS, tool_choice={"type": "none"})
    assert "tool_use" not in [b.type for b in r.content]


def test_stop_sequences_and_limit(claude):
    r = ask(claude, stop_sequences=["Paris"], thinking={"type": "disabled"})
    assert r.stop_reason == "stop_sequence" and r.stop_sequence == "Paris" and r.content[0].text == "The capital of France is "
    assert events_of(claude, stop_sequences=["Paris"])[-2].delta.stop_sequence == "Paris"
    short = ask(claude, max_tokens=3)
    assert short.stop_reason == "max_tokens" and short.usage.output_tokens == 3


def test_prefill(claude):
    r = ask(claude, [*FRANCE, {"role": "assistant", "content": "The capital of France is"}], thinking={"type": "disabled"})
    assert r.content[0].text.startswith(" Paris")


def test_count_tokens(claude):
    how = {"model": "m", "messages": WEATHER, "tools": CLAUDE_TOOLS, "system": [{"type": "text", "text": "You are Fathom."}]}
    n = strictly(claude.messages.count_tokens(**how)).input_tokens
    r = ask(claude, **{k: v for k, v in how.items() if k != "model"})
    assert n == r.usage.input_tokens + r.usage.cache_read_input_tokens
    assert claude.beta.messages.count_tokens(**how).input_tokens == n


def test_what_claude_code_sends(claude):
    """Blocks, cache marks, a billing line, server tools, images, odd fields, through the beta API."""
    cached = {"cache_control": {"type": "ephemeral"}}
    r = claude.beta.messages.create(
        model="claude-small", max_tokens=30, betas=["some-beta-2026"],
        system=[{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "You are Fathom.", **cached}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "Hi", **cached},
                                               {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]},
                  {"role": "user", "content": "Hello"}],
        tools=[*CLAUDE_TOOLS, {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}],
        metadata={"user_id": "u"}, context_management={"edits": []}, thinking={"type": "enabled", "budget_tokens": 1})
    assert r.content


def test_models(claude):
    assert [m.id for m in claude.models.list()] == ["fathom-tiny"]
    assert claude.models.retrieve("fathom-tiny").type == "model"


@pytest.mark.parametrize("more, word", [
    ({"extra_body": {"temperature": 3}}, "temperature"), ({"max_tokens": 0}, "max_tokens"), ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "role"), ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"thinking": {"type": "maybe"}}, "thinking"), ({"stop_sequences": [""]}, "stop_sequences"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools")])
def test_refusals(claude, more, word):
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError) as no:
            claude.messages.create(**{"model": "m", "max_tokens": 5, "messages": FRANCE, "stream": stream, **more})
        body = no.value.body
        assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error" and word in body["error"]["message"]
        assert body["request_id"] == no.value.response.headers["request-id"]


def test_too_long_is_said_in_the_words_clients_know(claude):
    # 16 times as many tokens as the model has positions at most.
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum"):
        ask(claude, user("word " * 200_000))


def test_closing_a_stream_cancels(claude, live):
    with claude.messages.stream(model="m", max_tokens=100000, messages=user("Go on."), extra_body={"ignore_eos": True}) as stream:
        for _, _ in zip(range(20), stream):
            pass
    from openai_chat_test import settles
    assert settles(live)
