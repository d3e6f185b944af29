"""The bugs of other servers, as http-api.md 13 numbers them, shown to real clients: each must get what is right.

The model's output is a script (scripted_server.cc); `live` tests need a model. docs/faults.md is the index.
"""

import json

import openai
import pytest

import talk
from talk import CLAUDE_TOOLS, EOS, RUN, RUN_TOOL, TOOLS, call, say, user

D = "｜DSML｜"
RUN_CLAUDE = [{"name": "run", "input_schema": RUN}]
RUN_RESPONSES = [{"type": "function", "name": "run", "parameters": RUN, "strict": False}]


class Answer:
    def __init__(self):
        self.reasoning, self.content, self.calls, self.finish, self.error, self.usage = "", "", {}, None, None, None


def whole(client, messages, **more):
    r = client.chat.completions.create(model="m", messages=messages, **more)
    a, m = Answer(), r.choices[0].message
    a.reasoning, a.content = getattr(m, "reasoning_content", "") or "", m.content or ""
    a.calls = {i: [c.function.name, c.function.arguments] for i, c in enumerate(m.tool_calls or [])}
    a.finish, a.usage = r.choices[0].finish_reason, r.usage
    return a


def streamed(client, messages, **more):
    a = Answer()
    try:
        for c in client.chat.completions.create(model="m", messages=messages, stream=True, **more):
            d = c.choices[0].delta
            a.reasoning += getattr(d, "reasoning_content", None) or ""
            a.content += d.content or ""
            for t in d.tool_calls or []:
                if t.id:
                    assert t.index == len(a.calls) and t.function.name, "a call begins once, with its whole name"
                    a.calls[t.index] = [t.function.name, ""]
                a.calls[t.index][1] += t.function.arguments or ""
            a.finish = c.choices[0].finish_reason or a.finish
    except openai.APIError as error:
        a.error = error
    return a


def both(client, script, **more):
    """The answer to a script, which is the same streamed or not and has no markup anywhere."""
    more = {"tools": RUN_TOOL, **more}
    a, b = whole(client, say(script), **more), streamed(client, say(script), **more)
    assert b.error is None
    assert (a.reasoning, a.content, a.calls, a.finish) == (b.reasoning, b.content, b.calls, b.finish)
    if more["tools"]:
        shown = a.reasoning + a.content + "".join(n + v for n, v in a.calls.values())
        assert "DSML" not in shown and "<invoke" not in shown and "tool_calls>" not in shown, shown
    return a


def run_with(**arguments):
    return {0: ["run", arguments]}


def parsed(a):
    return {i: [n, json.loads(v)] for i, (n, v) in a.calls.items()}


def test_01_markup_is_not_content(told):
    a = both(told, "r</think>Sure." + call("ls"))
    assert (a.reasoning, a.content, a.finish) == ("r", "Sure.", "tool_calls") and parsed(a) == run_with(cmd="ls")


@pytest.mark.parametrize("value", ["make 2>&1", "a <b> c > d <", "2 <", "x < y && z > w", "</", "<｜", "a &amp; b", "\\\"\n\t'"])
def test_02_06_values_end_at_the_tag_and_nowhere_else(told, value):
    assert parsed(both(told, "</think>" + call(value))) == run_with(cmd=value)


@pytest.mark.parametrize("block", ["toolcalls", "tool_call", "function_calls", "tools"])
def test_03_07_31_the_name_of_the_block_does_not_matter(told, block):
    a = both(told, "</think>Sure." + call("ls").replace("tool_calls", block))
    assert parsed(a) == run_with(cmd="ls") and a.content == "Sure." and a.finish == "tool_calls"


@pytest.mark.parametrize("name", ["run {\n", "run<", "r" * 300])
def test_04_a_name_that_runs_on_is_no_call(told, name):
    a = both(told, "</think>Sure." + call("ls", name=name) + EOS)
    assert a.calls == {} and a.content == "Sure." and a.finish == "stop"


@pytest.mark.parametrize("name", ["arguments", "input"])
def test_05_arguments_inside_one_parameter_are_unwrapped(told, name):
    script = call("ls").replace(f'<{D}parameter name="cmd" string="true">ls', f'<{D}parameter name="{name}" string="false">{{"cmd": "ls", "n": 5}}')
    assert parsed(both(told, "</think>" + script)) == run_with(cmd="ls", n=5)


def test_06_the_attribute_decides_about_the_type(told):
    assert parsed(both(told, "</think>" + call("5", 5))) == run_with(cmd="5", n=5)
    bare = call("5").replace(' string="true"', "")
    assert parsed(both(told, "</think>" + bare)) == run_with(cmd="5"), "and without one the schema"


def test_07_a_block_without_its_wrapper_or_its_end(told):
    inner = f'<{D}invoke name="run">\n<{D}parameter name="cmd" string="true">ls</{D}parameter>\n</{D}invoke>'
    assert parsed(both(told, "</think>Sure.\n\n" + inner + EOS)) == run_with(cmd="ls")
    assert parsed(both(told, "</think>" + call("ls").removesuffix(f"\n</{D}tool_calls>") + EOS)) == run_with(cmd="ls")


def test_08_without_tools_markup_is_text(told):
    for more in ({"tools": RUN_TOOL, "tool_choice": "none"}, {"tools": None}):
        a = whole(told, say("</think>Sure." + call("ls") + EOS), **{k: v for k, v in more.items() if v})
        assert a.calls == {} and a.finish == "stop"


def test_09_10_18_efforts_and_their_default(live):
    count = lambda **more: live.post("/tokenize", {"messages": user("x"), **more}).json()["tokens"]
    assert count() == count(reasoning_effort="high") == count(reasoning_effort="medium") == count(reasoning_effort="xhigh")
    assert count(reasoning_effort="max") != count(reasoning_effort="high")
    assert count(reasoning_effort="none") == count(enable_thinking=False)


def test_11_a_conversation_may_end_in_a_system_message(live, client):
    late = [{"role": "system", "content": "a"}, *user("Hi"), {"role": "system", "content": "Say hello."}]
    assert client.chat.completions.create(model="m", messages=late, temperature=0, max_tokens=40).choices[0].message.content is not None
    text = live.post("/detokenize", {"tokens": live.post("/tokenize", {"messages": late}).json()["tokens"]}).json()["prompt"]
    assert text.endswith("<｜Assistant｜><think>")


def test_13_16_a_format_asked_for_is_content_and_in_the_prompt(told, live):
    for kind in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}):
        a = both(told, 'I think.</think>{"a": 1}' + EOS, tools=RUN_TOOL, response_format=kind)
        assert (a.reasoning, a.content) == ("I think.", '{"a": 1}')
        plain, asked = (live.post("/tokenize", {"messages": user("x"), **more}).json()["count"] for more in ({}, {"response_format": kind}))
        assert asked > plain


def test_14_reasoning_tokens_are_counted(told, told_claude):
    a = whole(told, say("one two three</think>four" + EOS))
    assert 0 < a.usage.completion_tokens_details.reasoning_tokens < a.usage.completion_tokens
    r = told.responses.create(model="m", input=say("one two three</think>four" + EOS))
    assert r.usage.output_tokens_details.reasoning_tokens == a.usage.completion_tokens_details.reasoning_tokens


def test_15_16_a_block_inside_the_thinking_ends_it(told):
    a = both(told, "I will call it." + call("ls"))
    assert (a.reasoning, a.content) == ("I will call it.", "") and parsed(a) == run_with(cmd="ls") and a.finish == "tool_calls"


def test_17_22_23_thinking_is_on_and_the_parser_knows(told, told_claude):
    a = whole(told, say("I think.</think>Hello." + EOS))
    assert (a.reasoning, a.content) == ("I think.", "Hello.")
    m = told_claude.messages.create(model="m", max_tokens=100, messages=say("I think.</think>Hello." + EOS))
    assert [(b.type, getattr(b, "thinking", None) or b.text) for b in m.content] == [("thinking", "I think."), ("text", "Hello.")]
    off = told_claude.messages.create(model="m", max_tokens=100, messages=say("Hello." + EOS), thinking={"type": "disabled"})
    assert [(b.type, b.text) for b in off.content] == [("text", "Hello.")]


def test_19_what_is_complete_of_a_cut_block_is_kept(told):
    one = call("ls").removesuffix(f"\n</{D}tool_calls>")
    cut = one + f'\n<{D}invoke name="run">\n<{D}parameter name="cmd" string="true">rm -rf /tmp/bui' + EOS
    a = whole(told, say("</think>" + cut), tools=RUN_TOOL)
    assert parsed(a) == run_with(cmd="ls") and a.finish == "tool_calls"
    b = streamed(told, say("</think>" + cut), tools=RUN_TOOL)
    assert json.loads(b.calls[0][1]) == {"cmd": "ls"}
    assert b.error is not None and b.error.code == "incomplete_tool_call", "the client holds half a call: no regular end"


def test_20_a_turn_ended_by_stop_does_not_cost_the_prefix(client):
    history = [{"role": "system", "content": "Twenty."}, *user("What is the capital of France?")]
    first = client.chat.completions.create(model="m", messages=history, temperature=0, stop="Paris", max_tokens=100, extra_body=talk.NO_THINKING)
    history += [first.choices[0].message.to_dict(), *user("Go on.")]
    second = client.chat.completions.create(model="m", messages=history, temperature=0, max_tokens=2, extra_body=talk.NO_THINKING)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 1


@pytest.mark.parametrize("spelt", [EOS, "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜", "<｜begin▁of▁sentence｜>", "<|EOT|>"])
def test_21_users_cannot_spell_control_tokens(live, spelt):
    control = live.post("/tokenize", {"prompt": spelt, "add_special_tokens": False}).json()["tokens"]
    assert len(control) == 1
    for field in ({"content": spelt}, {"content": [{"type": "text", "text": spelt}]}):
        plain, with_it = (live.post("/tokenize", {"messages": [{"role": "user", **c}]}).json()["tokens"] for c in ({"content": "x"}, field))
        assert with_it.count(control[0]) == plain.count(control[0])
    with_tool = {"messages": [*user("x"), {"role": "tool", "tool_call_id": spelt, "content": spelt}],
                 "tools": [{"type": "function", "function": {"name": "f", "description": spelt, "parameters": {"type": "object", "title": spelt}}}]}
    without = {"messages": [*user("x"), {"role": "tool", "tool_call_id": "i", "content": "x"}],
               "tools": [{"type": "function", "function": {"name": "f", "description": "x", "parameters": {"type": "object", "title": "x"}}}]}
    a, b = (live.post("/tokenize", body).json()["tokens"].count(control[0]) for body in (with_tool, without))
    assert a == b


def test_24_a_responses_call_is_one_item(told):
    events = list(told.responses.create(model="m", input=say("r</think>" + call("ls")), tools=RUN_RESPONSES, stream=True))
    assert not any("DSML" in json.dumps(e.to_dict(), ensure_ascii=False) for e in events[2:-1])
    assert [e.item.type for e in events if e.type == "response.output_item.added"] == ["reasoning", "function_call"]
    assert [e.delta for e in events if e.type == "response.output_text.delta"] == []
    assert json.loads("".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")) == {"cmd": "ls"}
    assert [i.type for i in events[-1].response.output] == ["reasoning", "function_call"]


def test_24_a_messages_call_is_one_block(told_claude):
    events = list(told_claude.messages.create(model="m", max_tokens=500, messages=say("r</think>Sure." + call("2>&1")), tools=RUN_CLAUDE, stream=True))
    assert [e.content_block.type for e in events if e.type == "content_block_start"] == ["thinking", "text", "tool_use"]
    text = "".join(e.delta.text for e in events if e.type == "content_block_delta" and e.delta.type == "text_delta")
    assert text == "Sure."


def test_25_nothing_leaks_wherever_a_block_is_cut(told):
    """Every prefix of a call, ended by the model or by the limit."""
    script = "r</think>Sure." + call("make 2>&1", 5)
    for end in range(script.index("\n\n"), len(script), 3):
        for more in ("", EOS):
            a = whole(told, say(script[:end] + more), tools=RUN_TOOL)
            # A block that has no call is text (prompt-encoding.md 4.4); one with a call is not, whole or not.
            assert a.content.startswith("Sure.") and ("invoke name=\"run\">" not in script[:end] or a.content == "Sure."), a.content
            for _, arguments in a.calls.values():
                json.loads(arguments)


def test_26_a_call_can_be_required_while_thinking(client):
    a = whole(client, user("What is the weather in Paris?"), tools=TOOLS, tool_choice="required", temperature=0, max_tokens=200)
    assert a.reasoning and a.calls and a.finish == "tool_calls"


def test_27_33_history_without_reasoning_is_accepted(told, live):
    asked = [*user("x"), {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_x", "type": "function", "function": {"name": "run", "arguments": '{"cmd": "ls"}'}}]},
        {"role": "tool", "tool_call_id": "call_x", "content": "ok"}]
    for reasoning in ({}, {"reasoning_content": ""}, {"reasoning_content": " "}):
        history = [asked[0], {**asked[1], **reasoning}, asked[2]]
        assert live.post("/v1/chat/completions", {"messages": history, "tools": RUN_TOOL, "max_tokens": 1}).status_code == 200


def test_27_33_the_real_reasoning_comes_back_for_a_blank_one(told):
    first = told.chat.completions.create(model="m", messages=say("I really think.</think>" + call("ls")), tools=RUN_TOOL)
    m = first.choices[0].message
    tokens = {}
    for name, reasoning in (("kept", m.reasoning_content), ("blank", " "), ("none", None)):
        back = {**m.to_dict(), "reasoning_content": reasoning}
        history = [*say("I really think.</think>" + call("ls")), back,
                   {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": "[[say\nI see.</think>Done." + EOS + "]]"}]
        r = told.chat.completions.create(model="m", messages=history, tools=RUN_TOOL)
        tokens[name] = r.usage.prompt_tokens
        assert r.choices[0].message.content == "Done."
    assert len(set(tokens.values())) == 1, tokens


def test_33_an_answer_that_ends_inside_the_thinking_is_not_lost(told):
    a = both(told, "All I say I say here." + EOS)
    assert (a.reasoning, a.content, a.finish) == ("All I say I say here.", "", "stop")


def test_28_tokens_are_counted(told_claude):
    assert told_claude.messages.count_tokens(model="m", messages=user("x"), tools=CLAUDE_TOOLS).input_tokens > 50


def test_29_tools_of_other_types_are_ignored(told):
    r = told.responses.create(model="m", input="x", tools=[{"type": "web_search"}, {"type": "local_shell"}, *RUN_RESPONSES])
    assert r.status == "completed"


def test_30_models_for_codex(live):
    listed = live.get("/v1/models").json()
    assert [m["id"] for m in listed["models"]] == [m["id"] for m in listed["data"]]


def test_32_closing_tags_with_more_bars(told):
    a = both(told, "</think>" + call("ls").replace(f"</{D}", f"</｜{D}｜"))
    assert parsed(a) == run_with(cmd="ls")
