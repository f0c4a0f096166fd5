"""The adapter to reasoning-gym."""

import pytest

from grouprl.errors import InputError
from grouprl.rewards import check_reward, score
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
    question = task.question("train", 0)
    answer = question.columns["answer"]
    texts = [f"<answer>1</answer> no, <answer> {answer} </answer>", answer, f" {answer}\n", f"{answer} legs", ""]
    scores = score(task.reward, texts, [question.columns] * 5, ids=list("abcde"))
    assert scores.correct_b.tolist() == [True, True, True, False, False]
    assert 0 < scores.reward_b[3] < 1
    assert scores.problems == []


def test_random_access_is_determined_and_splits_are_disjoint():
    task, again, other = load(seed=1), load(seed=1), load(seed=2)
    for index in (0, 30, 10**9):
        assert task.question("train", index) == again.question("train", index)
    seen = {task.question("train", index).prompt for index in range(150)}
    assert len(seen) > 140
    assert not seen & {other.question("eval", index).prompt for index in range(20)}
    assert task.question("train", 0).prompt != other.question("train", 0).prompt
    assert task.fingerprint() == again.fingerprint() != other.fingerprint()
    assert task.size("train") is None


def test_curriculum_levels():
    easy, hard = load(level=1).question("train", 0), load(level=20).question("train", 0)
    assert (easy.level, hard.level) == (1, 20)
    assert easy.columns["entry"]["metadata"]["difficulty"]["num_animals"] == (1, 1)
    assert hard.columns["entry"]["metadata"]["difficulty"]["num_animals"] == (1, 20)
    config = load(config={"min_animals": 2, "max_animals": 2}).question("train", 0)
    assert config.columns["entry"]["metadata"]["num_animals"] == 2


def test_chat_prompts_and_demonstrations():
    question = load(system="Be brief.").question("train", 0)
    assert [message["role"] for message in question.prompt] == ["system", "user"]
    assert [message["role"] for message in load(chat=True).question("train", 0).prompt] == ["user"]
    assert load().demonstration(load().question("train", 0), 0) is None
    task = load(demonstrations=True)
    assert task.demonstration(question, 0) == question.columns["answer"]


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
        ("spell_backward", {"config": {"min_word_len": 22, "max_word_len": 22}}, "cannot draw a question.*IndexError"),
    ],
)
def test_wrong_options(dataset, options, message):
    with pytest.raises(InputError, match=message):
        load(dataset, **options)


def test_a_dataset_with_too_few_questions_says_so():
    task = load("coin_flip", config={"min_trials": 2, "max_trials": 2, "allow_exact": False})
    assert len({task.question("train", index).prompt for index in range(30)}) < 10
    with pytest.raises(InputError, match="no question for the split 'eval'"):
        task.question("eval", 0)


def test_datasets_that_depend_on_the_hash_seed_warn(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.warns(UserWarning, match="PYTHONHASHSEED=0"):
        load("ransom_note")


def test_no_warning_with_a_fixed_hash_seed(monkeypatch, recwarn):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    load("ransom_note")
    assert not [w for w in recwarn if "PYTHONHASHSEED" in str(w.message)]
