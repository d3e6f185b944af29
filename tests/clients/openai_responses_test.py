"""openai: Responses."""

import json

import openai
import pytest

from talk import NO_THINKING, RESPONSES_TOOLS, strictly

FRANCE = "What is the capital of France?"


def respond(client, what=FRANCE, **more):
    more = {"model": "fathom-tiny", "temperature": 0, "max_output_tokens": 200, **more}
    return strictly(client.responses.create(input=what, **more))


def events_of(client, what=FRANCE, **more):
    more = {"model": "fathom-tiny", "temperature": 0, "max_output_tokens": 200, **more}
    return [strictly(e) for e in client.responses.create(input=what, stream=True, **more)]


def runs(names):
    return [n for i, n in enumerate(names) if i == 0 or names[i - 1] != n]


TEXT_ITEM = ["response.output_item.added", "response.content_part.added", "response.output_text.delta", "response.output_text.done",
             "response.content_part.done", "response.output_item.done"]
THOUGHT_ITEM = [n.replace("output_text", "reasoning_text") for n in TEXT_ITEM]
CALL_ITEM = ["response.output_item.added", "response.function_call_arguments.delta", "response.function_call_arguments.done",
             "response.output_item.done"]


def test_answers(client):
    r = respond(client, instructions="Be brief.", metadata={"k": "v"})
    assert r.id.startswith("resp_") and r.status == "completed" and r.error is None and r.incomplete_details is None
    assert [i.type for i in r.output] == ["reasoning", "message"]
    assert r.output[0].content[0].text and "Paris" in r.output_text
    assert r.instructions == "Be brief." and r.metadata == {"k": "v"} and r.temperature == 0
    assert r.usage.total_tokens == r.usage.input_tokens + r.usage.output_tokens
    assert r.usage.output_tokens_details.reasoning_tokens > 0


def test_stream_events_in_order(client):
    events = events_of(client)
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert runs([e.type for e in events]) == ["response.created", "response.in_progress", *THOUGHT_ITEM, *TEXT_ITEM, "response.completed"]
    final = events[-1].response
    whole = respond(client)
    assert final.output_text == whole.output_text and final.usage.output_tokens == whole.usage.output_tokens
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == final.output_text
    assert "".join(e.delta for e in events if e.type == "response.reasoning_text.delta") == final.output[0].content[0].text
    ids = {e.item_id for e in events if e.type == "response.output_text.delta"}
    assert ids == {final.output[1].id}
    done = [e.item for e in events if e.type == "response.output_item.done"]
    assert [d.to_dict() for d in done] == [o.to_dict() for o in final.output]


def test_stream_helper(client):
    with client.responses.stream(model="m", input="What is the weather in Paris?", tools=RESPONSES_TOOLS, temperature=0) as stream:
        names = [e.type for e in stream]
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in names
    assert final.output[-1].type == "function_call"


def test_thinking_off_and_effort(client):
    r = respond(client, reasoning={"effort": "none"})
    assert [i.type for i in r.output] == ["message"] and r.usage.output_tokens_details.reasoning_tokens == 0
    assert runs([e.type for e in events_of(client, extra_body=NO_THINKING)]) == [
        "response.created", "response.in_progress", *TEXT_ITEM, "response.completed"]
    assert respond(client, reasoning={"effort": "max"}).usage.input_tokens != respond(client, reasoning={"effort": "low"}).usage.input_tokens


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "name": "get_weather"},
                                    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}])
def test_function_calls_and_their_results(client, choice):
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    r = respond(client, question, tools=RESPONSES_TOOLS, tool_choice=choice)
    call = r.output[-1]
    assert call.type == "function_call" and call.name == "get_weather" and json.loads(call.arguments) == {"city": "Paris"}
    events = events_of(client, question, tools=RESPONSES_TOOLS, tool_choice=choice)
    assert runs([e.type for e in events])[-len(CALL_ITEM) - 1:] == [*CALL_ITEM, "response.completed"]
    # All items go back as they came, with the result behind them.
    back = [*question, *[i.to_dict() for i in r.output], {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    answer = respond(client, back, tools=RESPONSES_TOOLS)
    assert answer.usage.input_tokens_details.cached_tokens >= r.usage.total_tokens - 1
    # And without the reasoning.
    back = [i for i in back if i.get("type") != "reasoning"]
    assert respond(client, back, tools=RESPONSES_TOOLS).usage.input_tokens_details.cached_tokens >= r.usage.total_tokens - 1


def test_none_and_tools_that_are_not_functions(client):
    r = respond(client, "What is the weather in Paris?", tools=RESPONSES_TOOLS, tool_choice="none")
    assert "function_call" not in [i.type for i in r.output]
    respond(client, tools=[*RESPONSES_TOOLS, {"type": "web_search"}, {"type": "local_shell"}], max_output_tokens=2)
    respond(client, tools=[{"type": "custom", "name": "apply_patch", "description": "Patch"}], max_output_tokens=2)


def test_limit(client):
    r = respond(client, max_output_tokens=3)
    assert r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens"
    assert events_of(client, max_output_tokens=3)[-1].type == "response.incomplete"


def test_inputs_that_codex_sends(client):
    respond(client, "", max_output_tokens=1)
    respond(client, [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
                     {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]}],
            max_output_tokens=2, store=False, include=["reasoning.encrypted_content"], prompt_cache_key="k",
            parallel_tool_calls=True, truncation="disabled", text={"verbosity": "low"})


@pytest.mark.parametrize("more, param", [
    ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"), ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
    ({"temperature": 7}, "temperature"), ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"text": {"format": {"type": "xml"}}}, "text"), ({"reasoning": {"effort": "heroic"}}, "reasoning")])
def test_refusals(client, more, param):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as no:
            client.responses.create(model="m", input="x", stream=stream, **more)
        assert no.value.param.startswith(param)


def test_there_is_no_store(client):
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")
