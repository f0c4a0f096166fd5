"""The adapter to reasoning-gym."""

import ast
import os
import subprocess
import sys

import pytest

from grouprl.core.errors import InputError
from grouprl.rewards import check_reward, score
from grouprl.rewards.catalogue import library
from grouprl.rewards.catalogue.library import Entries, dataset_maker
from grouprl.rewards.verifier_calls import Apart, Spoiled
from grouprl.tasks import load_task

pytest.importorskip("reasoning_gym")


def load(dataset="leg_counting", **options):
    return load_task({"name": f"reasoning_gym:{dataset}", **options})


@pytest.mark.parametrize("dataset", ["leg_counting", "chain_sum", "countdown", "gsm_symbolic", "rubiks_cube"])
def test_the_librarys_scorer_knows_its_own_answers(dataset):
    task = load(dataset)
    assert task.name == f"reasoning_gym:{dataset}"
    assert check_reward(task.reward, task.reward_examples()) == (1 if dataset == "rubiks_cube" else 2)


def test_answers_in_tags_and_partial_scores():
    task = load("leg_counting")
    example = task.example("train", 0)
    answer = example.columns["answer"]
    texts = [f"<answer>1</answer> no, <answer> {answer} </answer>", answer, f" {answer}\n", f"{answer} legs", ""]
    scores = score(task.reward, texts, [example.columns] * 5, ids=list("abcde"))
    assert scores.correct_b.tolist() == [True, True, True, False, False]
    assert scores.reward_b[3] == 0  # hedged: text around the answer earns nothing
    assert scores.problems == []


def test_random_access_is_determined_and_splits_are_disjoint():
    task, again, other = load(seed=1), load(seed=1), load(seed=2)
    for index in (0, 30, 10**9):
        assert task.example("train", index) == again.example("train", index)
    seen = {task.example("train", index).prompt for index in range(150)}
    assert len(seen) > 140
    assert not seen & {other.example("eval", index).prompt for index in range(20)}
    assert task.example("train", 0).prompt != other.example("train", 0).prompt
    assert task.fingerprint() == again.fingerprint() != other.fingerprint()
    assert task.size("train") is None


def test_curriculum_levels():
    easy, hard = load(level=1).example("train", 0), load(level=20).example("train", 0)
    assert (easy.level, hard.level) == (1, 20)
    assert easy.columns["entry"]["metadata"]["difficulty"]["num_animals"] == (1, 1)
    assert hard.columns["entry"]["metadata"]["difficulty"]["num_animals"] == (1, 20)
    config = load(config={"min_animals": 2, "max_animals": 2}).example("train", 0)
    assert config.columns["entry"]["metadata"]["num_animals"] == 2


def test_chat_prompts_and_demonstrations():
    example = load(system="Be brief.").example("train", 0)
    assert [message["role"] for message in example.prompt] == ["system", "user"]
    assert [message["role"] for message in load(chat=True).example("train", 0).prompt] == ["user"]
    assert load().demonstration(load().example("train", 0), 0) is None
    task = load(demonstrations=True)
    assert task.demonstration(example, 0) == example.columns["answer"]


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        ("leg_countin", {}, "no dataset 'leg_countin'. Did you mean 'leg_counting'"),
        ("zzzz", {}, "among them"),
        ("leg_counting", {"lvl": 1}, "no option 'lvl'"),
        ("leg_counting", {"level": 37}, "levels are 1..36"),
        ("leg_counting", {"level": 0}, "greater than or equal to 1"),
        ("leg_counting", {"config": {"max_animal": 1}}, "no 'max_animal'. Did you mean 'max_animals'"),
        ("leg_counting", {"config": {"size": 1}}, "no 'size'"),
        ("leg_counting", {"config": {"max_animals": 1}}, "refuses config .*max_animals must be >= min_animals"),
        ("leg_counting", {"config": {"max_animals": "many"}}, "refuses config"),
        ("gsm_symbolic", {"level": 1}, "no curriculum"),
        ("survo", {"level": 3}, "refuses level 3"),
        ("spell_backward", {"config": {"min_word_len": 22, "max_word_len": 22}}, "cannot sample a prompt.*IndexError"),
    ],
)
def test_wrong_options(dataset, options, message):
    with pytest.raises(InputError, match=message):
        load(dataset, **options)


def test_a_dataset_with_too_few_questions_says_so():
    task = load("coin_flip", config={"min_trials": 2, "max_trials": 2, "allow_exact": False})
    assert len({task.example("train", index).prompt for index in range(30)}) < 10
    with pytest.raises(InputError, match="no prompt for the split 'eval'"):
        task.example("eval", 0)


UNSTEADY = ("codeio", "isomorphic_strings", "word_ladder")
"""Some of the datasets that iterate over sets of texts, or sample from a common generator (version 0.1.25)."""
PRINTED = """
from grouprl.tasks import load_task
tasks = [load_task({"name": f"reasoning_gym:{name}", "seed": 3}) for name in NAMES]
print([(task.example(split, i).prompt, task.solution(task.example(split, i))) for task in tasks for split, i in PLACES])
"""


def test_prompts_are_the_same_whatever_the_hash_seed_of_python():
    names = f"NAMES = {UNSTEADY}\nPLACES = [('train', 0), ('train', 21), ('eval', 1)]"
    command = [sys.executable, "-c", f"{names}\n{PRINTED}"]
    started = [
        subprocess.Popen(command, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True)
        for seed in ("1", "2")
    ]
    said = [process.communicate()[0] for process in started]
    assert said[0] == said[1]
    assert len(set(ast.literal_eval(said[0]))) == 3 * len(UNSTEADY)


def test_entries_made_elsewhere_are_those_of_the_library():
    assert list(map(Entries("chain_sum", 2, {}, 5).__getitem__, range(3))) == [
        dataset_maker("chain_sum", 2, {})(5)[place] for place in range(3)
    ]
    with pytest.raises(InputError, match=r"cannot sample a prompt.*IndexError"):
        Entries("spell_backward", None, {"min_word_len": 22, "max_word_len": 22}, 0)[0]


HACKS = {
    "game_of_life_halting": ("x", "nan", "yes"),
    "complex_arithmetic": ("nan", "nan+nani"),
    "polynomial_multiplication": ("{answer} or 0", "{answer} # x"),
    "gsm_symbolic": ("{answer} or 0",),
    "spell_backward": ("{answer} x",),
    "coin_flip": ("0", "1e999"),
    "prime_factorization": ("x", "9" * 5000),
    "boxnet": ("[[1]]", "null", "-1"),
    "game_of_life": ("{}",),
    "knights_knaves": ("{answer} or 0",),
    "intermediate_integration": ("{answer} or 0", "9**9**9**9"),
    "rubiks_cube": ("(" * 3000, "R" * 10**5),
    "calendar_arithmetic": ("9" * 5000,),
}


@pytest.mark.parametrize("dataset", HACKS)
def test_what_the_library_pays_or_chokes_on_is_worth_nothing(dataset):
    task = load(dataset)
    example = task.example("train", 0)
    texts = [hack.replace("{answer}", str(example.columns["answer"])) for hack in (*HACKS[dataset], example.prompt)]
    texts = [text for text in texts if text != example.columns["answer"]]
    scores = score(task.reward, texts, [example.columns] * len(texts), ids=texts)
    assert scores.problems == []
    assert not scores.correct_b.any(), dict(zip(texts, scores.reward_b, strict=True))
    assert scores.reward_b[-1] == 0  # the prompt itself
    if task.solution(example) is not None:
        assert check_reward(task.reward, task.reward_examples()) == 2


def test_sorted_numbers_that_are_off_by_one_are_worth_nothing():
    task = load("number_sorting")
    for index in range(3):
        example = task.example("train", index)
        own = [float(number) for number in ast.literal_eval(example.columns["answer"])]
        lists = [own, [number + 1 for number in own], [own[0] + 0.5, *own[1:]], own[:-1], own[::-1]]
        texts = [str([f"{number:g}" for number in numbers]) for numbers in lists]
        scores = score(task.reward, texts, [example.columns] * len(texts), ids=texts)
        assert scores.problems == []
        assert scores.reward_b[0] == 1
        assert (scores.reward_b[1:3] == 0).all(), dict(zip(texts, scores.reward_b, strict=True))
        assert (scores.reward_b[3:] < 0.5).all()


def test_another_prompts_board_is_worth_nothing():
    task = load("game_of_life")
    first, second = task.example("train", 0), task.example("train", 1)
    texts = [first.columns["answer"], second.columns["answer"]]
    scores = score(task.reward, texts, [first.columns] * 2, ids=["own", "other"])
    assert scores.reward_b.tolist() == [1, 0]


EVALUATED = (
    "binary_matrix",
    "countdown",
    "intermediate_integration",
    "n_queens",
    "number_sorting",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
)


@pytest.mark.parametrize("dataset", EVALUATED)
def test_no_completion_is_run_as_a_program(dataset, tmp_path):
    task = load(dataset)
    example, canary = task.example("train", 0), tmp_path / "canary"
    patch = "type('x',(),{}).__class__.__base__"
    texts = [
        f"open('{canary}','w')",
        f"__import__('pathlib').Path('{canary}').write_text('x')",
        f"__import__('os').system('touch {canary}')",
        f"[open('{canary}','w')]",
        f"exec(\"open('{canary}','w')\")",
        f"{patch}.score_answer = lambda *a, **k: 1.0",
    ]
    scores = score(task.reward, texts, [example.columns] * len(texts), ids=texts)
    assert scores.problems == []
    assert not canary.exists()
    assert (scores.reward_b < 0.1).all()
    assert check_reward(task.reward, task.reward_examples()) == 2


def test_a_scorer_that_runs_text_is_ended_where_no_grammar_stands_before_it(tmp_path):
    canary = tmp_path / "canary"
    apart = Apart("builtins:eval")
    assert isinstance(apart(f"open('{canary}','w')"), Spoiled)
    assert isinstance(apart("1+1"), Spoiled)
    assert Apart("builtins:eval", True)("1+1") == 2
    assert isinstance(Apart("builtins:eval", True)(f"open('{canary}','w')"), Spoiled)
    assert isinstance(Apart("builtins:eval", True)("9**9**9"), Spoiled)
    assert isinstance(Apart("builtins:eval", True)("[0]*10**10"), Spoiled)
    assert not canary.exists()
    assert Apart("math:sqrt")(4.0) == 2


def test_a_dataset_that_pays_for_junk_is_refused(monkeypatch):
    entry = {"question": "what?", "answer": "True"}
    assert library.problems("x", lambda text, entry: 1.0, [entry])[0] == "'' is worth 1"
    assert library.problems("x", lambda text, entry: 0.0, [entry]) == ["its own answer 'True' is worth 0"]
    monkeypatch.setattr(library, "may_be_scored", lambda *requested: True)
    monkeypatch.setattr(library, "believed", lambda name, text, entry, found: found)
    with pytest.raises(InputError, match="game_of_life_halting' cannot be trained on: 'x' is worth 1"):
        load("game_of_life_halting")
    with pytest.raises(InputError, match="mixes datasets"):
        load("composite")


HEDGED = (
    *(
        "ab",
        "base_conversion",
        "basic_arithmetic",
        "bitwise_arithmetic",
        "calendar_arithmetic",
        "chain_sum",
        "countdown",
    ),
    *(
        "complex_arithmetic",
        "coin_flip",
        "decimal_arithmetic",
        "family_relationships",
        "fraction_simplification",
        "gcd",
    ),
    *("leg_counting", "letter_counting", "number_sorting", "polynomial_equations", "prime_factorization", "puzzle24"),
    *("simple_equations", "simple_integration", "spell_backward", "time_intervals", "word_sorting", "zebra_puzzles"),
)


@pytest.mark.parametrize("dataset", HEDGED)
def test_several_answers_are_none(dataset):
    """The right one beside others, denied, or twice in different words; the right one alone is worth all."""
    task = load_task(f"reasoning_gym:{dataset}")
    example, other = (
        task.example("train", 0),
        next(
            each
            for each in (task.example("train", index) for index in range(1, 20))
            if each.columns["answer"] != task.example("train", 0).columns["answer"]
        ),
    )
    own, wrong = example.columns["answer"], other.columns["answer"]
    assert task.reward(own, entry=example.columns["entry"]) >= 0.99
    hedges = (
        f"{own} or 0",
        f"0 or {own}",
        f"{own} or {wrong}",
        f"{wrong} or {own}",
        f"{own}, {wrong}",
        f"{own} / {wrong}",
    )
    hedges += (f"{own}\n{wrong}", f"not {own}", f"{own}?\n{wrong}?", f"either {own} or {wrong}", f"{own}|{wrong}")
    for hedge in hedges:
        assert task.reward(hedge, entry=example.columns["entry"]) == 0, hedge


def test_one_expression_for_all_is_no_answer():
    task = load_task("reasoning_gym:puzzle24")
    entries = [task.example("train", index).columns["entry"] for index in range(6)]
    for text in ("1*1*4*6", "4*6+1-1", "9*3-3*1"):
        numbers = sorted(int(each) for each in text if each.isdigit())
        for entry in entries:
            if sorted(entry["metadata"]["numbers"]) != numbers:
                assert task.reward(text, entry=entry) == 0
    assert all(task.reward(entry["answer"], entry=entry) == 1 for entry in entries)


def test_a_dataset_that_takes_premises_for_conclusions_is_refused():
    with pytest.raises(InputError, match=r"'propositional_logic' is refused.*premise.*another dataset"):
        load_task("reasoning_gym:propositional_logic")
