"""Structured output: the SDKs' parsers with pydantic models, strict tools, json_object; in every dialect, thinking or not."""

import enum
import json
from typing import List, Literal, Optional

import openai
import pydantic
import pytest

from talk import NO_THINKING, TOOLS, user


class Colour(str, enum.Enum):
    red = "red"
    green = "green"


class Animal(pydantic.BaseModel):
    kind: Literal["fox", "king", "ship"]
    colour: Colour
    legs: int
    old: bool
    friend: Optional[Literal["owl", "bear"]]


class Farm(pydantic.BaseModel):
    animals: List[Animal]
    open: bool


ASK = user("Tell me about a fox.")
SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["fox", "king"]}, "legs": {"type": "integer", "minimum": 0, "maximum": 9}},
          "required": ["kind", "legs"], "additionalProperties": False}


def is_animal(text):
    value = json.loads(text)
    assert set(value) == {"kind", "legs"} and value["kind"] in ("fox", "king") and 0 <= value["legs"] <= 9


@pytest.mark.parametrize("extra", [NO_THINKING, {}])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_chat_parse(client, extra, seed):
    r = client.chat.completions.parse(model="m", messages=ASK, response_format=Animal, temperature=1, seed=seed, max_tokens=400, extra_body=extra)
    assert isinstance(r.choices[0].message.parsed, Animal) and r.choices[0].finish_reason == "stop"
    assert bool(getattr(r.choices[0].message, "reasoning_content", None)) != bool(extra), "the constraint is on the answer alone"


def test_chat_stream_parse(client):
    with client.chat.completions.stream(model="m", messages=ASK, response_format=Animal, temperature=1, seed=4, max_tokens=400) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Animal)


def test_nested_and_every_choice(client):
    r = client.chat.completions.parse(model="m", messages=ASK, response_format=Animal, temperature=1, seed=5, n=3, max_tokens=400, extra_body=NO_THINKING)
    assert all(isinstance(c.message.parsed, Animal) for c in r.choices)
    try:
        r = client.chat.completions.parse(model="m", messages=ASK, response_format=Farm, temperature=0.7, seed=6, max_tokens=1500, extra_body=NO_THINKING)
        assert isinstance(r.choices[0].message.parsed, Farm)
    except openai.LengthFinishReasonError:
        pass  # a list may go on


@pytest.mark.parametrize("effort", ["none", "high"])
def test_responses_parse(client, effort):
    r = client.responses.parse(model="m", input="Tell me about a fox.", text_format=Animal, temperature=1, reasoning={"effort": effort}, max_output_tokens=400)
    assert isinstance(r.output_parsed, Animal)


@pytest.mark.parametrize("thinking", ["disabled", "adaptive"])
def test_messages_format(claude, thinking):
    r = claude.messages.create(model="m", max_tokens=400, messages=ASK, thinking={"type": thinking},
                               output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    is_animal(r.content[-1].text)


def test_strict_is_not_needed(client):
    shape = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}
    r = client.chat.completions.create(model="m", messages=ASK, response_format=shape, temperature=1, seed=7, max_tokens=200, extra_body=NO_THINKING)
    is_animal(r.choices[0].message.content)


def test_json_object(client):
    r = client.chat.completions.create(model="m", messages=ASK, response_format={"type": "json_object"}, temperature=0.7, seed=8,
                                       max_tokens=600, extra_body=NO_THINKING)
    if r.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(r.choices[0].message.content), dict)
    else:
        assert r.choices[0].message.content.startswith("{")


@pytest.mark.parametrize("extra", [NO_THINKING, {}])
def test_strict_tools(client, extra):
    parameters = {"type": "object", "properties": {"op": {"enum": ["plus", "minus"]}, "a": {"type": "integer"}, "b": {"type": "integer"}},
                  "required": ["op", "a", "b"], "additionalProperties": False}
    strict = [{"type": "function", "function": {"name": "calc", "strict": True, "parameters": parameters}}]
    for seed in range(3):
        r = client.chat.completions.create(model="m", messages=user("What is 3 plus 4?"), tools=strict, tool_choice="required", temperature=1,
                                           seed=seed, max_tokens=300, extra_body=extra)
        arguments = json.loads(r.choices[0].message.tool_calls[0].function.arguments)
        assert set(arguments) == {"op", "a", "b"} and arguments["op"] in ("plus", "minus")
        assert isinstance(arguments["a"], int) and isinstance(arguments["b"], int)


def test_strict_tools_with_the_pydantic_helper(client):
    class Add(pydantic.BaseModel):
        """Add two numbers"""
        a: int
        b: int

    r = client.chat.completions.parse(model="m", messages=user("Please add 3 and 4."), tools=[openai.pydantic_function_tool(Add)],
                                      tool_choice="required", temperature=0, max_tokens=300)
    assert isinstance(r.choices[0].message.tool_calls[0].function.parsed_arguments, Add)


def test_a_schema_that_cannot_be_kept_is_refused(client):
    for schema in ({"type": "nothing"}, {"$ref": "#/nowhere"}, {"type": "object", "properties": 5}):
        with pytest.raises(openai.BadRequestError) as no:
            client.chat.completions.create(model="m", messages=ASK, response_format={
                "type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}})
        assert no.value.param.startswith("response_format"), no.value
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {"a": {"type": "nothing"}}}}}
    with pytest.raises(openai.BadRequestError) as no:
        client.chat.completions.create(model="m", messages=ASK, tools=[tool])
    assert no.value.param.startswith("tools")


def test_tools_beside_a_format(client):
    r = client.chat.completions.create(model="m", messages=user("What is the weather in Paris?"), tools=TOOLS, temperature=0, max_tokens=300,
                                       response_format={"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}},
                                       extra_body=NO_THINKING)
    m = r.choices[0].message
    if m.tool_calls:
        json.loads(m.tool_calls[0].function.arguments)
    else:
        is_animal(m.content)
