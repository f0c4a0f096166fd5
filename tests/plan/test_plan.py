"""What a plan says of a run: arithmetic by hand, sizes of models, settings and their sources, refusals."""

import json
import math
import re

import pytest
import torch
from transformers import LlamaConfig, PreTrainedModel

import grouprl
from grouprl.algorithms.augment.papers.budget_cuts import BudgetCuts
from grouprl.algorithms.method import Method
from grouprl.algorithms.part import RunFacts
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.evaluation.evaluate import evaluate
from grouprl.methods.compose import Resolved, compose
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import ResolvedRun, resolve
from grouprl.plan.checks import refusals, room, without_effect
from grouprl.plan.codes import EFFECTS
from grouprl.plan.memory import Cost, batch_arithmetic, human, memory, peak
from grouprl.plan.model_facts import read_model
from grouprl.plan.plan import objective, plan, run_facts
from grouprl.policy import Tokens, build_tiny, char_tokenizer, load_policy
from grouprl.tasks import load_task
from policies import ALPHABET, SIZES, make_model

CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def make(**data):
    return plan(parse_config({"task": "addition", **data}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder without chat template, 64 positions."""
    path = tmp_path_factory.mktemp("model")
    model, tokenizer = build_tiny(
        "0123456789+=| abcdef", hidden=16, layers=1, heads=2, intermediate=32, max_positions=64
    )
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def examples(tmp_path):
    """A JSON-lines file of chat prompts."""
    path = tmp_path / "chat.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"1+{i}="}], "answer": str(1 + i)} for i in range(30)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


# --- arithmetic -----------------------------------------------------------------------------------------------------


def test_batch_arithmetic_by_hand():
    config = parse_config(
        {
            "steps": 100,
            "batch": {"prompts": 8, "group_size": 4, "minibatches": 2, "epochs": 3, "tokens_per_microbatch": 100},
        }
    )
    a = batch_arithmetic(config, prompt_tokens=6, max_new_tokens=24, refill_rounds=1)
    assert (a.completions, a.rows_per_update, a.updates_per_rollout, a.updates) == (32, 16, 6, 600)
    assert (a.row, a.tokens_per_rollout, a.tokens_per_update) == (30, 960, 480)
    assert (a.tokens_per_pass, a.passes_per_update) == (100, 6)  # three rows of 30 tokens fit in 100


def test_the_largest_of_unequal_minibatches_is_planned():
    config = parse_config({"batch": {"prompts": 8, "group_size": 4, "minibatches": 3}})
    a = batch_arithmetic(config, prompt_tokens=6, max_new_tokens=24, refill_rounds=1)
    assert (a.completions, a.rows_per_update, a.tokens_per_update) == (32, 12, 360)  # 3, 3 and 2 groups


def test_a_row_longer_than_a_pass_is_a_pass():
    config = parse_config({"batch": {"prompts": 2, "group_size": 2, "tokens_per_microbatch": 10}})
    assert batch_arithmetic(config, 6, 24, 1).passes_per_update == 4


def test_a_pass_of_processes_that_share_rows_has_a_slice_of_each():
    config = parse_config(
        {"model": {"context_parallel": 4}, "batch": {"prompts": 2, "group_size": 2, "tokens_per_microbatch": 10}}
    )
    a = batch_arithmetic(config, 6, 24, 1)
    assert (a.row, a.tokens_per_pass, a.passes_per_update) == (30, 10, 4)
    longer = batch_arithmetic(config, 40, 40, 1)
    assert (longer.row, longer.tokens_per_pass, longer.passes_per_update) == (80, 20, 4)
    alone = batch_arithmetic(parse_config({"batch": {"tokens_per_microbatch": 10}}), 40, 40, 1)
    assert alone.tokens_per_pass == 80, "a row that is longer than a pass is one all the same"
    model, _ = read_model(resolve(config))
    size = {cost.what: cost.bytes for cost in memory(model, longer, reference=0)}
    whole = {cost.what: cost.bytes for cost in memory(model, alone, reference=0)}
    assert 4 * size["activations of a pass"] == whole["activations of a pass"]
    assert size["keys of shared rows"] == 3 * 80 * 2 * model.kv_width * 4
    assert "keys of shared rows" not in whole
    assert peak(memory(model, longer, reference=0)) >= sum(
        size[name] for name in ("weights", "gradients", "Adam moments", "activations of a pass", "keys of shared rows")
    )


def test_passes_are_those_that_the_policy_makes():
    """On a CPU a pass holds no more than its cache likes, whatever the setting allows."""
    sizes = {"hidden": 64, "layers": 2, "intermediate": 176}
    config = parse_config({"model": {"name": "tiny", "tiny": sizes, "device": "cpu"}, "batch": {"prompts": 64}})
    task = load_task("addition")
    facts, _ = read_model(resolve(config))
    policy = load_policy("tiny", alphabet=task.alphabet, token_budget=config.batch.tokens_per_microbatch, **sizes)
    batch = batch_arithmetic(config, 10, 20, 1, model=facts)
    assert batch.tokens_per_pass == policy.pass_tokens == 8_000_000 // (8 * 64 + 4 * 176 + 2 * 64)
    assert batch.passes_per_update == math.ceil(64 * config.batch.group_size / (batch.tokens_per_pass // 30))


def test_parameters_are_those_of_the_model():
    config = parse_config({"model": {"name": "tiny", "tiny": {"hidden": 32, "layers": 2}}})
    task = load_task("addition")
    facts, _ = read_model(resolve(config))
    policy = load_policy("tiny", alphabet=task.alphabet, hidden=32, layers=2)
    assert facts.parameters == sum(p.numel() for p in policy.parameters())
    assert (facts.layers, facts.hidden, facts.vocabulary, facts.positions) == (2, 32, 3 + len(task.alphabet), 512)


def test_lora_counts_the_parameters_that_peft_adds(folder):
    pytest.importorskip("peft")
    config = parse_config({"model": {"name": str(folder), "lora": {"r": 4}}})
    facts, _ = read_model(resolve(config))
    policy = load_policy(folder, lora={"r": 4})
    assert facts.trainable == sum(p.numel() for p in policy.parameters()) < facts.parameters


@pytest.mark.parametrize("tied", [True, False])
def test_heads_of_agents_are_counted_on_one_trunk(tied, tmp_path):
    make_model(LlamaConfig(**{**SIZES, "tie_word_embeddings": tied})).save_pretrained(tmp_path)
    char_tokenizer(ALPHABET).save_pretrained(tmp_path)
    task = {"name": "preferences", "annotators": 2, "apart": True}
    run = resolve(
        parse_config({"task": task, "method": "mah_dpo", "model": {"name": str(tmp_path), "agents": "heads"}})
    )
    facts, _ = read_model(run)
    assert facts.trainable == facts.parameters == sum(p.numel() for p in build_policy(run).parameters())


def test_a_folder_is_sized_without_loading_its_weights(folder, monkeypatch):
    parameters = sum(p.numel() for p in load_policy(folder).parameters())
    with monkeypatch.context() as patched:
        patched.setattr(PreTrainedModel, "from_pretrained", classmethod(lambda *args, **kwargs: pytest.fail("loaded")))
        found = make(model=str(folder))
    assert found.model.parameters == parameters
    assert found.refusals == ()


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").rename(folder / "hidden")
    try:
        with pytest.raises(InputError, match="has no weights"):
            make(model=str(folder))
    finally:
        (folder / "hidden").rename(folder / "model.safetensors")


def test_memory_by_hand():
    config = parse_config({"batch": {"prompts": 2, "group_size": 3}})
    model, _ = read_model(resolve(config))
    batch = batch_arithmetic(config, 10, 20, 1)
    size = {cost.what: cost.bytes for cost in memory(model, batch, reference=model.parameters)}
    assert size["weights"] == size["gradients"] == size["reference copy"] == 4 * model.parameters
    assert size["Adam moments"] == 8 * model.parameters
    assert size["rollout cache"] == 6 * 30 * 3 * 2 * 64 * 4
    assert "reference copy" not in {cost.what for cost in memory(model, batch, reference=0)}


def test_peak_takes_the_larger_of_update_and_rollout():
    costs = [Cost("weights", 100, ""), Cost("activations of a pass", 7, ""), Cost("log-prob chunk", 3, "")]
    assert peak([*costs, Cost("rollout cache", 50, "")]) == 150
    assert peak([*costs, Cost("rollout cache", 5, "")]) == 110


@pytest.mark.parametrize("engine", ["transformers", "lean"])
@pytest.mark.parametrize(("hidden", "layers", "intermediate", "kv_heads"), [(64, 3, 176, 4), (64, 2, 352, 2)])
def test_activation_estimate_is_what_autograd_keeps(engine, hidden, layers, intermediate, kv_heads):
    size = {"hidden": hidden, "layers": layers, "intermediate": intermediate, "kv_heads": kv_heads, "heads": 4}
    policy = load_policy("tiny", alphabet="abcd", engine=engine, token_budget=10**6, **size)
    tokens = Tokens.of([[1] + [3 + (i >> j) % 2 for j in range(15)] for i in range(16)], [[4] * 32] * 16)
    weights = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    kept = {}

    def remember(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        output = policy.evaluate(tokens, ["log_prob"], grad=True)["log_prob"]
    measured = sum(size for place, size in kept.items() if place not in weights)
    assert output.requires_grad
    config = parse_config({"model": {"tiny": size}, "batch": {"prompts": 16, "group_size": 1}})
    model, _ = read_model(resolve(config))
    costs = memory(model, batch_arithmetic(config, 16, 32, 1), reference=0)
    estimate = next(cost.bytes for cost in costs if cost.what == "activations of a pass")
    assert 0.9 * measured < estimate < 1.25 * measured


def test_human_sizes():
    assert [human(n) for n in (0, 512, 2048, 1.5 * 2**30)] == ["0 B", "512 B", "2 KiB", "1.5 GiB"]
    assert human(152_000, "") == "152 k"
    assert [human(n) for n in (1000, 1010 * 2**20, 999.6)] == ["1000 B", "1010 MiB", "1000 B"]


# --- objective, settings, provenance --------------------------------------------------------------------------------


def test_objective_is_put_together_from_the_parts():
    method = compose({"base": "grpo", "add": {"regularize": [{"part": "kl_loss", "coef": 0.1}]}}).method
    text = objective(method)
    assert text.startswith("L = 1/B · Σ_i 1/|y_i| · Σ_t [ ℓ_t  + 0.1")
    assert "ℓ_t = -min(ρ·A, clip(ρ, 0.8, 1.2)·A)" in text
    assert "π_ref" in text
    assert "critic's own loss" in objective(compose("ppo").method)


def test_settings_say_where_they_come_from():
    found = make(steps=5, optim={"lr": 1e-3}, method={"name": "grpo", "clip_high": 0.3})
    origin = {s.key: s.origin for s in found.settings}
    assert (origin["steps"], origin["optim.lr"], origin["optim.warmup_steps"]) == (
        "set",
        "set, same as default",
        "default",
    )
    assert "method" not in origin
    methods = {s.key: (s.value, s.origin) for s in found.method_settings}
    assert methods["clip_high"] == (0.3, "set by you")
    assert methods["clip_low"][1].startswith("default of grpo")
    assert all(origin for _, origin in methods.values())


def test_changed_parts_are_shown_beside_the_entry():
    found = make(method={"base": "grpo", "advantage": {"scale": "none"}, "aggregate": "token_mean"})
    methods = {s.key: s.value for s in found.method_settings}
    assert methods["advantage.scale"] == "none"
    assert methods["aggregate"] == "token_mean"
    assert methods["clip_high"] == 0.2
    assert "scale" not in methods  # the entry's own setting no longer decides anything


def test_every_setting_of_an_entry_is_shown_unless_overruled():
    own = set(compose("grpo").method.settings)
    assert {s.key for s in make(method="grpo").method_settings} == own
    changed = make(method={"base": "grpo", "advantage": {"part": "relative", "scale": "none"}, "objective": "clipped"})
    keys = {s.key for s in changed.method_settings}
    assert own - keys == {"scale", "eps", "alone", "clip_low", "clip_high", "dual_clip"}
    assert {"advantage", "advantage.scale", "objective.clip_low", "kl_coef"} <= keys


def test_a_method_without_base_lists_all_its_parts():
    parts = {"name": "mine", "advantage": "relative", "objective": "clipped", "aggregate": "token_mean"}
    methods = {s.key: s for s in make(method=parts).method_settings}
    assert methods["objective.clip_high"].origin == "default of the part"
    assert methods["aggregate"].origin == "set by you"


def test_every_setting_of_the_configuration_is_listed_once():
    keys = [s.key for s in make().settings]
    assert len(keys) == len(set(keys)) > 40
    assert {"model.tiny.hidden", "reward.function", "run.threads", "eval.k"} <= set(keys)


def test_plain_data_is_json():
    data = json.loads(json.dumps(make().as_data()))
    assert data["batch"]["completions"] == 512
    assert data["config"]["task"] == "addition"
    assert data["peak"] > data["costs"][0]["bytes"]


def facts_of(config, method, budget, task):
    """What the parts of `method` know of a run on `task`."""
    sampling = config.sampling.model_copy(update={"max_new_tokens": budget})
    return run_facts(ResolvedRun(config.model_copy(update={"sampling": sampling}), task, Resolved(method, "")))


def test_run_facts():
    config = parse_config({"batch": {"group_size": 4, "minibatches": 2}, "model": {"dtype": "bfloat16"}})
    addition = load_task("addition")
    facts = facts_of(config, compose("grpo").method, 16, addition)
    assert facts == RunFacts(
        updates_per_rollout=2,
        group_size=4,
        has_reference=False,
        named_reference=False,
        exact_sampler=False,
        rounded=True,
        max_length=16,
        forms=0,
        compares=False,
        kinds={"level": 1, "answer": 27},
        variants=2,
        alphabet=addition.alphabet,
        vectors=False,
        cases=1,
    )
    few = facts_of(parse_config({"data": {"prompts": 7}}), compose("grpo").method, 16, addition)
    assert few.examples == 7
    mixed = load_task({"name": "reverse", "length": 3, "shortest": 2})
    assert facts_of(parse_config({"data": {"prompts": 40}}), compose("grpo").method, 5, mixed).kinds["level"] == 2
    with_kl = compose({"name": "grpo", "kl_coef": 0.04}).method
    assert facts_of(parse_config({}), with_kl, 16, addition).has_reference
    assert not facts_of(parse_config({"model": {"reference": "none"}}), with_kl, 16, addition).has_reference


# --- refusals -------------------------------------------------------------------------------------------------------


def test_a_sound_run_is_not_refused():
    found = make(method="grpo", batch={"minibatches": 2})
    assert found.refusals == ()
    assert found.idle == ()
    found.raise_if_refused()


def test_group_of_one_with_a_group_baseline():
    found = make(method="grpo", batch={"group_size": 1})
    with pytest.raises(InputError, match=r"batch\.group_size is 1.*Use batch\.group_size of 2 or more"):
        found.raise_if_refused()


def test_all_reasons_are_told_at_once():
    found = make(method={"name": "grpo", "kl_coef": 0.1}, batch={"group_size": 1}, model={"reference": "none"})
    assert len(found.refusals) == 2
    with pytest.raises(InputError, match=r"this run cannot work:\n.*group baseline.*\n.*reference"):
        found.raise_if_refused()


def test_on_policy_methods_take_one_update():
    method = compose("grpo").method.with_parts(on_policy=True, name="mine")
    config = parse_config({"batch": {"minibatches": 2, "epochs": 2}})
    facts = facts_of(config, method, 16, load_task("addition"))
    (reason,) = refusals(config, method, facts, load_task("addition"))
    assert (reason.code, reason.severity, reason.key) == ("one_update_only", "refusal", "batch.minibatches")
    assert reason.text.startswith("mine is only correct with one update per rollout")
    assert reason.text.endswith("is 4")
    assert reason.remedy == "Set both to 1"
    one = parse_config({})
    assert refusals(one, method, facts_of(one, method, 16, load_task("addition")), load_task("addition")) == []


def test_fields_that_no_run_has():
    class Turns(type(compose("grpo").method.advantage)):
        def needs(self):
            return ("turn_reward_bs",)

    method = compose("grpo").method.with_parts(advantage=Turns())
    config = parse_config({"batch": {"minibatches": 2}})
    (reason,) = refusals(config, method, facts_of(config, method, 16, load_task("addition")), load_task("addition"))
    assert (reason.code, reason.key) == ("missing_field", "batch.turn_reward_bs")
    assert "reads batch.turn_reward_bs" in reason.text


ACTED = {
    *(
        "arpo_branch",
        "scaling_inter",
        "m_grpo",
        "hi_agent",
        "hrpo",
        "ssp",
        "cpmobius",
        "thor",
        "mt_grpo",
        "gigpo",
        "g_ra",
        "ufo",
        "igpo",
        "salt",
    ),
    *("sdpo_segment", "spa_rl", "multi_turn_ppo", "promed", "duration_aware", "ui_s1", "rank_grpo"),
    *(
        "ppo_control",
        "fixpo",
        "props",
        "ppo_ad",
        "pdppo",
        "ippo",
        "mapo_lso",
        "gmah",
        "rlap",
        "dec_dpo",
        "tb",
        "db",
        "subtb",
    ),
    "subpo",
    *("r3l", "echo", "search_r2", "retroformer"),
}
"""Entries for tasks that are acted in over turns."""


def test_every_catalogue_entry_can_be_planned():
    """No entry but one of turns needs what a run of single completions lacks, and each says what it does."""
    from grouprl.methods import CATALOGUE

    config, task = parse_config({"data": {"prompts": 512}}), load_task("ponder")
    for name, entry in CATALOGUE.items():
        method: Method = entry.build()
        found = [str(each) for each in refusals(config, method, facts_of(config, method, 16, task), task)]
        if name == "mra":
            assert "tells 2 strategies apart, but the task tells of 1" in found[0]
        elif name in ACTED:
            told = ("which a run of single completions does not have", "with an environment")
            assert any(word in each for word in told for each in found), name
            assert name not in ("f_dvl", "odice") or "Set task: trajectories:" in found[0]
        elif name in ("poppy", "compass"):
            assert "the task tells the policy of no strategies" in found[0]
        elif name == "text2grad":
            assert "span_feedback has no function to ask" in found[0]
        elif name == "hnpg":
            assert "hybrid_step learns from stored trajectories too" in found[0]
        elif name == "ami":
            assert "needs 3 agents, but the task has 1" in found[0]
        elif name == "adpo":
            assert "informative_pairs chooses among stored pairs" in found[0]
        elif name == "minillm":
            assert "model.reference names no model" in found[0]
        elif name == "weighted_bc":
            assert "stored_returns draws stored rows" in found[0]
        elif name in ("f_dvl", "odice"):
            assert "residual_weight weighs stored actions" in found[0]
        else:
            assert found == [], name
        assert all(part.words() for part in method.parts()), name


def test_settings_that_only_fit_together_are_not_called_idle():
    found = make(method={"name": "pppo", "prefix_start": 0.5, "prefix_limit": 0.5})
    assert not any("prefix" in sentence for sentence in found.idle)
    with pytest.raises(InputError, match=r"method pppo: prefix_mask: limit 0.35 < start 0.5"):
        compose({"name": "pppo", "prefix_start": 0.5})


def test_a_method_whose_outputs_no_language_model_has_is_refused():
    """Only entries for policies over arrays read others, so that no entry for text is refused for its outputs."""
    from grouprl.core.outputs import LANGUAGE_OUTPUTS, OF_ROWS, has_output
    from grouprl.methods import CATALOGUE

    names = (*LANGUAGE_OUTPUTS, *OF_ROWS)
    others = {n for n, e in CATALOGUE.items() if not all(has_output(names, each) for each in e.build().outputs)}
    assert others == {"gmah", "mapo_lso", "mo_dt", "oppo", "rlap"}
    found = plan(parse_config({"task": "ponder", "method": "mo_dt"})).refusals
    assert any("mo_dt reads the output 'to_go_error' of the policy, but a language model lacks it" in s for s in found)
    assert not any("'log_prob'" in each for each in found)


def test_a_statistic_that_no_part_fills_in_is_refused_with_the_part_that_would() -> None:
    base = {"task": "addition", "model": "tiny"}
    scaled = {"base": "grpo", "advantage_transform": ["difficulty_scale"]}
    found = plan(resolve(parse_config({**base, "method": scaled}))).refusals
    said = (
        "difficulty_scale (advantage_transform) reads stats.hardness, which no part fills in and a language model lacks"
    )
    assert [line for line in found if line.startswith(said)] == [f"{said}. Add irl_reward (pretrain), or leave it out"]
    filled = {**scaled, "pretrain": ["irl_reward"], "reward_transform": ["learned_reward"]}
    found = plan(resolve(parse_config({**base, "method": filled}))).refusals
    assert not any("no part fills in" in line for line in found)


@pytest.mark.parametrize("model", ["mlp", "tiny"])
def test_a_policy_that_a_part_cannot_train_is_refused(model: str):
    task = {"name": "env:grouprl.envs.construction.workshop:Workshop", "turns": 20}
    found = plan(parse_config({"task": task, "method": "ppo_ad", "model": model, "steps": 20})).refusals
    assert f"achievement_phases (update) cannot train {model}. Set model: achievements" in map(str, found)


def test_a_task_without_forms_is_refused_where_only_forms_earn():
    config, task = parse_config({"method": "ada_grpo"}), load_task("addition")
    method = compose("ada_grpo").method
    (reason,) = refusals(config, method, facts_of(config, method, 16, task), task)
    assert "the task recognises none" in str(reason)
    parallel = compose("parallel_r1").method
    idle = without_effect(config, parallel, facts_of(config, parallel, 16, task))
    assert any("never earn more" in str(each) for each in idle)


def test_completions_that_do_not_fit():
    assert room(64, 10, 54) == []
    assert room(None, 10, 10_000) == []
    (reason,) = make(model={"tiny": {"max_positions": 20}}).refusals
    assert "need 23 positions, but the model has 20" in reason
    assert "Lower sampling.max_new_tokens to 13" in reason


def test_a_task_without_prompts(examples):
    found = make(task={"name": f"jsonl:{examples}", "eval_fraction": 0.0}, model={"name": "tiny"})
    assert any("has no held-out prompts" in reason for reason in found.refusals)
    (examples.parent / "empty.jsonl").write_text("")
    with pytest.raises(InputError):
        make(task=f"jsonl:{examples.parent / 'empty.jsonl'}").raise_if_refused()


def test_chat_data_and_a_model_without_template(folder, examples):
    found = make(task=f"jsonl:{examples}", model=str(folder), sampling={"max_new_tokens": 8})
    with pytest.raises(InputError, match=r"chat messages and the tokenizer has no chat template.*instruct model"):
        found.raise_if_refused()


def test_chat_data_and_a_model_with_template(folder, examples, tmp_path):
    policy = load_policy(folder)
    policy.tokenizer.chat_template = CHAT
    policy.save(tmp_path / "chat-model")
    found = make(task=f"jsonl:{examples}", model=str(tmp_path / "chat-model"), sampling={"max_new_tokens": 8})
    assert found.refusals == ()
    assert found.batch.prompt_tokens == 5  # "1+10=" is five characters, the template adds none
    assert evaluate(policy, load_task(f"jsonl:{examples}"), prompts=2, max_new_tokens=4).prompts == 2


def test_text_that_the_tokenizer_lacks(folder):
    (reason,) = make(task={"name": "countdown"}, model=str(folder)).refusals
    assert "not in the tokenizer's alphabet" in reason


def test_warm_up_without_demonstrations(examples):
    found = make(task=f"jsonl:{examples}", warmup={"steps": 5}, sampling={"max_new_tokens": 4})
    assert any("has no demonstrations to imitate. Set warmup.steps to 0" in reason for reason in found.refusals)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"method": "grop"}, "unknown method 'grop'.*'grpo'"),
        ({"method": {"name": "grpo", "clip_hihg": 1}}, "clip_hihg.*clip_high"),
        ({"task": "adition"}, "no task 'adition'.*'addition'"),
        ({"task": {"name": "addition", "digit": 3}}, "no option 'digit'.*'digits'"),
        ({"model": "./nowhere"}, "folder ./nowhere does not exist"),
        ({"reward": {"function": "exact_mach"}}, "no reward 'exact_mach'.*'exact_match'"),
        ({"reward": {"function": "no_such_module:f"}}, "module 'no_such_module'.*cannot be found"),
    ],
)
def test_unknown_names_are_refused_at_once(data, words):
    with pytest.raises(InputError, match=words):
        make(**data)


def test_a_model_that_is_not_here_is_said():
    found = make(model="nobody/has-this")
    assert found.model is None
    assert found.peak is None
    assert any("nobody/has-this is not on this machine" in note for note in found.notes)
    assert found.short()


# --- options without effect -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"batch": {"minibatches": 1}}, "cannot act: with one update per rollout"),
        ({"warmup": {"lr": 0.1}}, "warmup.lr has no effect: warmup.steps is 0"),
        ({"optim": {"schedule": "constant", "min_lr_ratio": 0.1}}, "optim.min_lr_ratio has no effect"),
        ({"optim": {"warmup_steps": 500}}, "optim.lr is never reached"),
        ({"eval": {"every": 0, "prompts": 9}}, "eval.prompts has no effect"),
        ({"eval": {"every": 300}}, "eval.every has no effect"),
        ({"model": {"reference": "initial"}}, "never reads it"),
        ({"model": {"reference": "none"}}, "model.reference none has no effect"),
        ({"sampling": {"top_k": 1}}, "all completions of a group are the same"),
        ({"reward": {"on_error": "raise", "max_failed_fraction": 0.5}}, "max_failed_fraction has no effect"),
        ({"steps": 0, "batch": {"group_size": 4}}, "batch.* has no effect: steps is 0"),
    ],
)
def test_settings_without_effect_are_named(data, words):
    config = parse_config({"method": "grpo", **data})
    method = compose(config.method).method
    found = without_effect(config, method, facts_of(config, method, 16, load_task("addition")))
    (idle,) = [each for each in found if words in str(each)]
    assert idle.code in EFFECTS
    assert idle.key or "group are the same" in words or "batch.*" in words


def test_defaults_are_not_complained_about():
    config = parse_config({"method": "grpo", "batch": {"minibatches": 2}})
    method = compose(config.method).method
    assert without_effect(config, method, facts_of(config, method, 16, load_task("addition"))) == []


def test_notes():
    assert any("gradient is biased" in note for note in make(sampling={"top_p": 0.9}).notes)
    (note,) = [n for n in make(model={"dtype": "bfloat16", "device": "cpu"}).notes if "small updates" in n]
    assert "mixed keeps float32 weights alone. Its products are" in note
    assert "slow on" not in note
    assert any("a killed run starts over" in note for note in make(steps=5, run={"checkpoint_every": 9}).notes)


# --- completions besides those of a rollout, longer prompts
# -------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("grpo", ""),
        ("vas", ""),
        ({"name": "vas", "refresh_every": 4}, "variance_sampling: 8 completions to each of 64 prompts every 4 steps"),
        ("dots", "difficulty_targeted: 3 completions to each of 64 prompts every 2 steps"),
        ({"name": "dots", "predict": "ledger"}, ""),
        ("self", "greedy_filter: 2 greedy completions per rollout"),
        ("gvm_raft", "gradient_variance: 2 × 8 = 16 completions per rollout"),
        ("xrpo", "uncertainty_rounds: about 6 completions per rollout"),
        ("pppo", "continuations: up to 6 × 8 = 48 continuations per rollout"),
        ("pta_grpo", "plan_tree: up to 6 × 3 = 18 completions per rollout"),
        ("brpo", "budget_cuts: 6 × 4 cuts × 4 = 96 completions of at most 16 tokens per rollout"),
        ("ghpo", "group_hints: 3 completions, up to 3 times, for each prompt"),
        ("scaf_grpo", "row_hint: one completion per hint of the task"),
        ("remax", "greedy baseline: 2 greedy completions per rollout"),
        ("vapo", "value_pretraining: 50 × 6 = 300 completions before the first step"),
    ],
)
def test_the_plan_says_what_else_is_sampled(method, said):
    found = make(method=method, batch={"prompts": 2, "group_size": 3}, data={"prompts": 64}).extra_samples
    assert bool(found) == bool(said)
    assert not said or found[0].startswith(said)


def test_hints_and_exemplars_count_as_prompts():
    plain, hinted, seeded = (make(method=m).batch.prompt_tokens for m in ("grpo", "ghpo", "xrpo"))
    task = load_task("addition")
    example = task.example("train", 0)
    hint = task.solution(example)
    assert hinted == plain + math.ceil(0.75 * len(hint)) + len(task.with_hint(example, "")) - len(example.prompt)
    assert seeded > plain


def test_a_long_prompt_far_behind_is_found_before_it_is_sampled(tmp_path):
    rows = [{"prompt": f"{number:0{90 if number == 200 else 9}}", "answer": "1"} for number in range(300)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = {
        "task": f"jsonl:{tmp_path / 'rows.jsonl'}",
        "reward": {"function": "exact_match"},
        "warmup": {"steps": 0},
        "sampling": {"max_new_tokens": 4},
        "model": {"tiny": {"max_positions": 64}},
    }
    (reason,) = make(**given).refusals
    assert re.search(r"a prompt of 91 tokens \(prompt '.*:201'\) and completions of up to 4 need 95 positions", reason)
    assert "Shorten it, or give the model more positions" in reason
    task = load_task(given["task"])
    place = next(i for i in range(task.size("train")) if len(task.example("train", i).prompt) == 90)
    assert place > 32
    assert make(**given | {"data": {"prompts": place}}).refusals == ()


def test_hints_need_room():
    def refused(method, positions):
        return make(method=method, model={"tiny": {"max_positions": positions}}).refusals

    assert refused("grpo", 24) == ()
    assert "a prompt of 14 tokens" in refused("ghpo", 24)[0]


def test_cut_thoughts_need_room_for_their_completions():
    task = load_task("ponder")
    facts = facts_of(parse_config({}), compose("brpo").method, 15, task)
    assert BudgetCuts().behind(task, facts) == len(task.ellipsis + task.thought_end) + 15
    assert BudgetCuts(budgets=(0.2, 0.4), summary_tokens=2).behind(task, facts) == 0
    (said,) = room(40, 10, 15, 16)
    assert "and 16 more" in said
    assert "Lower sampling.max_new_tokens to 14 or less" in said


def test_a_missing_part_is_named():
    found = make(method={"base": "grpo", "augment": ["cross_pairs"]}).refusals
    filled = "Add allocation: variants or allocation: strategies"
    assert found[0] == f"grpo reads batch.keys.variant, which no part of it fills. {filled}"


def test_a_reason_that_several_checks_find_is_told_once(tmp_path):
    chosen, rejected = ([{"role": "assistant", "content": word}] for word in "ba")
    rows = [
        {"prompt": [{"role": "user", "content": letter * 2}], "chosen": chosen, "rejected": rejected}
        for letter in "abcdefghijklmnopqrst"
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {"task": f"pairs:{tmp_path / 'pairs.jsonl'}", "model": "tiny", "method": "dpo", "batch": {"group_size": 2}}
    (refusal,) = plan(parse_config(config)).refusals
    assert "has no chat template" in refusal
    assert "chat_template.jinja" in refusal


def test_a_plan_prints_as_a_few_lines_and_what_rules_it_out() -> None:
    made = grouprl.plan({"task": "reverse", "method": "grpo", "batch": {"prompts": 2, "group_size": 1}})
    assert repr(made) == str(made)
    assert repr(made).splitlines()[: len(made.short())] == made.short()
    assert made.refusals
    assert all(reason in repr(made) for reason in made.refusals)


@pytest.mark.parametrize(
    "parts",
    [
        {"augment": ["demonstration_row"]},
        {"augment": ["demonstration_switch"]},
        {"buffer": "demonstrations"},
        {"pretrain": ["irl_reward"], "reward_transform": ["learned_reward"]},
    ],
)
def test_solutions_are_no_completions_of_an_environments_episodes(parts):
    """Otherwise the run ends in its first step."""
    method, said = (
        {"base": "grpo", **parts},
        "adds right solutions as completions, and an episode of this task is played",
    )
    assert any(said in line for line in make(task="guess", method=method).refusals)
    assert not any(said in line for line in make(method=method).refusals)
