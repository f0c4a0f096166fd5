"""`grouprl serve`, from the command line."""

from __future__ import annotations

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
from grouprl.cli.app import app

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
    ],
)
def test_errors_in_words(arguments, message):
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2
    assert message.lower() in result.stderr.replace("\n", " ").lower()


def test_a_port_that_is_taken(tmp_path):
    chatting().save(tmp_path / "model")
    with serving(tmp_path / "model") as (client, _, _):
        port = client.base_url.port
        result = CliRunner().invoke(app, ["serve", str(tmp_path / "model"), "--port", str(port)])
    assert result.exit_code == 3
    assert "the port may be taken" in result.stderr.replace("\n", " ")


def test_another_engine_of_the_run_is_not_replaced_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grouprl.cli import serve
    from grouprl.train import export

    (tmp_path / "config.yaml").write_text("seed: 0")
    policy = object()
    for engine, told in (("local", 0), ("elsewhere", 1)):
        sampling = SimpleNamespace(engine=engine)
        trained = SimpleNamespace(policy=policy, config=SimpleNamespace(sampling=sampling))
        monkeypatch.setattr(export, "load_trained", lambda run, checkpoint, trained=trained: trained)
        found, notes = serve._policy(str(tmp_path), None, "cpu")
        assert found is policy
        assert len(notes) == told
    assert "the engine elsewhere; requests are completed by the decoder of this process" in notes[0]
