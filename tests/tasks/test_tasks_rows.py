"""Prompts from JSON lines and Hugging Face datasets."""

import json

import pytest

from grouprl.core.errors import InputError
from grouprl.records.characters import PRINTABLE
from grouprl.records.examples import prompt_text
from grouprl.rewards import score
from grouprl.tasks import load_task

ROWS = [{"prompt": f"{n}+1=", "answer": str(n + 1), "hint": f"near {n}"} for n in range(40)]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(path, rows):
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(row if isinstance(row, str) else json.dumps(row))
            file.write("\n")


def jsonl(rows=ROWS, **options):
    write("q.jsonl", rows)
    return load_task({"name": "jsonl:q.jsonl", **options})


def prompts(task, split):
    return [task.example(split, index).prompt for index in range(task.size(split))]


def test_questions_splits_and_reward():
    task = jsonl()
    assert (task.size("train"), task.size("eval")) == (36, 4)
    assert not set(prompts(task, "train")) & set(prompts(task, "eval"))
    assert set(prompts(task, "train")) | set(prompts(task, "eval")) == {row["prompt"] for row in ROWS}
    example = task.example("train", 0)
    assert example == task.example("train", 0)
    assert example.columns in ROWS
    assert score(task.reward, [example.columns["answer"]], [example.columns], ids=["x"]).reward_b == [1.0]


def test_the_characters_of_rows_are_those_that_can_be_typed_and_their_own():
    assert jsonl().alphabet == PRINTABLE
    rows = [{"prompt": [{"role": "user", "content": "über"}], "answer": 3, "hints": ["näher", "\u202e"], "größe": "x"}]
    task = jsonl(rows, system="→", hints="hints", eval_fraction=0)
    assert task.alphabet == PRINTABLE + "äü\u202e→"


def test_the_id_names_the_line_and_blank_lines_count():
    task = jsonl(["", *ROWS[:10], "   "], eval_fraction=0)
    assert [task.example("train", index).id for index in (0, 9)] == ["q.jsonl:2", "q.jsonl:11"]
    assert (task.size("train"), task.size("eval")) == (10, 0)


def test_the_split_depends_on_the_prompts_alone():
    held_out = set(prompts(jsonl(), "eval"))
    assert set(prompts(jsonl(ROWS[::-1]), "eval")) == held_out
    chat = jsonl(system="Be brief.")
    assert {chat.example("eval", index).columns["prompt"] for index in range(4)} == held_out


def test_equal_prompts_are_on_one_side():
    task = jsonl([*ROWS, *ROWS], eval_fraction=0.25)
    assert (task.size("train"), task.size("eval")) == (60, 20)
    assert not set(prompts(task, "train")) & set(prompts(task, "eval"))


def test_an_eval_file():
    write("held.jsonl", ROWS[:5])
    task = jsonl(ROWS[5:], eval="held.jsonl")
    assert (task.size("train"), task.size("eval")) == (35, 5)
    assert task.example("eval", 0).id == "held.jsonl:1"
    with pytest.raises(InputError, match=r"line 5 of q.jsonl is also in line 5 of held.jsonl.*drop_overlap"):
        jsonl([*ROWS[5:9], ROWS[4]], eval="held.jsonl")
    assert jsonl(ROWS, eval="held.jsonl", drop_overlap=True).size("train") == 35


def test_chat_messages():
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "2+2"},
    ]
    rows = [{"prompt": messages, "answer": "4"}]
    assert jsonl(rows, eval_fraction=0).example("train", 0).prompt == tuple(messages)
    with_system = jsonl(rows, eval_fraction=0, system="Short.").example("train", 0).prompt
    assert with_system == ({"role": "system", "content": "Short."}, *messages)
    assert jsonl(ROWS[:1], eval_fraction=0, chat=True).example("train", 0).prompt == (
        {"role": "user", "content": "0+1="},
    )
    plain = jsonl(ROWS[:1], eval_fraction=0, system="S").example("train", 0).prompt
    assert plain == ({"role": "system", "content": "S"}, {"role": "user", "content": "0+1="})


CALL = {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}


def test_a_content_of_text_parts_is_one_text():
    parts = [{"type": "text", "text": "2+2"}, {"type": "text", "text": "=", "image_url": None}]
    prompt = [{"role": "user", "content": parts}]
    assert jsonl([{"prompt": prompt, "answer": "4"}], eval_fraction=0).example("train", 0).prompt == (
        {"role": "user", "content": "2+2="},
    )


def test_chat_messages_keep_their_calls_and_show_them():
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "name": None},
        {"role": "tool", "content": "2", "tool_call_id": "a", "name": "add"},
    ]
    found = jsonl([{"prompt": messages, "answer": "4"}], eval_fraction=0).example("train", 0).prompt
    assert found[1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert found[2] == messages[2]
    shown = 'user: Hi\nassistant: {"name": "add", "arguments": {"x": 1}}\ntool: 2'
    assert prompt_text(found) == shown


def test_demonstrations_from_a_column():
    task = jsonl([*ROWS[:2], {**ROWS[2], "hint": None}], demonstration="hint", eval_fraction=0)
    assert [task.demonstration(task.example("train", index), 0) for index in range(3)] == ["near 0", "near 1", None]
    assert jsonl().demonstration(jsonl().example("train", 0), 0) is None


def test_solutions_hints_and_variants_from_columns():
    rows = [
        {**ROWS[0], "proof": "0+1 is 1", "steps": ["add", "add 1"], "also": ["1+0=", "one and none="]},
        {**ROWS[1], "proof": None, "steps": None, "also": None},
    ]
    task = jsonl(rows, solution="proof", hints="steps", variants="also", chat=True, eval_fraction=0)
    full, empty = task.example("train", 0), task.example("train", 1)
    assert (task.solution(full), task.hints(full)) == ("0+1 is 1", ("add", "add 1"))
    assert (task.solution(empty), task.hints(empty), task.variants(empty)) == (None, (), (empty,))
    assert [form.prompt[0]["content"] for form in task.variants(full)] == ["0+1=", "1+0=", "one and none="]
    assert len({form.id for form in task.variants(full)}) == 3
    assert jsonl(rows, solution="proof", eval_fraction=0).hints(full) == ("0+", "0+1 ", "0+1 is")


def test_rewards_by_import_path_mapping_and_list(tmp_path):
    (tmp_path / "r.py").write_text("def near(completion, hint):\n    return completion in hint\n")
    task = jsonl(reward=["exact_match", {"name": "r.py:near", "weight": 0.5}])
    example = task.example("train", 0)
    scores = score(task.reward, [example.columns["prompt"][:-3]], [example.columns], ids=["x"])
    assert scores.components["near"] == [1.0]
    assert jsonl(reward={"name": "numeric_match", "tolerance": 1}).reward("5", "6") == 1.0


def test_another_prompt_column():
    assert jsonl(prompt="hint", eval_fraction=0).example("train", 0).prompt == "near 0"


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "q.jsonl holds no prompts"),
        (["", "  "], {}, "q.jsonl holds no prompts"),
        ([ROWS[0], "", "{oops"], {}, "Line 3 of q.jsonl is not JSON"),
        ([ROWS[0], "[1]"], {}, "Line 2 of q.jsonl is a JSON list"),
        ([ROWS[0], {"answer": "1"}], {}, "prompt column 'prompt' is missing in line 2 of q.jsonl"),
        ([{}], {}, "It is empty"),
        (ROWS, {"prompt": "promt"}, r"Did you mean 'prompt'\? Set the option 'prompt'"),
        ([{"prompt": 3, "answer": 1}], {}, "prompt in line 1 of q.jsonl is 3"),
        ([{"prompt": "", "answer": 1}], {}, "not empty"),
        ([{"prompt": [], "answer": 1}], {}, "not empty"),
        ([{"prompt": [{"role": "usr", "content": "x"}], "answer": 1}], {}, "chat message in line 1 .* 'role' among"),
        ([{"prompt": ["x"], "answer": 1}], {}, "chat message in line 1"),
        ([{"prompt": [{"role": "user", "content": []}], "answer": 1}], {}, "chat message in line 1"),
        *(
            ([{"prompt": [{"role": "user", "content": [part]}], "answer": 1}], {}, "part .* in line 1.*pictures")
            for part in ({"type": "image", "url": "a.png"}, {"type": "text", "text": 5}, {"type": "text"}, "x")
        ),
        ([{"prompt": [{"role": "user"}], "answer": 1}], {}, "text 'content'"),
        ([{"prompt": [{"role": "assistant", "tool_calls": "add"}], "answer": 1}], {}, "'tool_calls', are a list"),
        ([{"prompt": [{"role": "assistant", "tool_calls": [{"name": "add"}]}], "answer": 1}], {}, "'tool_calls', are"),
        ([{"prompt": [{"role": "user", "content": "x", "nmae": "y"}], "answer": 1}], {}, "Did you mean 'name'"),
        (
            [{"prompt": [{"role": "system", "content": "x"}], "answer": 1}],
            {"system": "y"},
            "brings a system message",
        ),
        (
            [ROWS[0], {"prompt": "x", "anwser": "1"}],
            {"reward": "exact_match"},
            r"needs the column 'answer', which line 2 .* 'anwser'",
        ),
        (ROWS, {"reward": ["exact_match", "reaches_target"]}, "'reaches_target' needs the column 'numbers'"),
        (ROWS, {"reward": "exact"}, "no reward 'exact'"),
        (ROWS, {"reward": 3}, "'reward.*' of task 'jsonl' is 3"),
        (ROWS, {"demonstration": "hnt"}, "demonstration column 'hnt' is missing in line 1 .* 'hint'"),
        ([{**ROWS[0], "hint": 3}], {"demonstration": "hint"}, "text or null"),
        (ROWS, {"solution": "hnt"}, "solution column 'hnt' is missing in line 1 .* 'hint'"),
        ([{**ROWS[0], "hint": 3}], {"solution": "hint"}, "solution is text or null"),
        (ROWS, {"hints": "hint"}, "Hints are a list of texts, or null"),
        ([{**ROWS[0], "also": ["a", 3]}], {"variants": "also"}, "Variants are a list of prompts"),
        (ROWS, {"eval_fraction": 1.0}, "'eval_fraction' of task 'jsonl' is 1.0"),
        (ROWS[:1], {}, "No prompt of q.jsonl is left to train on"),
        (ROWS, {"eval": "nope.jsonl"}, "file 'nope.jsonl' cannot be read"),
        (ROWS, {"evaluation": "x"}, "no option 'evaluation'"),
    ],
)
def test_wrong_files_and_options(rows, options, message):
    with pytest.raises(InputError, match=message):
        jsonl(rows, **options)


def test_the_columns_of_a_reward_that_nobody_chose_are_looked_at_when_it_is_used():
    task = jsonl([{"prompt": f"p{n}"} for n in range(20)])
    with pytest.raises(InputError, match=r"'exact_match' needs the column 'answer'"):
        task.check_columns(task.reward)
    task.check_columns(lambda completion: 1.0)


def test_bytes_that_are_not_utf8_and_files_that_are_not_there(tmp_path):
    (tmp_path / "latin.jsonl").write_bytes('{"prompt": "é"}'.encode("latin-1"))
    with pytest.raises(InputError, match=r"Line 1 of latin.jsonl is not JSON.*utf"):
        load_task("jsonl:latin.jsonl")
    with pytest.raises(InputError, match=r"'none.jsonl' cannot be read: No such file"):
        load_task("jsonl:none.jsonl")


def test_a_byte_order_mark_is_no_error(tmp_path):
    (tmp_path / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(ROWS[0]).encode())
    assert load_task({"name": "jsonl:bom.jsonl", "eval_fraction": 0}).size("train") == 1


def test_an_index_beyond_the_size():
    task = jsonl(ROWS[:2], eval_fraction=0)
    with pytest.raises(InputError, match=r"Prompt 2 .* can be 0\.\.1"):
        task.example("train", 2)
    with pytest.raises(InputError, match="the split is empty"):
        task.example("eval", 0)
    with pytest.raises(InputError, match="no split 'evl'"):
        task.size("evl")


def test_the_fingerprint_covers_the_rows():
    fingerprint = jsonl().fingerprint()
    assert jsonl().fingerprint() == fingerprint
    assert jsonl([{**ROWS[0], "answer": "7"}, *ROWS[1:]]).fingerprint() != fingerprint
    assert jsonl(chat=True).fingerprint() != fingerprint


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    return datasets


def test_hugging_face_files_and_folders(datasets):
    table = datasets.Dataset.from_list(ROWS)
    table.to_parquet("q.parquet")
    table.save_to_disk("saved")
    write("q.jsonl", ROWS)
    same = jsonl()
    for spec in ("hf:q.parquet", "hf:saved", "hf:q.jsonl"):
        task = load_task(spec)
        assert (task.size("train"), task.size("eval")) == (36, 4)
        assert set(prompts(task, "eval")) == set(prompts(same, "eval"))
        assert task.example("train", 3).columns in ROWS
    assert load_task("hf:q.parquet").example("train", 0).id.startswith("q.parquet/train:")


def test_hugging_face_splits_and_messages(datasets):
    messages = [[{"role": "user", "content": row["prompt"]}] for row in ROWS]
    rows = [{**row, "prompt": message} for row, message in zip(ROWS, messages, strict=True)]
    splits = {"train": datasets.Dataset.from_list(rows[:30]), "test": datasets.Dataset.from_list(rows[30:])}
    datasets.DatasetDict(splits).save_to_disk("both")
    task = load_task({"name": "hf:both", "eval_split": "test"})
    assert (task.size("train"), task.size("eval")) == (30, 10)
    assert task.example("eval", 0).prompt == ({"role": "user", "content": "30+1="},)
    with pytest.raises(InputError, match=r"both has no split 'tset'\. Did you mean 'test'"):
        load_task({"name": "hf:both", "eval_split": "tset"})


def test_hugging_face_errors(datasets, tmp_path):
    (tmp_path / "q.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InputError, match=r"ends in '.txt'"):
        load_task("hf:q.txt")
    for name in ("empty", "bad.json"):
        with pytest.raises(InputError, match=f"dataset '{name}' cannot be loaded"):
            load_task(f"hf:{name}")
