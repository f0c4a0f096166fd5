"""Configurations: what is refused and in which words, recipes, changes on the command line."""

from pathlib import Path

import pytest
import yaml

from grouprl.config.run import Config, apply_change, load_config, parse_config, recipe_names
from grouprl.config.yaml_files import read_yaml
from grouprl.core.errors import InputError, suggest


def refused(data):
    with pytest.raises(InputError) as caught:
        parse_config(data)
    return str(caught.value)


# --- unknown keys and wrong values, at every depth ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "key", "near"),
    [
        ({"tsk": "addition"}, "tsk", "task"),
        ({"optim": {"lrr": 1e-3}}, "optim.lrr", "lr"),
        ({"model": {"dtyp": "auto"}}, "model.dtyp", "dtype"),
        ({"model": {"tiny": {"hiden": 32}}}, "model.tiny.hiden", "hidden"),
        ({"model": {"lora": {"rank": 4, "alfa": 2}}}, "model.lora.", "alpha"),
        ({"batch": {"minibatch": 2}}, "batch.minibatch", "minibatches"),
        ({"sampling": {"topp": 0.9}}, "sampling.topp", "top_p"),
        ({"reward": {"funktion": "a:b"}}, "reward.funktion", "function"),
        ({"eval": {"prompt": 3}}, "eval.prompt", "prompts"),
        ({"run": {"foldr": "x"}}, "run.foldr", "folder"),
        ({"warmup": {"step": 3}}, "warmup.step", "steps"),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest_known(data, key, near):
    message = refused(data)
    assert message.startswith("unknown key")
    assert f"'{key}" in message
    assert f"'{near}'" in message or f"{near}," in message


@pytest.mark.parametrize(
    ("data", "key", "value"),
    [
        ({"batch": {"group_size": 0}}, "batch.group_size", "0"),
        ({"batch": {"prompts": "many"}}, "batch.prompts", "'many'"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature", "0"),
        ({"sampling": {"top_p": 1.5}}, "sampling.top_p", "1.5"),
        ({"sampling": {"top_p": True}}, "sampling.top_p", "True"),
        ({"optim": {"lr": -1}}, "optim.lr", "-1"),
        ({"optim": {"schedule": "exponential"}}, "optim.schedule", "'exponential'"),
        ({"model": {"dtype": "int8"}}, "model.dtype", "'int8'"),
        ({"reward": {"on_error": "ignore"}}, "reward.on_error", "'ignore'"),
        ({"steps": -1}, "steps", "-1"),
        ({"steps": 1.5}, "steps", "1.5"),
    ],
)
def test_wrong_values_name_key_and_value(data, key, value):
    assert refused(data).startswith(f"{key} = {value}")


def test_contradictions_in_words():
    assert "at most as many minibatches as prompts" in refused({"batch": {"prompts": 3, "minibatches": 4}})
    assert "pass@8 but eval.samples = 4" in refused({"eval": {"k": [1, 8], "samples": 4}})


# --- sources --------------------------------------------------------------------------------------------------------


def test_every_recipe_is_valid():
    assert "addition" in recipe_names()
    for name in recipe_names():
        assert load_config(name).steps > 0


def test_missing_source_suggests_a_recipe():
    with pytest.raises(InputError, match=r"neither a file nor an embedded recipe.*'addition'"):
        load_config("adition")


@pytest.mark.parametrize(
    ("text", "words"), [("- a\n- b\n", "holds list"), ("a: [1", "not valid YAML"), ("", "NoneType")]
)
def test_broken_files(tmp_path: Path, text, words):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        load_config(str(path))


def test_dump_and_load_give_the_same_configuration(tmp_path: Path):
    config = load_config("addition", ["method.clip_high=0.3", "eval.samples=4", "eval.k=[1,4]"])
    path = tmp_path / "config.yaml"
    path.write_text(config.dump())
    assert load_config(str(path)) == config
    assert load_config(str(path)).fingerprint() == config.fingerprint()
    assert set(yaml.safe_load(config.dump())) == set(Config.model_fields)


def test_fingerprint_covers_results_only():
    base = load_config("addition")
    assert load_config("addition", ["run.keep=5", "eval.prompts=7"]).fingerprint() == base.fingerprint()
    assert load_config("addition", ["seed=1"]).fingerprint() != base.fingerprint()
    assert load_config("addition", ["method=rloo"]).fingerprint() != base.fingerprint()


# --- changes --------------------------------------------------------------------------------------------------------


def change(*changes):
    return load_config("addition", changes)


def test_values_are_yaml():
    config = change("optim.lr=1e-3", "eval.samples=8", "eval.k=[1,8]", "run.folder=null", "model.device=cpu")
    assert (config.optim.lr, config.eval.k, config.run.folder, config.model.device) == (1e-3, (1, 8), None, "cpu")


def test_depth_below_a_name():
    """`method: grpo` and `task: addition` become mappings when a key below them is set."""
    config = change("method=grpo", "method.clip_high=0.3", "task=addition", "task.digits=3", "model.tiny.hidden=32")
    assert config.method == {"name": "grpo", "clip_high": 0.3}
    assert config.task == {"name": "addition", "digits": 3}
    assert (config.model.name, config.model.tiny.hidden) == ("tiny", 32)
    assert (config.method_name, config.task_name) == ("grpo", "addition")


def test_later_changes_win():
    assert change("seed=1", "seed=2").seed == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed", "has the form key=value"),
        ("=3", "has the form key=value"),
        ("steps.deeper=3", "has no keys below it"),
        ("seed.deeper=3", "a whole number"),
        ("optim.lrr=3", "unknown key 'optim.lrr'"),
        ("nothing.here=3", "unknown key 'nothing'"),
    ],
)
def test_bad_changes(text, words):
    with pytest.raises(InputError, match=words):
        change(text)


def test_derived_numbers():
    config = change("batch.minibatches=2", "batch.epochs=3")
    assert config.updates_per_rollout == 6


def test_an_empty_file_is_told_to_be_empty(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing but a comment\n")
    with pytest.raises(InputError, match="is empty"):
        load_config(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": {"agents": "sepparate"}},
            "model.agents = 'sepparate'. Input should be 'shared', 'separate' or 'heads'",
        ),
        ({"run": {"threads": "foo"}}, "run.threads = 'foo'. It must be a whole number"),
        ({"run": {"threads": 0}}, "or: Input should be 'auto'"),
    ],
)
def test_a_setting_that_may_be_several_things_is_named_as_it_is_written(change, message):
    with pytest.raises(InputError) as caught:
        parse_config(change)
    assert message in str(caught.value)
    assert "functools" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:\n\tb: 1", r"found character '\\t' that cannot start any token, in line 2, 'b: 1'\. Indent with spaces\."),
        ("a: 1\na: 2", r"the key 'a' is given twice, in line 2, 'a: 2'\."),
        ("a: 1\n---\nb: 2", r"expected a single document in the stream but found another document, in line 2"),
        ("a: [1", r"expected ',' or '\]', but got '<stream end>', in line"),
    ],
)
def test_broken_yaml_is_shown_with_its_line(text, words):
    with pytest.raises(InputError, match=rf"^x\.yaml is not valid YAML: {words}"):
        read_yaml(text, "x.yaml")


def test_a_section_that_is_no_mapping_is_told_what_it_holds():
    with pytest.raises(InputError, match=r"batch = 32\. It has settings of its own: prompts, group"):
        parse_config({"batch": 32})


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"reward": "paid.py:f"}, "write reward: {function: paid.py:f}, or --set reward.function=paid.py:f"),
        ({"warmup": 5}, "write warmup: {steps: 5}, or --set warmup.steps=5"),
        ({"environment": "mine.py:Env"}, None),
    ],
)
def test_a_value_in_place_of_a_section_is_shown_as_its_first_setting_where_it_can_be_that(given, remedy):
    with pytest.raises(InputError) as caught:
        parse_config(given)
    assert "It has settings of its own" in str(caught.value)
    assert (remedy in str(caught.value)) if remedy else ("is meant" not in str(caught.value))


def test_nothing_stands_for_a_text_that_is_empty_by_default():
    data = {"eval": {"best": "pass@1"}}
    apply_change(data, "eval.best=")
    assert parse_config(data).eval.best == ""
    apply_change(data, "reward.judge.url=http://here/v1")
    apply_change(data, "reward.judge.model=")
    assert parse_config(data).reward.judge.model == ""
    apply_change(data, "reward.judge.url=")
    with pytest.raises(InputError, match=r"reward\.judge\.url = None\. It must be a text"):
        parse_config(data)


def test_letters_in_another_order_are_the_first_suggestion():
    assert suggest("gpro", ["gspo", "igpo", "grpo", "gvpo", "gmpo"]).startswith("Did you mean 'grpo' or ")
