"""openai: Completions, and the plain endpoints beside it."""

import openai
import pytest

from talk import strictly


def complete(client, prompt="Once upon a time", **more):
    more = {"model": "fathom-tiny", "temperature": 0, "max_tokens": 12, **more}
    return strictly(client.completions.create(prompt=prompt, **more))


def scored(client, prompt, **more):
    """The SDK's type knows no null, which the first token of a prompt has everywhere: not looked at strictly."""
    more = {"model": "fathom-tiny", "temperature": 0, "max_tokens": 12, "logprobs": 2, "echo": True, **more}
    return client.completions.create(prompt=prompt, **more)


def chunks_of(client, prompt="Once upon a time", **more):
    more = {"model": "fathom-tiny", "temperature": 0, "max_tokens": 12, **more}
    return list(client.completions.create(prompt=prompt, stream=True, **more))  # the SDK has no type for a chunk without its end


def test_completes(client):
    r = complete(client)
    assert r.object == "text_completion" and r.id.startswith("cmpl-")
    assert len(r.choices[0].text) > 10 and r.choices[0].finish_reason == "length" and r.choices[0].logprobs is None
    assert r.usage.completion_tokens == 12
    assert complete(client, max_tokens=None).usage.completion_tokens <= 16
    chunks = chunks_of(client, stream_options={"include_usage": True})
    assert "".join(c.choices[0].text for c in chunks if c.choices) == r.choices[0].text
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == r.usage.total_tokens
    assert chunks[-2].choices[0].finish_reason == "length"


def test_prompts_of_every_shape(client, live):
    ids = live.post("/tokenize", {"prompt": "Once upon a time"}).json()["tokens"]
    text = complete(client).choices[0].text
    assert complete(client, ids).choices[0].text == text
    many = complete(client, ["Once upon a time", "The fox"], n=2)
    assert [c.index for c in many.choices] == [0, 1, 2, 3]
    assert many.choices[0].text == many.choices[1].text == text != many.choices[2].text
    assert complete(client, [ids, ids]).choices[1].text == text
    chunks = chunks_of(client, ["Once upon a time", "The fox"])
    assert "".join(c.choices[0].text for c in chunks if c.choices[0].index == 0) == text
    assert complete(client, "").usage.prompt_tokens == 1


def test_echo(client):
    text = complete(client).choices[0].text
    assert complete(client, echo=True).choices[0].text == "Once upon a time" + text
    assert "".join(c.choices[0].text for c in chunks_of(client, echo=True)) == "Once upon a time" + text


def test_scores_a_prompt(client, live):
    """What lm-eval asks: the model's own words have the log-probabilities they were chosen with, to the bit."""
    answer = complete(client, logprobs=2).choices[0]
    ids = live.post("/tokenize", {"prompt": "Once upon a time" + answer.text}).json()["tokens"]
    for prompt in ("Once upon a time" + answer.text, ids):
        r = scored(client, prompt, max_tokens=0)
        assert r.usage.completion_tokens == 0 and r.choices[0].finish_reason == "length"
        assert r.choices[0].text.endswith("Once upon a time" + answer.text)
        lp = r.choices[0].logprobs
        assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.text_offset) == r.usage.prompt_tokens
        assert lp.token_logprobs[0] is None and lp.top_logprobs[0] is None
        assert lp.tokens[-12:] == answer.logprobs.tokens
        assert lp.token_logprobs[-12:] == answer.logprobs.token_logprobs
        assert lp.top_logprobs[-12:] == answer.logprobs.top_logprobs
    more = scored(client, "Once upon a time").choices[0]
    assert more.logprobs.token_logprobs[1:] == lp.token_logprobs[1:len(more.logprobs.tokens)], "with an answer behind it, the same"
    assert all(t in top for t, top in zip(more.logprobs.tokens[1:], more.logprobs.top_logprobs[1:])), "also unlikely ones"
    assert "".join(more.logprobs.tokens[1:]) == more.text == "".join(
        c.choices[0].text for c in chunks_of(client, echo=True, logprobs=2))


def test_suffix_fills_in_the_middle(client, live):
    r = complete(client, "def add(a, b):\n", suffix="\nprint(add(1, 2))")
    parts = [live.post("/tokenize", {"prompt": p, "add_special_tokens": False}).json()["count"]
             for p in ("def add(a, b):\n", "\nprint(add(1, 2))")]
    assert r.usage.prompt_tokens == sum(parts) + 4, "the begin of the sentence, and of both parts, and the hole"
    with pytest.raises(openai.BadRequestError):
        complete(client, ["a", "b"], suffix="c")


def test_logprobs(client):
    r = complete(client, logprobs=3)
    lp = r.choices[0].logprobs
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) == 12
    assert "".join(lp.tokens) == r.choices[0].text
    assert lp.text_offset[0] == 0 and lp.text_offset == sorted(lp.text_offset)
    assert all(max(t.values()) == v for t, v in zip(lp.top_logprobs, lp.token_logprobs))
    assert complete(client, logprobs=0).choices[0].logprobs.tokens == lp.tokens
    streamed = [t for c in chunks_of(client, logprobs=3) if c.choices[0].logprobs for t in c.choices[0].logprobs.tokens]
    assert streamed == lp.tokens


def test_stop_seed_and_fixed_length(client):
    text = complete(client, max_tokens=40).choices[0].text
    word = text.split()[3]
    assert complete(client, stop=word, max_tokens=40).choices[0].text == text[: text.index(word)]
    a, b = (complete(client, temperature=1, seed=5).choices[0].text for _ in range(2))
    assert a == b
    r = complete(client, max_tokens=300, extra_body={"ignore_eos": True})
    assert r.usage.completion_tokens == 300
    assert complete(client, max_tokens=60, extra_body={"min_tokens": 60}).usage.completion_tokens == 60


def test_models(client, live):
    models = list(client.models.list())
    assert models[0].id == "fathom-tiny" and models[0].object == "model" and models[0].created > 1.7e9
    assert strictly(client.models.retrieve("fathom-tiny")).owned_by
    with pytest.raises(openai.NotFoundError) as no:
        client.models.retrieve("gpt-9")
    assert no.value.code == "model_not_found"
    listed = live.get("/v1/models").json()
    assert listed["models"] and listed["data"][0]["max_model_len"] > 0


def test_a_key_that_is_not_asked_for_is_no_matter(live):
    openai.OpenAI(base_url=live.url, api_key="x").models.list()  # also without /v1
