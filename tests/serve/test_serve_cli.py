"""`grouprl serve`, from the command line."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from chat_policies import chatting
from grouprl.chat.refusal import Refusal
from grouprl.chat.request import read_request
from grouprl.cli.app import app
from grouprl.config.sections import Sampling
from grouprl.core.errors import InputError
from grouprl.policy.teams.team_policy import TeamPolicy
from grouprl.rollout.engines import opened_engine
from grouprl.serve import Service

openai = pytest.importorskip("openai", reason="openai is not installed: pip install 'grouprl[dev]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'grouprl[serve]'")


@contextmanager
def serving(*arguments):
    """Run `grouprl serve`; yield a client and the process."""
    command = [sys.executable, "-m", "grouprl.cli.app", "serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    try:
        said = process.stdout.readline()
        found = re.search(r"Serving (\S+) at (\S+)", said)
        assert found, said + process.stderr.read()
        yield openai.OpenAI(base_url=found[2], api_key="me", max_retries=0, timeout=60), found[1], process
    finally:
        process.kill()
        process.wait()


def test_a_model_is_served_until_interrupted(tmp_path):
    chatting().save(tmp_path / "model")
    record = tmp_path / "tokens.jsonl"
    with serving(tmp_path / "model", "--record", record, "--max-tokens", 7) as (client, name, process):
        assert name == "model"
        answer = client.chat.completions.create(model="model", messages=[{"role": "user", "content": "Hi"}], seed=0)
        assert answer.usage.completion_tokens <= 7
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    (line,) = map(json.loads, record.read_text().splitlines())
    assert line["text"] == answer.choices[0].message.content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere/at/all/model"], "The folder nowhere/at/all/model does not exist"),
        (["tiny", "--checkpoint", "3"], "only a run folder has checkpoints"),
        (["tiny", "--record", "nowhere/x.jsonl"], "the folder nowhere does not exist"),
        (["tiny", "--chat-template-kwargs", "quiet"], "it must be a mapping from names of variables to values"),
        (["tiny", "--chat-template-kwargs", "{quiet: true}"], "the tokenizer has no chat template"),
    ],
)
def test_errors_in_words(arguments, message):
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2
    assert message.lower() in result.stderr.replace("\n", " ").lower()


def test_a_models_variables_hold_unless_a_client_sets_them(tmp_path):
    policy = chatting(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{{ '<quiet>' if quiet }}{% endif %}"
    )
    policy.save(tmp_path / "model")
    asked = [{"role": "user", "content": "Hi"}]
    with serving(tmp_path / "model", "--chat-template-kwargs", "{quiet: true}") as (client, name, _):
        for own, quiet in (({}, True), ({"quiet": False}, False), ({"quiet": True}, True)):
            more = {"return_token_ids": True, "chat_template_kwargs": own}
            reply = client.chat.completions.create(model=name, messages=asked, max_tokens=2, extra_body=more)
            told = policy.tokenizer.apply_chat_template(asked, add_generation_prompt=True, quiet=quiet)
            assert reply.model_dump()["prompt_token_ids"] == told["input_ids"]


def test_a_port_that_is_taken(tmp_path):
    chatting().save(tmp_path / "model")
    with serving(tmp_path / "model") as (client, _, _):
        port = client.base_url.port
        result = CliRunner().invoke(app, ["serve", str(tmp_path / "model"), "--port", str(port)])
    assert result.exit_code == 3
    assert "the port may be taken" in result.stderr.replace("\n", " ")


ENGINE = """
from dataclasses import replace
from grouprl.core.errors import InputError
from grouprl.rollout.local.sampler import LocalSampler

HEARD = []

class Heard(LocalSampler):
    exact = False

    def publish(self, version, policy):
        super().publish(version, policy)
        HEARD.append("weights")

    def sample(self, requests):
        if any(request.top_p < 1 for request in requests):
            raise InputError("top_p below 1", "this engine keeps everything")
        HEARD.append(len(requests))
        return replace(super().sample(requests), exact=False)

    def close(self):
        HEARD.append("end")
"""


def run_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: object, engine: str) -> Path:
    """A folder that loads as a run whose policy is `policy`."""
    from grouprl.training import export

    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "config.yaml").write_text("seed: 0")
    config = SimpleNamespace(sampling=Sampling(engine=engine))
    monkeypatch.setattr(export, "load_trained", lambda run, step: SimpleNamespace(policy=policy, config=config))
    return tmp_path / "run"


def test_a_run_is_served_by_its_own_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grouprl.cli import serve

    (tmp_path / "heard.py").write_text(ENGINE)
    policy = chatting()
    run = run_of(tmp_path, monkeypatch, policy, f"{tmp_path}/heard.py:Heard")
    _, make = serve._policy(str(run), None, "cpu", None)
    with opened_engine(make, policy) as engine:
        heard = sys.modules[type(engine).__module__].HEARD
        assert heard == ["weights"]
        service = Service(policy, "tiny", sampler=engine)
        asked = read_request({"messages": [{"role": "user", "content": "?"}], "max_tokens": 3, "seed": 1, "n": 2})
        try:
            completion = asyncio.run(service.answer(asked, "me", None))
            with pytest.raises(Refusal, match="The request: top_p below 1"):
                asyncio.run(service.answer(asked.model_copy(update={"top_p": 0.5}), "me", None))
        finally:
            service.close()
    assert heard[0] == "weights"
    assert heard[-1] == "end"
    assert sum(n for n in heard if isinstance(n, int)) == len(completion.choices) == 2
    _, local = serve._policy(str(run), None, "cpu", "local")
    assert local.name == "local"
    with pytest.raises(InputError, match=r"sampling\.engine = 'lokal'"):
        serve._policy(str(run), None, "cpu", "lokal")


def test_what_is_no_one_language_model_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grouprl.cli import serve

    run = run_of(tmp_path, monkeypatch, object(), "local")
    with pytest.raises(InputError, match="its policy is object, which writes no text"):
        serve._policy(str(run), None, "cpu", None)
    team = TeamPolicy({"boss": chatting(), "clerk": chatting()})
    with pytest.raises(InputError, match="each agent has a policy of its own"):
        serve._policy(str(run_of(tmp_path, monkeypatch, team, "local")), None, "cpu", None)
