"""Keys and values of other libraries are answered with ours, and every key that an answer names exists."""

import re

import pytest
import yaml

from grouprl.config.run import Config, parse_config
from grouprl.core.errors import InputError
from grouprl.core.foreign.names import LIBRARIES, VALUES, foreign
from grouprl.methods.compose import STAGES, compose
from grouprl.methods.registry import CATALOGUE, find, spelled
from grouprl.tasks.rows import RowTask

NAMED = (
    *("grpo", "ppo", "dapo", "dpo@trl", "kto@trl", "bco@trl", "cpo@trl", "tpo@trl", "nash_md@trl", "bradley_terry"),
    *("grpo@trl", "sapo@trl", "vespo@trl", "rloo@trl", "minillm"),
)
"""Methods whose settings are named."""


def refused(data):
    with pytest.raises(InputError) as caught:
        parse_config(data)
    return str(caught.value)


def exists(key: str) -> bool:
    """Return whether a dotted key is one of the schema, of a method that papers name, or of a task over rows."""
    first, *rest = key.split(".")
    if first == "method" and rest:
        settings = {name for method in NAMED for name in CATALOGUE[method].settings}
        return rest[0] in {*settings, *STAGES, "add"}
    if first == "task" and rest:
        return rest[0] in RowTask.model_fields
    section = Config
    for name in (first, *rest):
        field = getattr(section, "model_fields", {}).get(name)
        if field is None:
            return False
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        section = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
    return True


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_key_that_is_named_exists(library):
    for theirs, ours in LIBRARIES[library].items():
        for key in ours.partition(":")[0].split(", "):
            assert exists(key), f"{library}'s {theirs}: {key}"


def test_methods_and_parts_that_are_named_exist():
    said = " ".join(words for names in LIBRARIES.values() for words in names.values())
    for spec in set(re.findall(r"method\.add: (\{[^;]*?\]\})", said)):
        compose({"base": "grpo", "add": yaml.safe_load(spec)})
    assert "gspo" in CATALOGUE
    assert "grpo@trl" in CATALOGUE


@pytest.mark.parametrize(
    ("data", "ours"),
    [
        ({"learning_rate": 1e-6}, "optim.lr"),
        ({"optim": {"learning_rate": 1e-6}}, "optim.lr"),
        ({"num_generations": 8}, "batch.group_size"),
        ({"per_device_train_batch_size": 8}, "batch.prompts"),
        ({"max_completion_length": 8}, "sampling.max_new_tokens"),
        ({"report_to": "wandb"}, "metrics.jsonl"),
        ({"load_in_4bit": True}, "model.lora"),
        ({"actor_rollout_ref": {"actor": {"kl_loss_coef": 0.1}}}, "method.kl_coef"),
        ({"data": {"train_batch_size": 8}}, "batch.prompts"),
        ({"algorithm": {"adv_estimator": "grpo"}}, "method: the name"),
        ({"init_kl_coef": 0.1}, "method.kl_coef"),
        ({"n_samples_per_prompt": 4}, "batch.group_size"),
    ],
)
def test_a_foreign_key_is_answered_with_ours(data, ours):
    message = refused(data)
    assert ours in message
    assert "unknown key" in message


def test_a_whole_foreign_configuration_is_answered_at_once():
    message = refused({"learning_rate": 1e-6, "num_generations": 8, "beta": 0.04})
    assert message.startswith("unknown keys 'learning_rate', 'num_generations', 'beta'")
    assert all(ours in message for ours in ("optim.lr", "batch.group_size", "method.kl_coef"))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("beta", "method.beta"),
        ("loss_type", "method.loss_type of dpo@trl"),
        ("loss_weights", "method.loss_weights"),
        ("sync_ref_model", "tr_dpo"),
        ("ref_model_mixup_alpha", "tr_dpo, which has the setting share"),
        ("truncation_mode", "truncation"),
        ("desirable_weight", "kto@trl"),
        ("mixture_coef", "nash_md@trl"),
        ("center_rewards_coefficient", "method.center"),
    ],
)
def test_a_key_of_trls_preference_trainers_is_answered_with_theirs(theirs, ours):
    assert ours in refused({"method": "dpo@trl", theirs: 0.1})


def test_every_setting_of_trls_dialects_of_pairs_is_known_at_the_top():
    """But for `encoder`, which TRL's trainer is given as a function."""
    known = {name for method in NAMED if method.endswith("@trl") for name in CATALOGUE[method].settings}
    assert not known - {"alpha", "f_alpha_divergence_coef", "encoder"} - set(LIBRARIES["TRL"])


def test_a_setting_that_a_method_lacks_is_not_answered_with_that_of_another():
    with pytest.raises(InputError) as caught:
        compose({"name": "grpo", "label_smoothing": 0.1})
    assert "label_smoothing: a setting" not in str(caught.value)


def test_a_sections_own_key_comes_before_that_of_another_library():
    assert "Did you mean 'betas'?" in refused({"optim": {"beta": [0.9, 0.9]}})


def test_epsilon_is_the_clip_range_and_not_eps():
    with pytest.raises(InputError) as caught:
        compose({"name": "grpo", "epsilon": 0.2})
    assert "method.clip_low" in str(caught.value)
    assert "'eps'" not in str(caught.value)
    with pytest.raises(InputError, match=r"method\.clip_low"):
        find("grpo").build(epsilon=0.2)


@pytest.mark.parametrize(("theirs", "ours"), VALUES.items())
def test_foreign_values_of_a_type_are_answered(theirs, ours):
    key = {"cosine": ("optim", "schedule"), "constant": ("optim", "schedule")}.get(ours, ("model", "dtype"))
    assert f"It is written {ours} here" in refused({key[0]: {key[1]: theirs}})


def test_a_key_that_no_library_has_is_not_answered():
    assert foreign(["tsk"]) == ""


@pytest.mark.parametrize(
    ("written", "name"),
    [
        *(("GRPO", "grpo"), ("Dr. GRPO", "dr_grpo"), ("Dr-GRPO", "dr_grpo"), ("Dapo", "dapo"), ("RLOO", "rloo")),
        *(("REINFORCE++", "reinforce_pp"), ("GRPO@TRL", "grpo@trl")),
    ],
)
def test_names_as_papers_write_them_find_their_entries(written, name):
    assert find(written).name == name
    assert compose(written).method.name == name
    assert compose({"name": written}).base == name
    assert compose({"base": written, "add": {}}).base == name


def test_names_that_differ_in_a_hyphen_alone_are_not_confused():
    assert spelled("dppo") == "dppo"
    assert spelled("d_ppo") == "d_ppo"
    with pytest.raises(InputError, match="unknown method 'D-PPO'"):
        find("D-PPO")


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("clip_ratio", "method.clip_low, method.clip_high"),
        ("clip_ratio_c", "method.dual_clip"),
        ("kl_loss_coef", "method.kl_coef"),
        ("entropy_coeff", "entropy_bonus"),
        ("loss_agg_mode", "method.aggregate"),
        ("cliprange", "method.clip_low, method.clip_high"),
    ],
)
def test_verls_keys_are_known_without_what_stands_before_them(key, ours):
    with pytest.raises(InputError) as caught:
        compose({"base": "grpo", key: 0.1})
    assert f"is here: {ours}" in str(caught.value) or ours in str(caught.value)
    assert "batch.minibatches" in refused({"batch": {"ppo_mini_batch_size": 4}})


def test_no_answer_names_a_setting_that_the_method_lacks():
    with pytest.raises(InputError, match=r"has no setting or stage 'gamma'. (?!.*method\.gamma)"):
        compose({"base": "grpo", "gamma": 0.9})


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("peft_config", "model.lora"),
        ("push_to_hub", "grouprl export"),
        ("wandb_project", "run.trackers"),
        ("evaluation_strategy", "eval.every"),
        ("ref_model_sync_steps", "kl_iterates"),
        ("reward_pretrain", "reward.model"),
        ("flash_attn", "model.engine"),
        ("rloo_k", "batch.group_size"),
    ],
)
def test_more_keys_of_trl_and_openrlhf(key, ours):
    assert ours in refused({key: 1})


@pytest.mark.parametrize(
    "key",
    [
        "f_alpha_divergence_coef",
        "alpha",
        "train_on_last_step_only",
        "generate_during_eval",
        "min_density_ratio",
        "judge",
        "trust_remote_code",
        "dataloader_num_workers",
        "load_best_model_at_end",
        "label_smoothing_factor",
        "use_rslora",
        "vllm_structured_outputs_regex",
    ],
)
def test_keys_of_preference_trainers_are_answered(key):
    assert f"TRL's '{key}' is here: " in refused({key: 1})
