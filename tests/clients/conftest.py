"""The servers that the tests talk to, each started once."""

import os

# Before litellm is imported: no look at the network for prices, no telemetry.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["DO_NOT_TRACK"] = "1"

import anthropic
import openai
import pytest

import servers


@pytest.fixture(scope="session")
def live():
    server = servers.serve()
    yield server
    assert server.stop() == 0, "\n".join(server.log[-20:])


@pytest.fixture(scope="session")
def scripted():
    server = servers.scripted()
    yield server
    assert server.stop() == 0, "\n".join(server.log[-20:])


@pytest.fixture(scope="session")
def client(live):
    """openai's client of the live server. What fails is not tried again behind the test's back."""
    return openai.OpenAI(base_url=live.v1, api_key="any", max_retries=0)


@pytest.fixture(scope="session")
def claude(live):
    """anthropic's client of the live server."""
    return anthropic.Anthropic(base_url=live.url, api_key="any", max_retries=0)


@pytest.fixture(scope="session")
def told(scripted):
    """openai's client of the scripted server."""
    return openai.OpenAI(base_url=scripted.v1, api_key="any", max_retries=0)


@pytest.fixture(scope="session")
def told_claude(scripted):
    """anthropic's client of the scripted server."""
    return anthropic.Anthropic(base_url=scripted.url, api_key="any", max_retries=0)
