"""WebShop's adapter against an imitation of its interface: no proof that it runs against WebShop itself."""

from __future__ import annotations

import sys
import types

import pytest

from grouprl.core.errors import InputError
from grouprl.envs import Demonstrator, Environment
from grouprl.tasks import load_task

GOALS = [{"instruction_text": f"buy a lamp of size {i}"} for i in range(20)]


class Server:
    """Goals, and a session for each name."""

    def __init__(self):
        self.goals, self.user_sessions = GOALS, {}


class TextEnv:
    """The methods that the adapter calls, as WebShop's repository has them."""

    def __init__(self, observation_mode="html", server=None, session_prefix=None, **settings):
        assert observation_mode == "text_rich"
        self.server, self.prefix, self.page = server or Server(), session_prefix or "", "search"

    def reset(self, session=None):
        self.session = f"{self.prefix}{session}"
        self.goal, self.page = self.server.goals[session], "search"
        self.server.user_sessions[self.session] = {"goal": self.goal}
        self.instruction_text = self.goal["instruction_text"]
        return self.instruction_text, None

    def get_available_actions(self):
        clicks = {"search": ["search"], "results": ["b01", "back to search"], "item": ["buy now", "< prev"]}[self.page]
        return {"has_search_bar": self.page == "search", "clickables": clicks}

    def step(self, action):
        if action.startswith("search[") and self.page == "search":
            self.page = "results"
        elif action == "click[b01]":
            self.page = "item"
        elif action == "click[buy now]" and self.page == "item":
            return "Thank you", 0.75, True, None
        return f"a page: {self.page}", 0, False, None

    def close(self):
        pass


@pytest.fixture
def shop(monkeypatch):
    site, envs = types.ModuleType("web_agent_site"), types.ModuleType("web_agent_site.envs")
    site.__spec__, site.envs, envs.WebAgentTextEnv = types.SimpleNamespace(), envs, TextEnv
    monkeypatch.setitem(sys.modules, "web_agent_site", site)
    monkeypatch.setitem(sys.modules, "web_agent_site.envs", envs)
    monkeypatch.setattr("grouprl.tasks.adapters.webshop._servers", {})
    return load_task({"name": "webshop", "turns": 5, "invalid": -0.5})


def test_a_purchase_pays_what_the_shop_says(shop):
    assert (shop.size("eval"), shop.size("train")) == (2, 18)
    assert shop.example("train", 0).columns == {"goal": 2}
    environment = shop.environment()
    assert isinstance(environment, Environment)
    assert isinstance(environment, Demonstrator)
    first = environment.reset(shop.example("train", 0), 0)
    assert first.text == "buy a lamp of size 2\nsearch[words]\n>"
    wrong = environment.step("click[b01]")
    assert (wrong.valid, wrong.reward) == (False, -0.5)
    environment._env.page = "search"
    assert environment.step("search[lamp]").observation.legal == ("click[b01]", "click[back to search]")
    environment.step("click[b01]")
    last = environment.step("click[buy now]")
    assert (last.reward, last.terminated, environment.score()) == (0.75, True, {"correct": 0.0})
    environment.close()
    assert not shop._server().user_sessions


def test_without_the_shop_the_message_says_where_it_comes_from():
    with pytest.raises(InputError, match=r"web_agent_site.*setup.sh"):
        load_task("webshop")
