"""litellm: its OpenAI-compatible and its Anthropic route."""

import json

import litellm
import pytest

from talk import NO_THINKING, TOOLS, user

FRANCE = user("What is the capital of France?")
WEATHER = user("What is the weather in Paris?")
litellm.telemetry = False
litellm.num_retries = 0


@pytest.fixture(params=["openai", "anthropic", "hosted_vllm"])
def route(request, live):
    return {"model": f"{request.param}/fathom-tiny", "api_key": "any", "temperature": 0, "max_tokens": 200,
            "api_base": live.url if request.param == "anthropic" else live.v1}


def test_answers_and_streams(route):
    r = litellm.completion(messages=FRANCE, **route)
    message = r.choices[0].message
    assert "Paris" in message.content and message.reasoning_content and r.choices[0].finish_reason == "stop"
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    chunks = list(litellm.completion(messages=FRANCE, stream=True, stream_options={"include_usage": True}, **route))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == message.content
    assert "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chunks if c.choices) == message.reasoning_content
    assert chunks[-1].usage.completion_tokens == r.usage.completion_tokens


def test_tool_session(route):
    r = litellm.completion(messages=WEATHER, tools=TOOLS, **route)
    message = r.choices[0].message
    assert r.choices[0].finish_reason == "tool_calls"
    (call,) = message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Paris"}
    chunks = list(litellm.completion(messages=WEATHER, tools=TOOLS, stream=True, **route))
    built = litellm.stream_chunk_builder(chunks, messages=WEATHER).choices[0].message
    assert json.loads(built.tool_calls[0].function.arguments) == {"city": "Paris"}
    history = [*WEATHER, message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    answer = litellm.completion(messages=history, tools=TOOLS, **route)
    assert answer.usage.prompt_tokens_details.cached_tokens >= r.usage.total_tokens - 1, answer.usage
    required = litellm.completion(messages=WEATHER, tools=TOOLS, tool_choice="required", **route)
    assert required.choices[0].message.tool_calls


def test_text_completion_and_responses(live):
    how = {"api_base": live.v1, "api_key": "any"}
    r = litellm.text_completion(model="text-completion-openai/fathom-tiny", prompt="Once upon a time", max_tokens=5, **how)
    assert r.choices[0].text
    r = litellm.responses(model="openai/fathom-tiny", input="What is the capital of France?", max_output_tokens=100, **how)
    assert r.status == "completed" and r.usage.output_tokens > 0


def test_errors(route):
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=user("word " * 200_000), **route)
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(messages=FRANCE, **{**route, "temperature": 9})


def test_switching_thinking_off(live):
    r = litellm.completion(model="openai/fathom-tiny", api_base=live.v1, api_key="any", messages=FRANCE, temperature=0, extra_body=NO_THINKING)
    assert not getattr(r.choices[0].message, "reasoning_content", None)
