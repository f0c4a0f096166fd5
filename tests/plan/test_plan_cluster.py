"""Plans for clusters: sizes by hand, limits, a simulation that agrees with the arithmetic, and words for what fails."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    GPTBigCodeConfig,
    LlamaConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
)
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.cli.plan_on import shortlist
from grouprl.config.run import load_config, parse_config
from grouprl.core.errors import InputError
from grouprl.plan.chosen_experts import DENSE
from grouprl.plan.cluster.calibration import calibration
from grouprl.plan.cluster.hardware import Accelerator, Cluster, accelerators, parse_cluster
from grouprl.plan.cluster.placement import placements, splits, why_no_room
from grouprl.plan.cluster.public_records import judged, likely, public_ratios, public_records, ratios
from grouprl.plan.cluster.roofline import (
    Efficiency,
    decoded,
    forward_flops,
    room_for,
    sampling,
    syncing,
    token_seconds,
    training,
)
from grouprl.plan.cluster.simulation import Simulation, simulate
from grouprl.plan.cluster.workload import Workload, grown, workload
from grouprl.plan.plan import plan
from grouprl.policy.language.tiny import build_tiny, char_tokenizer
from grouprl.policy.layer_sizes import sizes_of

IDEAL = Efficiency(1, 1, 1, 1, 1, 1, 0, 0)
UNIT = Accelerator("unit", memory=1e12, bandwidth=1e9, flops=1e12, link=1e9, network=1e8, source="")
SMALL = Workload(
    parameters=1_100_000,
    trainable=1_100_000,
    layers=2,
    hidden=100,
    kv_width=50,
    vocabulary=1000,
    prompts=4,
    group_size=2,
    prompt_tokens=10,
    completion_tokens=20,
    longest=60,
    updates=1,
    passes=1,
    scorings=0,
    steps=10,
    recomputed=False,
)


def cluster(nodes: int = 1, per_node: int = 1) -> Cluster:
    return Cluster(nodes, per_node, UNIT)


@pytest.mark.parametrize(
    ("text", "nodes", "per_node", "name"),
    [("4x8xH100", 4, 8, "H100"), ("8xa100-40", 1, 8, "A100-40"), ("l4", 1, 1, "L4"), ("2×4×MI300X", 2, 4, "MI300X")],
)
def test_clusters_are_named_as_they_are_written(text: str, nodes: int, per_node: int, name: str) -> None:
    found = parse_cluster(text)
    assert (found.nodes, found.per_node, found.accelerator.name, found.count) == (
        nodes,
        per_node,
        name,
        nodes * per_node,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4x8xH10", "Did you mean 'H100'"),
        ("8", "nodes x accelerators"),
        ("", "nodes x accelerators"),
        ("x8xH100", "no accelerator"),
        ("0x8xH100", "A cluster has 1 to"),
        ("9999x9999xH100", "A cluster has 1 to"),
    ],
)
def test_what_is_no_cluster_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_cluster(text)


def test_the_slowest_link_that_ranks_span_counts() -> None:
    two = cluster(2, 4)
    assert (two.speed(1), two.speed(4), two.speed(5)) == (1e9, 1e9, 1e8)


def test_every_accelerator_says_where_its_numbers_are_from() -> None:
    for kind in accelerators().values():
        assert kind.source
        assert 0 < kind.network <= kind.link < kind.bandwidth < kind.flops


def test_sizes_by_hand() -> None:
    assert (SMALL.head, SMALL.body) == (100_000, 1_000_000)
    assert replace(SMALL, tied=False).body == 900_000
    assert (SMALL.rows, SMALL.tokens, SMALL.sampled_tokens) == (8, 240, 160)
    assert SMALL.cached_bytes(1) == 2 * 2 * 50 * 2
    products = 2 * 1_000_000 * 240 + 2 * 100_000 * 160
    assert forward_flops(SMALL) == products + 4 * 2 * 100 * 240 * 15


def test_a_token_waits_for_the_slowest_of_memory_products_and_launches() -> None:
    found = token_seconds(SMALL, cluster(), 1, 8, 20, IDEAL)
    assert found["memory"] == (1_100_000 * 2 + 8 * 20 * 400) / 1e9
    assert found["products"] == (2 * 1_100_000 * 8 + 4 * 2 * 100 * 8 * 20) / 1e12
    assert found["links"] == found["launches"] == 0
    slow = token_seconds(SMALL, cluster(1, 2), 2, 8, 20, replace(IDEAL, layer_seconds=1e-3, hop_seconds=1e-4))
    assert slow["memory"] == found["memory"] / 2
    assert slow["launches"] == 2e-3
    assert slow["links"] == pytest.approx(2 * 2 * (1e-4 + 2 * 8 * 100 * 2 / 1e9))


def test_decoding_fills_free_slots_and_charges_what_is_active() -> None:
    assert decoded([3, 1, 2], 3, lambda active: 1.0) == 3
    assert decoded([3, 1, 2], 2, lambda active: 1.0) == 3  # the third begins after one token, and ends with the first
    assert decoded([3, 1, 2], 1, lambda active: 1.0) == 6
    assert decoded([2, 1], 2, lambda active: float(active)) == 2 + 1
    assert decoded([], 4, lambda active: 1.0) == 0


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 10))
def test_slots_do_not_change_how_many_tokens_are_decoded(lengths: list[int], slots: int) -> None:
    assert decoded(lengths, slots, float) == pytest.approx(sum(lengths))  # a token costs what is active: one each
    assert decoded(lengths, slots, lambda active: 1.0) >= max(max(lengths), sum(lengths) / slots)


def test_training_takes_six_flops_a_weight_and_token_and_eight_where_activations_are_computed_anew() -> None:
    plain, anew = (training(replace(SMALL, recomputed=again), cluster(), 1, 1, IDEAL) for again in (False, True))
    assert plain is not None
    assert anew is not None
    assert plain.compute == pytest.approx(3 * forward_flops(SMALL) / 1e12)
    assert anew.compute == pytest.approx(4 * forward_flops(SMALL) / 1e12)
    assert plain.communication == plain.exposed == plain.scoring == 0
    lora = training(replace(SMALL, trainable=1000), cluster(), 1, 1, IDEAL)
    assert lora is not None
    assert lora.compute == pytest.approx(2 * forward_flops(SMALL) / 1e12)
    scored = training(replace(SMALL, scorings=2), cluster(), 1, 1, IDEAL)
    assert scored is not None
    assert scored.scoring == pytest.approx(2 * forward_flops(SMALL) / 1e12)


def test_transfers_count_where_they_exceed_the_computation() -> None:
    found = training(SMALL, cluster(1, 2), 2, 2, IDEAL)
    assert found is not None
    sent = (2 * 2 * 1_100_000 + 4 * 1_100_000) * 0.5 / 1e9
    assert found.communication == pytest.approx(sent)
    assert found.exposed == pytest.approx(sent - found.compute)
    copies = training(SMALL, cluster(1, 2), 2, 1, IDEAL)
    assert copies is not None
    assert copies.communication == pytest.approx(2 * 4 * 1_100_000 * 0.5 / 1e9)


def test_a_model_that_does_not_fit_has_no_time() -> None:
    tight = Cluster(1, 1, replace(UNIT, memory=16 * 1_100_000))
    assert training(SMALL, tight, 1, 1, IDEAL) is None


def test_learners_that_share_rows_have_room_for_longer_ones_and_send_keys() -> None:
    tight = Cluster(1, 4, replace(UNIT, memory=2.5e7))
    long = replace(SMALL, longest=2000)
    assert training(long, tight, 4, 4, IDEAL) is None
    assert training(replace(long, context=4), tight, 4, 4, IDEAL) is not None
    deep = replace(SMALL, layers=300)
    kept, moved = (training(replace(deep, offloads=each), cluster(), 1, 1, IDEAL) for each in (False, True))
    assert kept.memory - moved.memory == pytest.approx(SMALL.tokens * 299 * 100 * 2), "inputs of all layers but one"
    assert training(replace(SMALL, context=4), cluster(1, 2), 2, 2, IDEAL) is None, "four cannot share on two"
    alone, shared = (training(replace(SMALL, context=by), cluster(1, 2), 2, 2, IDEAL) for by in (1, 2))
    sent = 10 * 120 * 2 * 50 * 2 / 1e9
    assert shared.communication - alone.communication == pytest.approx(sent)
    narrow = Cluster(1, 1, replace(UNIT, memory=2_200_000))
    assert room_for(SMALL, narrow, 1) == 0
    assert sampling(SMALL, narrow, 1, 1, IDEAL) is None
    assert placements(SMALL, narrow, IDEAL) == []
    assert "narrow" not in why_no_room(SMALL, narrow)
    assert "GB" in why_no_room(SMALL, narrow)


def test_a_run_without_room_is_told_what_each_rank_needs() -> None:
    """By hand: 16 bytes for each of 8 M weights in 4 ranks; two layers of 4 M numbers, twice, of 2 bytes; 70 tokens."""
    work = replace(SMALL, parameters=8_100_000, trainable=8_100_000)
    small = Cluster(2, 2, replace(UNIT, memory=60e6))
    assert placements(work, small, IDEAL) == []
    said = why_no_room(work, small)
    assert "each of its 4 has 0.054 GB to plan with" in said
    assert "needs 0.0324 GB for its part of weights, gradients and moments, 0.032 for the layers" in said
    assert "for a row of 70 tokens; a copy that samples takes another 0.0162 GB and caches, over at most 2" in said


def test_prompts_are_computed_once_per_group_and_copies_share_the_rows() -> None:
    one, two = (sampling(SMALL, cluster(1, 2), count, 1, IDEAL) for count in (1, 2))
    assert one is not None
    assert two is not None
    flops = 2 * 1_000_000 * 4 * 10 + 4 * 2 * 100 * 4 * 10 * 5
    assert one.prefill == pytest.approx(flops / 1e12)
    assert two.prefill == pytest.approx(one.prefill / 2)
    assert two.replicas == 2
    assert two.decode < one.decode


def test_new_weights_are_gathered_and_sent() -> None:
    assert syncing(SMALL, cluster(), 1, 0, IDEAL) == 0
    assert syncing(SMALL, cluster(2, 1), 1, 1, IDEAL) == pytest.approx(2.2e6 / 1e8)
    assert syncing(SMALL, cluster(1, 3), 2, 1, IDEAL) == pytest.approx(2 * 2.2e6 / 1e9)


def test_lengths_keep_their_mean_and_bound() -> None:
    work = replace(SMALL, completion_tokens=200, longest=4096)
    lengths = work.lengths(4000)
    assert lengths.mean() == pytest.approx(200, rel=0.02)
    assert replace(work, longest=300).lengths(4000).max() == 300
    assert set(replace(work, completion_tokens=300, longest=300).lengths(10)) <= set(range(1, 301))


@pytest.mark.parametrize("text", ["8xH100", "4x8xH100", "16x8xA100"])
def test_the_simulation_agrees_with_the_arithmetic_where_lengths_are_alike(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("workload", "simulation"):
        monkeypatch.setattr(f"grouprl.plan.cluster.{place}.SPREAD", 1e-9)
    work = replace(SMALL, parameters=10**9, trainable=10**9, hidden=2048, layers=16, prompts=256, completion_tokens=500)
    work = replace(work, longest=2000, vocabulary=32000)
    for placed in shortlist(placements(work, parse_cluster(text), Efficiency())):
        found = simulate(work, parse_cluster(text), placed, Efficiency(), steps=8)
        if placed.kind == "asynchronous":  # several steps at once share the reading of weights, which no plan counts on
            assert placed.training.seconds <= found.step_seconds <= 1.06 * placed.seconds, placed
        else:
            assert found.step_seconds == pytest.approx(placed.seconds, rel=0.06), placed
        assert found.staleness <= placed.staleness
        assert 0 < found.sampler_busy <= 1
        assert 0 < found.learner_busy <= 1


def test_a_simulation_is_repeatable_and_its_seed_matters() -> None:
    on = parse_cluster("8xH100")
    best = placements(replace(SMALL, prompts=64), on, Efficiency())[0]
    runs = [simulate(replace(SMALL, prompts=64), on, best, Efficiency(), seed=seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


def test_samplers_wait_at_their_bound_of_staleness() -> None:
    on = parse_cluster("2x8xH100")
    work = replace(SMALL, prompts=64)
    placed = next(each for each in placements(work, on, Efficiency()) if each.kind == "asynchronous")
    for bound in (0, 1, 3):
        run = Simulation(work, on, placed, Efficiency(), staleness=bound)
        run.run(8)
        assert max(run.stale) <= bound
        assert sorted(run._started) == list(range(8))


def test_more_accelerators_never_slow_the_best_placement_of_a_node() -> None:
    work = replace(SMALL, parameters=10**9, trainable=10**9, hidden=2048, layers=16, vocabulary=32000, prompts=64)
    seconds = [placements(work, parse_cluster(f"{n}xH100"), Efficiency())[0].seconds for n in (1, 2, 4, 8)]
    assert seconds == sorted(seconds, reverse=True)
    assert grown(work, 3).rows == 3 * work.rows
    assert splits(parse_cluster("8xH100")) == list(range(1, 8))
    assert splits(parse_cluster("4x8xH100")) == [8, 16, 24]
    assert len(splits(parse_cluster("128x8xH100"))) < 130


def test_the_command_plans_and_refuses(tmp_path: Path) -> None:
    run = CliRunner()
    said = run.invoke(app, ["plan", "addition", "--on", "8xH100", "--price", "2", "--json"])
    assert said.exit_code == 0, said.output
    data = json.loads(said.output)
    best = data["placements"][0]
    assert data["cost"] == pytest.approx(2 * data["accelerator_hours"])
    assert data["accelerator_hours"] == pytest.approx(best["seconds"] * data["workload"]["steps"] * 8 / 3600)
    assert {"colocated", "asynchronous", "separate"} == {each["kind"] for each in data["placements"]}
    told = run.invoke(app, ["plan", "addition", "--on", "2xL4", "--completion-tokens", "5"])
    assert told.exit_code == 0, told.output
    assert "of 5 tokens on average" in " ".join(told.output.split())
    assert calibration().words.split(".")[0] in " ".join(told.output.split())
    for arguments in (["--price", "2"], ["--on", "3xX"], ["--on", "L4", "--completion-tokens", "900"]):
        assert isinstance(run.invoke(app, ["plan", "addition", *arguments]).exception, SystemExit | InputError)


def test_a_folder_without_weights_can_be_planned_for_elsewhere(tmp_path: Path) -> None:
    model, tokenizer = build_tiny("0123456789+=", hidden=16, layers=1, heads=2, intermediate=16)
    model.config.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    asked = ["plan", "addition", "--set", f"model.name={tmp_path}"]
    said = CliRunner().invoke(app, [*asked, "--on", "8xH100", "--json"])
    assert said.exit_code == 0, said.output
    assert json.loads(said.output)["workload"]["parameters"] == sum(each.numel() for each in model.parameters())
    with pytest.raises(InputError, match="has no weights"):
        plan(load_config("addition", [f"model.name={tmp_path}"]))


def test_a_record_is_predicted_by_the_others() -> None:
    found = judged([("a", "1", 20.0, 10.0), ("b", "1", 80.0, 10.0), ("c", "1", 10.0, 10.0)])
    assert [each.predicted for each in found] == pytest.approx([10 * math.sqrt(8), 10 * math.sqrt(2), 40.0])
    assert [each.missed for each in found] == [True, True, True]
    assert found[0].error == pytest.approx(math.sqrt(8) / 2 - 1)


def test_an_interval_by_hand() -> None:
    ratios = [math.exp(0.5), math.exp(0.7), math.exp(0.9)]  # mean 0.7, standard deviation 0.2
    found, half = likely(10.0, ratios), 2.920 * 0.2 * math.sqrt(4 / 3)
    assert (found.low, found.middle, found.high) == pytest.approx(
        (10 * math.exp(0.7 - half), 10 * math.exp(0.7), 10 * math.exp(0.7 + half))
    )


def test_releases_of_one_configuration_count_once_and_do_not_predict_each_other() -> None:
    measured = [("a", "1", 40.0, 10.0), ("a", "2", 90.0, 10.0), ("b", "1", 20.0, 10.0), ("c", "1", 80.0, 10.0)]
    assert ratios(measured) == pytest.approx({"a": 6.0, "b": 2.0, "c": 8.0})
    assert [each.predicted for each in judged(measured)] == pytest.approx(
        [40.0, 40.0, 10 * math.sqrt(48), 10 * math.sqrt(12)]
    )


def test_published_records_lie_within_the_interval_and_all_but_one_within_that_of_the_others() -> None:
    found = public_records()
    whole = [likely(each.planned, public_ratios()) for each in found]
    assert all(interval.low < each.measured < interval.high for each, interval in zip(found, whole, strict=True))
    by_configuration = ratios([(x.configuration, x.release, x.measured, x.planned) for x in found])
    assert tuple(by_configuration.values()) == public_ratios()
    others = [[x for name, x in by_configuration.items() if name != each.configuration] for each in found]
    intervals = [likely(each.planned, each_ratios) for each, each_ratios in zip(found, others, strict=True)]
    outside = [x for x, interval in zip(found, intervals, strict=True) if not interval.low < x.measured < interval.high]
    assert len(found) == 12
    assert len(by_configuration) == 8
    assert [f"{each.configuration} ({each.release})" for each in outside] == [
        "Llama-3.1-8B on 8xGB200, colocated (0.5)"
    ]
    assert sum(each.missed for each in found) == 4


def test_a_token_passes_through_some_experts_of_a_mixture_only(tmp_path: Path) -> None:
    """Two of eight experts of 3·32·16 numbers in each of 3 layers; all are read once many tokens have chosen."""
    tokenizer = char_tokenizer("0123456789+=|- ?<>:;,.abcdefghijklmnopqrstuvwxyz")
    config = Qwen3MoeConfig(hidden_size=32, intermediate_size=64, moe_intermediate_size=16, num_experts=8,
                            num_experts_per_tok=2, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                            vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=tokenizer.eos_token_id)  # fmt: skip
    config.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = plan(parse_config({"task": "addition", "model": {"name": str(tmp_path)}}), elsewhere=True)
    assert found.model is not None
    assert found.model.intermediate == 2 * 16
    work = workload(found)
    numbers = 3 * 8 * 3 * 32 * 16
    assert work.experts.idle == numbers * 6 // 8
    assert work.layer_weights - work.body == numbers * 6 // 8
    assert work.read_by(1) == work.body + work.head
    assert work.read_by(2) == work.layer_weights + work.head - numbers * 6 / 8 * 0.75
    dense = replace(work, experts=DENSE)
    assert forward_flops(dense) - forward_flops(work) == 2 * work.experts.idle * work.tokens
    assert dense.read_by(5) == dense.parameters - (0 if dense.tied else dense.head)


def described_model(folder: Path, width: int, layers: int) -> Path:
    """The configuration and the tokenizer of a model, without weights."""
    tokenizer = char_tokenizer("0123456789+= ")
    sizes = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = LlamaConfig(**sizes, num_attention_heads=4, vocab_size=len(tokenizer), tie_word_embeddings=True, **ends)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_pass_elsewhere_has_room_for_the_layers_of_a_teacher(tmp_path: Path) -> None:
    """A law that tests/training/test_teacher_ranks.py holds against measured peaks, here of bfloat16."""
    student, teacher = described_model(tmp_path / "s", 64, 2), described_model(tmp_path / "t", 128, 3)
    batch = {"prompts": 8, "group_size": 2}
    config = {"task": "addition", "model": {"name": str(student)}, "batch": batch, "warmup": {"steps": 0}}
    config["sampling"] = {"max_new_tokens": 8}
    alone = workload(plan(parse_config({**config, "method": "grpo"}), elsewhere=True))
    taught = {**config, "method": "minillm", "model": {"name": str(student), "reference": str(teacher)}}
    work = workload(plan(parse_config(taught), elsewhere=True))
    block_s, block_t = (4 * h * h + 3 * h * 3 * h + 2 * h for h in (64, 128))
    assert alone.layers_at_once == pytest.approx(2 * 2 * block_s, rel=0.01)
    assert work.layers_at_once == pytest.approx(2 * 2 * (block_s + block_t), rel=0.01)
    assert (
        work.layers_at_once
        == alone.layers_at_once
        + workload(
            plan(parse_config({**config, "method": "grpo", "model": {"name": str(teacher)}}), elsewhere=True)
        ).layers_at_once
    )
    without = replace(work, gathered=alone.gathered)
    times = [training(each, cluster(1, 2), 2, 2, IDEAL) for each in (without, work)]
    assert times[1].memory - times[0].memory == 2 * (work.layers_at_once - alone.layers_at_once)


FALCON = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 8}


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        (FalconConfig(**FALCON), 1),
        (FalconConfig(**FALCON, multi_query=False), 4),
        (FalconConfig(**FALCON, num_kv_heads=2, new_decoder_architecture=True), 4),
        (GPTBigCodeConfig(n_embd=32, n_head=4, n_layer=1, vocab_size=8, n_positions=8), 1),
        (LlamaConfig(**FALCON, num_key_value_heads=2), 2),
    ],
    ids=["falcon", "falcon of many", "falcon that repeats its own", "bigcode", "llama"],
)
def test_the_width_of_keys_is_that_of_the_cache(config: PretrainedConfig, heads: int) -> None:
    cache = AutoModelForCausalLM.from_config(config).eval()(torch.tensor([[1, 2, 3]]), use_cache=True).past_key_values
    keys = cache.layers[0].keys
    assert sizes_of(config)[3] == heads * 8 == keys.shape[1] * keys.shape[3]
