"""Parts of the user's own: what they return is held against the rules of their stage, and the part is named."""

from __future__ import annotations

import importlib.metadata
import io
import json
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console
from typer.testing import CliRunner

import grouprl
import grouprl.methods
from grouprl import InputError, Method, Metric, Part, TokenLoss, part
from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.aggregate.aggregate import TokenSum
from grouprl.algorithms.objective.objective import PolicyGradient
from grouprl.algorithms.part import PARTS, RunFacts
from grouprl.algorithms.stage_checks import BrokenContract, each_of, rows_of
from grouprl.cli.app import app
from grouprl.config.run import load_config, parse_config
from grouprl.core.plugins import ENTRY_POINTS, load_announced, load_file, sources_of_files
from grouprl.methods.check import check_method
from grouprl.methods.compose import compose
from grouprl.methods.naming import entry_of
from grouprl.monitor.glossary import GLOSSARY
from grouprl.orchestrator.synchronous import choose
from grouprl.training.interrupt import Stopped
from grouprl.training.loop import train
from small import small

PARTS_FILE = '''
import torch
import grouprl
from grouprl import Metric, TokenLoss, part


@part("objective")
class {name}(grouprl.Objective):
    """REINFORCE that says how many tokens it pushes up."""

    metrics = {{"{metric}": Metric(unit="share", words="tokens whose log-prob is pushed up")}}

    def __call__(self, logp_bt, batch):
        adv_bt = batch.need("advantage_bt", self.name)
        return TokenLoss(-adv_bt * logp_bt, {{"{metric}": (adv_bt > 0).to(adv_bt.dtype)}})

    def words(self):
        return "push each log-prob by its advantage"

    def needs(self):
        return ()
'''


@pytest.fixture(autouse=True)
def _leave_no_parts():
    """What a test registers is gone after it."""
    parts, known = {kind: dict(PARTS[kind].items()) for kind in PARTS}, dict(GLOSSARY)
    yield
    for kind, before in parts.items():
        for name in set(PARTS[kind]) - set(before):
            del PARTS[kind][name]
    for name in set(GLOSSARY) - set(known):
        del GLOSSARY[name]


def with_parts(**changes: Any) -> Method:
    made: dict[str, Any] = {"objective": PolicyGradient(), "advantage": Relative(), "aggregate": TokenSum()}
    return Method(**{**made, **changes})


def own(kind: str, act: Any, base: type = Part, **members: Any) -> Any:
    """A registered part whose formula is `act`."""
    name = f"Tried{kind.title().replace('_', '')}"
    members = {"__call__": lambda self, *args: act(*args), "words": lambda self: "do what is tried", **members}
    return part(kind)(type(name, (base,), members))()


def batch() -> grouprl.Batch:
    return small([1.0, 0.0], [2, 2], [0, 0])


@pytest.mark.parametrize(
    ("kind", "act"),
    [
        ("advantage", lambda b: b.reward_b),
        ("advantage_transform", lambda adv_bt, b: adv_bt.sum(1)),
        ("token_weight", lambda b: b.reward_b + 1),
        ("aggregate", lambda b: b.length_b.to(b.dtype)),
        ("advantage", lambda b: b.reward_b[:, None]),
        ("advantage", lambda b: b.reward_b.sum()),
    ],
)
def test_one_value_per_row_is_refused_where_it_would_spread_silently(kind: str, act: Any) -> None:
    """B equals T here: a [B] tensor broadcasts over tokens, and the wrong numbers would train."""
    made = own(kind, act, grouprl.Part)
    method = with_parts(**{kind: (made,) if kind in ("advantage_transform", "token_weight") else made})
    name = f"the {kind} part '{made.name}'"
    with pytest.raises(InputError, match=rf"{name} returned values of shape .*must be \[B,T\] = \[2, 2\]"):
        method.prepare(batch())


@pytest.mark.parametrize("kind", ["objective", "regularize"])
def test_losses_and_metrics_of_one_value_per_row_are_refused(kind: str) -> None:
    def method(loss: Any) -> Method:
        base = grouprl.Objective if kind == "objective" else grouprl.Regularizer
        made = own(kind, lambda *args: loss(args[0]), base, coef=1.0)
        return with_parts(**{kind: made if kind == "objective" else (made,)})

    logp_bt = torch.full((2, 2), -1.0, dtype=torch.float64, requires_grad=True)
    for loss, words in (
        (lambda x: TokenLoss(x.sum(1), {}), "returned losses of shape"),
        (lambda x: TokenLoss(x, {"kl_old": x.sum(1)}), "returned metric 'kl_old' of shape"),
        (lambda x: x, "returned Tensor.*Return grouprl.TokenLoss"),
        (lambda x: TokenLoss(x / 0, {}), "losses that are not finite"),
        (lambda x: TokenLoss(x, {"never_declared": x}), "logs 'never_declared'.*Declare it on the class: metrics ="),
    ):
        tried = method(loss)
        with pytest.raises(InputError, match=rf"the {kind} part 'tried_{kind}' .*{words}|{words}"):
            tried.loss(logp_bt, tried.prepare(batch()))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["advantage", "aggregate", "token_weight"])
def test_values_that_are_not_finite_are_refused_with_their_place(kind: str, value: float) -> None:
    def act(b: grouprl.Batch) -> torch.Tensor:
        made_bt = torch.zeros_like(b.mask_bt, dtype=b.dtype)
        made_bt[1, 0] = value
        return made_bt

    made = own(kind, act)
    method = with_parts(**{kind: (made,) if kind == "token_weight" else made})
    with pytest.raises(InputError, match=rf"'{made.name}' returned (nan|inf) in row 1, token 0"):
        method.prepare(batch())


def test_garbage_outside_the_tokens_that_count_is_no_fault() -> None:
    def act(b: grouprl.Batch) -> torch.Tensor:
        return torch.where(b.mask_bt, 1.0, float("nan")).to(b.dtype)

    ready = with_parts(advantage=own("advantage", act)).prepare(small([1.0, 0.0], [2, 1]))
    assert ready.advantage_bt.tolist() == [[1, 1], [1, 0]]


def test_what_own_code_raises_is_said_with_the_parts_name_and_its_line() -> None:
    def act(b: grouprl.Batch) -> torch.Tensor:
        return b.reward_b + 1 // len([])

    with pytest.raises(InputError, match=r"'tried_advantage' raised ZeroDivisionError.*test_own_parts\.py:\d+"):
        with_parts(advantage=own("advantage", act)).prepare(batch())
    with pytest.raises(InputError, match=r"'tried_advantage': .*ref_bt"):
        with_parts(advantage=own("advantage", lambda b: b.need("ref_bt", "mine"))).prepare(batch())
    with pytest.raises(InputError, match=r"'tried_reward_transform': .*reward_b"):
        act_on = own("reward_transform", lambda b: b.replace(reward_b=b.reward_b / 0))
        with_parts(reward_transform=(act_on,)).prepare(batch())


def test_memory_that_ran_out_is_the_machines_not_the_parts() -> None:
    def act(b: grouprl.Batch) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        with_parts(advantage=own("advantage", act)).prepare(batch())


def test_stages_that_return_no_batch_or_other_rows_are_refused() -> None:
    with pytest.raises(InputError, match=r"'tried_filter' returned NoneType.*batch.replace"):
        with_parts(filter=(own("filter", lambda b: None),)).prepare(batch())
    with pytest.raises(InputError, match=r"'tried_filter' returned \[1, 2\] rows and tokens of \[2, 2\]"):
        with_parts(filter=(own("filter", lambda b: b.rows(torch.tensor([0]))),)).prepare(batch())


def test_a_stage_takes_parts_of_its_own_kind() -> None:
    with pytest.raises(InputError, match=r"advantage holds the class Relative.*Write Relative\(\)"):
        with_parts(advantage=Relative)
    with pytest.raises(InputError, match="objective holds the advantage part 'relative'"):
        with_parts(objective=Relative())
    with pytest.raises(InputError, match="advantage holds <function"):
        with_parts(advantage=lambda b: b.reward_b)
    with pytest.raises(InputError, match="advantage holds None"):
        with_parts(advantage=None)

    class Bare(grouprl.Advantage):
        pass

    with pytest.raises(InputError, match=r'a Bare that is not registered.*@grouprl.part\("advantage"\)'):
        with_parts(advantage=Bare())


def test_classes_that_are_no_parts_and_names_that_are_taken_are_refused() -> None:
    with pytest.raises(InputError, match="Loose is not a part"):
        part("objective")(type("Loose", (), {}))
    with pytest.raises(InputError, match=r"no parts of kind 'objectiv'.*'objective'"):
        part("objectiv")(type("Loose", (Part,), {}))
    with pytest.raises(InputError, match=r"two objective parts 'clipped'.*my_clipped"):
        part("objective", "clipped")(type("Mine", (grouprl.Objective,), {}))
    assert PARTS["objective"]["clipped"].__module__.startswith("grouprl.")


def test_metrics_of_a_part_are_in_the_glossary() -> None:
    metrics = {"own_gate": Metric(unit="share", words="tokens that pass")}
    made = own("objective", lambda x, b: x, grouprl.Objective, metrics=metrics)
    assert GLOSSARY["own_gate"].owner == f"the objective part '{made.name}'"
    own("objective", lambda x, b: x, grouprl.Objective, metrics=metrics)  # the same again: once
    for wrong, words in (
        ({"kl_old": Metric(words="mine")}, "'kl_old' is defined twice by the objective part"),
        ({"own_gate": Metric(words="something else")}, "defined twice"),
        ({"own_other": Metric()}, "what it measures"),
        ({"own_other": "tokens that pass"}, r"Metric\("),
        ({"own_other": Metric(words="x", group="mine")}, "Groups are"),
    ):
        with pytest.raises(InputError, match=words):
            own("objective", lambda x, b: x, grouprl.Objective, metrics=wrong)
        assert "own_other" not in GLOSSARY


@pytest.mark.parametrize(
    ("kind", "base", "member"),
    [
        ("curriculum", grouprl.Curriculum, "choose"),
        ("allocation", grouprl.Allocation, "allot"),
        ("sampling", grouprl.SamplingRule, "adjust"),
    ],
)
def test_data_parts_that_fail_or_return_something_else_are_named(kind: str, base: type, member: str) -> None:
    def fails(self: Any, *args: Any) -> Any:
        raise KeyError("no such prompt")

    for act, words in ((lambda self, *args: 3, "returned 3.*list of RolloutRequest"), (fails, "raised KeyError")):
        made = own(kind, None, base, **{member: act})
        context: Any = SimpleNamespace(method=with_parts(**{kind: made}), take=lambda count: [])
        with pytest.raises(InputError, match=f"the {kind} part 'tried_{kind}' {words}"):
            choose(context, 2)


def test_a_run_that_is_stopped_inside_a_part_is_no_fault_of_the_part() -> None:
    def stops(self: Any, *args: Any) -> Any:
        raise Stopped

    made = own("curriculum", None, grouprl.Curriculum, choose=stops)
    context: Any = SimpleNamespace(method=with_parts(curriculum=made))
    with pytest.raises(Stopped):
        choose(context, 2)


# --- what no batch can make right ---------------------------------------------------------------------------------


def changed(tensor: torch.Tensor, value: float) -> torch.Tensor:
    tensor.fill_(value)
    return tensor


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda b: b.broadcast(changed(b.reward_b, 2)), r"changed batch\.reward_b in place.*x = x \* 2"),
        (lambda b: changed(b.mask_bt, 1).to(b.dtype), r"changed batch\.mask_bt in place"),
        (lambda b: changed(b.stats["x"], 2), r"changed batch\.stats\['x'\] in place"),
        (lambda b: b.rewards_b, r"no attribute 'rewards_b' at test_own_parts\.py:\d+\..*Did you mean 'reward_b'"),
        (lambda b: undefined_name(b), r"NameError: name 'undefined_name'.* at test_own_parts\.py:\d+"),  # noqa: F821
        (lambda b: b.replace(reward_b=b.reward_b[:1]), r"reward_b has shape \[1\] at test_own_parts\.py:\d+"),
        (lambda b: b.replace(loss_mask_bt=1.0), r"loss_mask_bt is of type float"),
        (lambda b: b.replace(reward_b=None), r"reward_b is of type NoneType"),
        (lambda b: b.replace(stats={"x": 1.0}), r"stats\['x'\] is of type float"),
        (lambda b: b.mask_bt.to(b.dtype).to_sparse(), "returned values of torch.sparse_coo.*ordinary tensor"),
        (lambda b: torch.ones(2, 2, device="meta"), "returned values on the device meta"),
        (lambda b: torch.ones(2, 2, dtype=torch.complex64), "of type torch.complex64.*floating point"),
    ],
)
def test_what_is_wrong_on_every_batch_is_told_from_what_one_batch_lacks(act: Any, said: str) -> None:
    whole = batch().replace(stats={"x": torch.zeros(2, 2, dtype=torch.float64)})
    with pytest.raises(BrokenContract, match=rf"(?s)the advantage part 'tried_advantage'.*{said}"):
        with_parts(advantage=own("advantage", act)).prepare(whole)


def test_a_formula_that_is_missing_and_a_mask_that_is_not_the_parts_are_told() -> None:
    class Formless(grouprl.Advantage):
        says = "nothing yet"

    with pytest.raises(BrokenContract, match=r"'formless' lacks its formula \(test_own_parts\.py:\d+\)"):
        with_parts(advantage=part("advantage")(Formless)()).prepare(batch())

    class Deaf(grouprl.Advantage):
        says = "called with nothing"

        def __call__(self) -> None:  # type: ignore[override]
            """Take no batch."""

    with pytest.raises(BrokenContract, match=r"'deaf' cannot be called: .* 1 positional argument.*py:\d+\)\. A part"):
        with_parts(advantage=part("advantage")(Deaf)()).prepare(batch())
    other = own("filter", lambda b: b.replace(mask_bt=~small([1.0, 0.0], [2, 1]).mask_bt))
    with pytest.raises(BrokenContract, match=r"'tried_filter' returned another mask_bt.*loss_mask_bt instead"):
        with_parts(filter=(other,)).prepare(batch())


def test_an_exit_in_a_part_is_a_fault_of_the_part_and_not_the_end() -> None:
    with pytest.raises(InputError, match=r"raised SystemExit: 0 at test_own_parts\.py:\d+"):
        with_parts(advantage=own("advantage", lambda b: sys.exit(0))).prepare(batch())


def test_metrics_of_a_loss_may_be_left_out_but_not_be_nothing() -> None:
    logp_bt = torch.full((2, 2), -1.0, dtype=torch.float64, requires_grad=True)
    plain = with_parts(objective=own("objective", lambda x, b: TokenLoss(-x), grouprl.Objective))
    assert plain.loss(logp_bt, plain.prepare(batch())).value.item() == 4
    nothing: Any = None
    broken = with_parts(objective=own("objective", lambda x, b: TokenLoss(-x, nothing), grouprl.Objective))
    with pytest.raises(BrokenContract, match="returned metrics that are NoneType"):
        broken.loss(logp_bt, broken.prepare(batch()))
    whole = with_parts(objective=own("objective", lambda x, b: TokenLoss(x.long()), grouprl.Objective))
    with pytest.raises(BrokenContract, match=r"losses of type torch\.int64"):
        whole.loss(logp_bt, whole.prepare(batch()))


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"says": 3}, "says = 3. It must be a text"),
        ({"reads": "old_bt"}, r"reads = 'old_bt'.*Write reads = \(\"old_bt\",\)"),
        ({"idle_at": "coef"}, r"idle_at = 'coef'. It must be a setting, .*Write idle_at = \(\"coef\", 0, "),
        ({"couples": "rows"}, "couples = 'rows'. It must be one of sequence, group, batch"),
        ({"__init__": lambda self: None}, "has an __init__.*write __post_init__"),
        ({"entropy": True}, r"entropy = True. A part names .*Write asks = \(\"entropy\",\)"),
        ({"cross": 1.2}, r"cross = 1\.2.*Write asks = \(\"cross@1\.2\",\)"),
        ({"cross": property(lambda self: 1.2)}, r"cross = .*Write asks = \(\"cross@1\",\)"),
    ],
)
def test_members_that_no_part_can_have_are_refused_as_it_is_registered(members: Any, said: str) -> None:
    with pytest.raises(InputError, match=rf"(?s)TriedObjective, to be a part of kind objective.*{said}"):
        own("objective", lambda x, b: TokenLoss(-x), grouprl.Objective, **members)


def test_a_part_says_itself_at_which_value_it_has_no_effect() -> None:
    def made(setting: str) -> Any:
        at = (setting, 0, "{name} has no effect: {power:g} does nothing")
        members: dict[str, Any] = {"power": 1.0, "__annotations__": {"power": float}, "idle_at": at}
        return own("token_weight", lambda b: b.mask_bt, grouprl.TokenWeight, **members)

    part = made("power")
    assert part.idle(RunFacts()) == []
    assert replace(part, power=0.0).idle(RunFacts()) == [f"{part.name} has no effect: 0 does nothing"]
    with pytest.raises(InputError, match=r"idle_at of the part '\w+' names '\{other\}'"):
        made("other")


def test_settings_helpers_and_other_kinds_may_be_called_entropy_and_cross() -> None:
    setting = {"entropy": 0.1, "__annotations__": {"entropy": float}}
    assert own("objective", lambda x, b: TokenLoss(-x), grouprl.Objective, **setting).settings() == {"entropy": 0.1}
    assert own("objective", lambda x, b: TokenLoss(-x), grouprl.Objective, cross=lambda self, x: x).cross(3) == 3
    assert own("token_weight", lambda b: b.mask_bt, grouprl.TokenWeight, entropy=True).entropy is True


@pytest.mark.parametrize(
    ("member", "value", "said"),
    [
        ("words", None, "words returned None.*a text"),
        ("words", KeyError("w"), r"words raised KeyError: 'w' at test_own_parts\.py:\d+"),
        ("formula", 3, "formula returned 3.*a text"),
        ("needs", None, "needs returned None.*names of batch fields"),
        ("needs", "old_bt", "needs returned 'old_bt'"),
        ("idle", None, r"idle returned None.*a list of sentences, \[\]"),
        ("refuse", "no", "refuse returned 'no'"),
    ],
)
def test_what_a_part_says_of_itself_wrongly_is_named(member: str, value: Any, said: str) -> None:
    def give(self: Any, *args: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    made = own("objective", lambda x, b: TokenLoss(-x), grouprl.Objective, **{member: give})
    run = (grouprl.RunFacts(),) if member in ("idle", "refuse") else ()
    with pytest.raises(InputError, match=rf"the objective part 'tried_objective': {said}"):
        getattr(made, member)(*run)


def test_what_other_members_return_wrongly_is_named() -> None:
    made = own("refill", None)
    for value, said in (
        (None, "returned None"),
        (torch.tensor([0.5, 1]), r"returned type torch\.float32 and shape \[2\]"),
        (torch.tensor([True]), r"returned type torch\.bool and shape \[1\]"),
    ):
        with pytest.raises(InputError, match=rf"the refill part 'tried_refill' {said}.*one true or false per row"):
            rows_of(made, batch(), lambda _, value=value: value, batch())
    assert rows_of(made, batch(), lambda _: torch.tensor([True, False]), batch()).tolist() == [True, False]
    update = own("update", None)
    for act, said in (
        (lambda: None, "returned None.*yield learner.take"),
        (lambda: iter([1]), "returned 1.*finite numbers by name"),
        (lambda: iter([{"loss": 1.0}, {"loss": float("nan")}]), "returned nan as its metric 'loss'"),
        (lambda: iter([{"loss": torch.ones(3)}]), r"returned tensor\(\[1., 1., 1.\]\) as its metric"),
        (lambda: (1 // 0 for _ in range(2)), r"raised ZeroDivisionError: .* at test_own_parts\.py:\d+"),
    ):
        with pytest.raises(InputError, match=rf"the update part 'tried_update' {said}"):
            list(each_of(update, act))
    assert list(each_of(update, lambda: iter([{"loss": 1.0}]))) == [{"loss": 1.0}]


def test_parts_of_a_file_reach_another_process(tmp_path: Path) -> None:
    """A run on several processes sends its method to the others, which have not imported the file."""
    path = tmp_path / "sent.py"
    path.write_text(PARTS_FILE.format(name="SentAlong", metric="sent_metric"))
    module = load_file(str(path), "a rule")
    sent = pickle.dumps({name: each for name, each in sources_of_files().items() if name == module.__name__})
    path.unlink()
    code = (
        "import pickle, sys; from grouprl.core.plugins import import_sources\n"
        "sources, part = pickle.load(sys.stdin.buffer), sys.stdin.buffer\n"
        "import_sources(sources); print(pickle.load(part).words())"
    )
    given = sent + pickle.dumps(module.SentAlong())
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, timeout=120, check=False)
    assert done.stdout.decode().strip() == "push each log-prob by its advantage", done.stderr


# --- runs ---------------------------------------------------------------------------------------------------------


def tiny(method: Any, **changes: Any) -> dict[str, Any]:
    return {
        "task": {"name": "addition", "digits": 1},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "method": method,
        "steps": 2,
        "warmup": {"steps": 30, "batch": 32, "lr": 1e-2},
        "batch": {"prompts": 8, "group_size": 8},
        "eval": {"every": 0, "prompts": 4, "final_prompts": 4},
        "run": {"threads": 1},
        **changes,
    }


def silent() -> Console:
    return Console(file=io.StringIO(), width=100)


def test_a_run_with_an_own_part_from_a_plugin_logs_its_metric_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "pushes.py").write_text(PARTS_FILE.format(name="PushesOfARun", metric="pushed_in_a_run"))
    (tmp_path / "run.yaml").write_text(
        yaml.safe_dump(tiny({"base": "grpo", "objective": "pushes_of_a_run"}, plugins="pushes.py"))
    )
    config = load_config(str(tmp_path / "run.yaml"))
    assert config.plugins == (str(tmp_path / "pushes.py"),)
    folder = train(config, folder=tmp_path / "run", console=silent()).folder
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = [line["pushed_in_a_run"] for line in lines if "pushed_in_a_run" in line]
    assert values
    assert all(0 <= value <= 1 for value in values)
    stored = load_config(str(folder / "config.yaml"))
    assert stored.plugins == config.plugins
    script = "from grouprl.cli import main; main()"
    more = [sys.executable, "-c", script, "train", str(folder), "--resume", "--set", "steps=3", "-q"]
    done = subprocess.run(more, cwd="/", capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (tmp_path / "pushes.py").write_text(PARTS_FILE.format(name="PushesOfARun", metric="pushed_in_a_run") + "\n# new")
    changed = subprocess.run(more, cwd="/", capture_output=True, text=True, timeout=300, check=False)
    assert changed.returncode == 2
    assert "pushes.py has changed" in changed.stderr


def test_plugins_that_cannot_be_imported_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(InputError, match=r"cannot import .*broken\.py.*ZeroDivisionError"):
        parse_config({"plugins": [str(tmp_path / "broken.py")]})
    with pytest.raises(InputError, match="there is no file"):
        parse_config({"plugins": [str(tmp_path / "gone.py")]})
    with pytest.raises(InputError, match="cannot import 'no_such_module_at_all'"):
        parse_config({"plugins": "no_such_module_at_all"})
    assert parse_config({}).fingerprint() == parse_config({"plugins": []}).fingerprint()


def test_entry_points_are_imported_once_and_broken_ones_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from grouprl.core import plugins

    asked: list[str] = []

    class Announced:
        def __init__(self, name: str, fails: bool) -> None:
            self.name, self.value, self.fails = name, f"{name}_module", fails

        def load(self) -> None:
            asked.append(self.name)
            if self.fails:
                raise ImportError("not today")

    def found(*, group: str) -> list[Announced]:
        assert group == ENTRY_POINTS == "grouprl.plugins"
        return [Announced("good", False), Announced("bad", True)]

    monkeypatch.setattr(importlib.metadata, "entry_points", found)
    monkeypatch.setattr(plugins, "_announced", [])
    with pytest.warns(UserWarning, match=r"the plugin bad \(bad_module\) is left out.*not today"):
        load_announced()
    load_announced()
    assert asked == ["good", "bad"]


# --- methods check ------------------------------------------------------------------------------------------------

BROKEN = '''
import torch
from grouprl import Advantage, Metric, Objective, TokenLoss, method, part


@part("advantage")
class RowsOf{n}(Advantage):
    """One value per row."""
    def __call__(self, batch):
        return batch.reward_b
    def words(self):
        return "wrong shape"


@part("objective")
class Reads{n}(Objective):
    """Reads what it does not name."""
    def __call__(self, logp_bt, batch):
        return TokenLoss(-batch.need("advantage_bt", "it") * (logp_bt - batch.need("ref_bt", "it")), {{}})
    def words(self):
        return "reads the reference"


@part("objective")
class Mixes{n}(Objective):
    """Compares rows, and does not say so."""
    def __call__(self, logp_bt, batch):
        return TokenLoss(-batch.need("advantage_bt", "it") * logp_bt * logp_bt.detach()[batch.mask_bt].mean(), {{}})
    def words(self):
        return "mixes rows"


@part("objective")
class Always{n}(Objective):
    """Has a gradient where there is no advantage, and does not say so."""
    def __call__(self, logp_bt, batch):
        return TokenLoss(-logp_bt, {{}})
    def words(self):
        return "imitate everything"


@part("objective")
class Silent{n}(Objective):
    """Says nothing."""
    def __call__(self, logp_bt, batch):
        return TokenLoss(-batch.need("advantage_bt", "it") * logp_bt, {{}})
    def words(self):
        return ""


@part("objective")
class Padding{n}(Objective):
    """Divides by the width of the batch."""
    couples = "batch"
    def __call__(self, logp_bt, batch):
        return TokenLoss(-batch.need("advantage_bt", "it") * logp_bt / logp_bt.shape[1], {{}})
    def words(self):
        return "padding counts"


def rows(): return method("grpo").with_parts(advantage=RowsOf{n}())
def reads(): return method("dr_grpo").with_parts(objective=Reads{n}())
def mixes(): return method("grpo").with_parts(objective=Mixes{n}())
def always(): return method("grpo").with_parts(objective=Always{n}())
def silent(): return method("grpo").with_parts(objective=Silent{n}())
def padding(): return method("grpo").with_parts(objective=Padding{n}())
def raises(): raise RuntimeError("no luck")
def good(high: float = 0.3): return method("grpo", clip_high=high)
'''


@pytest.mark.parametrize(
    ("name", "rule", "words"),
    [
        ("rows", "finite numbers of the right shapes", r"must be \[B,T\]"),
        ("reads", "do not name in `needs`", "ref_bt"),
        ("mixes", "micro-batches add up", "couples"),
        ("always", "no gradient have none", "Override zero_rows"),
        ("silent", "say what they do", "no words"),
        ("padding", "padding changes nothing", "differ"),
        ("raises", "can be composed", "no luck"),
    ],
)
def test_each_broken_rule_is_found(tmp_path: Path, name: str, rule: str, words: str) -> None:
    path = tmp_path / "broken_parts.py"
    path.write_text(BROKEN.format(n=name.title()))
    broken = [each for each in check_method(entry_of(f"{path}:{name}")) if not each.passed]
    assert [rule in each.rule for each in broken] == [True]
    assert re.search(words, broken[0].words)


@pytest.mark.parametrize("name", ["grpo", "ppo", "dapo", "gspo@trl", "sft", "disco"])
def test_methods_of_the_catalogue_keep_every_rule(name: str) -> None:
    findings = check_method(entry_of(name))
    assert len(findings) >= 7
    assert all(each.passed for each in findings)


def test_own_methods_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "my_methods.py"
    path.write_text(BROKEN.format(n="Cli"))
    shown = CliRunner().invoke(app, ["methods", "show", f"{path}:good"])
    assert shown.exit_code == 0
    assert "0.3" in shown.output
    differs = CliRunner().invoke(app, ["methods", "diff", "grpo", f"{path}:good", "--json"])
    assert [(row["setting"], row["a"], row["b"]) for row in json.loads(differs.output)["settings"]] in (
        [],
        [("high", 0.2, 0.3)],
    )
    assert CliRunner().invoke(app, ["methods", "check", f"{path}:good"]).exit_code == 0
    wrong = CliRunner().invoke(app, ["methods", "check", f"{path}:rows", "--json"])
    assert wrong.exit_code == 2
    assert [row["passed"] for row in json.loads(wrong.output)["findings"]].count(False) == 1
    missing = CliRunner().invoke(app, ["methods", "check", f"{path}:god"])
    assert missing.exit_code == 2


# --- grouprl parts, grouprl.compose ------------------------------------------------------------------------------


def test_every_part_is_listed_and_explained() -> None:
    rows = json.loads(CliRunner().invoke(app, ["parts", "--json"]).output)
    assert {(row["kind"], row["name"]) for row in rows} == {(kind, name) for kind in PARTS for name in PARTS[kind]}
    assert not [row["name"] for row in rows if not row["summary"]]
    clipped = next(row for row in rows if row["name"] == "clipped")
    assert {"clip_low": 0.2, "clip_high": 0.2}.items() <= {
        each["name"]: each["default"] for each in clipped["settings"]
    }.items()
    assert clipped["needs"] == ["old_bt"]
    assert clipped["formula"]
    for row in rows:  # what a part says of how it is written is true
        data = yaml.safe_load(row["example"])["method"]
        if row["kind"] in ("objective", "advantage", "aggregate") and not any(
            each["default"] == "required" for each in row["settings"]
        ):
            assert data[row["kind"]]["part"] == row["name"]


def test_parts_on_the_command_line(tmp_path: Path) -> None:
    card = CliRunner().invoke(app, ["parts", "clipped"]).output
    assert all(words in card for words in ("objective", "low", "0.2", "old_bt", "π(y_t)/π_old(y_t)"))
    listing = CliRunner().invoke(app, ["parts", "--kind", "aggregate"]).output
    assert "token_mean" in listing
    assert "clipped" not in listing
    unknown = CliRunner().invoke(app, ["parts", "cliped"])
    assert unknown.exit_code == 2
    assert CliRunner().invoke(app, ["parts", "--kind", "objectives"]).exit_code == 2
    (tmp_path / "listed.py").write_text(PARTS_FILE.format(name="ListedPart", metric="listed_metric"))
    own_card = CliRunner().invoke(app, ["parts", "listed_part", "--plugin", str(tmp_path / "listed.py")]).output
    assert "listed_metric" in own_card


def test_compose_is_public_and_the_catalogue_is_package_and_function() -> None:
    resolved = grouprl.compose({"base": "grpo", "advantage": {"scale": "none"}, "aggregate": "token_mean"})
    assert resolved.method.advantage.scale == "none"
    assert resolved == compose({"base": "grpo", "advantage": {"scale": "none"}, "aggregate": "token_mean"})
    assert grouprl.methods()["grpo"] is grouprl.methods.CATALOGUE["grpo"]
    assert all(getattr(grouprl, name) is not None for name in grouprl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'metod'"):
        grouprl.metod  # noqa: B018
