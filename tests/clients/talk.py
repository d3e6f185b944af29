"""What the tests of several clients share: tools, scripts of the model, and a strict look at typed answers."""

import pydantic

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
RUN = {"type": "object", "properties": {"cmd": {"type": "string"}, "n": {"type": "integer"}}}

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "add", "description": "Add two numbers", "parameters": ADD}},
]
CLAUDE_TOOLS = [
    {"name": t["function"]["name"], "description": t["function"]["description"], "input_schema": t["function"]["parameters"]}
    for t in TOOLS
]
RESPONSES_TOOLS = [{"type": "function", "strict": False, **t["function"]} for t in TOOLS]
RUN_TOOL = [{"type": "function", "function": {"name": "run", "parameters": RUN}}]

EOS = "<｜end▁of▁sentence｜>"
NO_THINKING = {"enable_thinking": False}


def user(text):
    return [{"role": "user", "content": text}]


def say(script):
    """A user message that makes the scripted server answer with `script`."""
    return user(f"[[say\n{script}]]")


def call(cmd, n=None, name="run"):
    """The markup of one call, in its block."""
    more = "" if n is None else f'<｜DSML｜parameter name="n" string="false">{n}</｜DSML｜parameter>\n'
    return (f'\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="{name}">\n'
            f'<｜DSML｜parameter name="cmd" string="true">{cmd}</｜DSML｜parameter>\n{more}</｜DSML｜invoke>\n</｜DSML｜tool_calls>')


def strictly(answer):
    """The SDKs build their models without a check; this checks that every field is of the type that they promise."""
    pydantic.TypeAdapter(type(answer)).validate_python(answer.to_dict(mode="json") if hasattr(answer, "to_dict") else answer)
    return answer
