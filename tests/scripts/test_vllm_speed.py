"""The table of a server's speed: that of the record, with ratios worked out by hand."""

import json

import vllm_speed


def row(client: str, number: int, rate: float) -> dict:
    return {"model": "m", "client": client, "cache": "cold", "round": number, "rate": rate}


def test_the_table_of_the_page_is_that_of_the_record() -> None:
    rows = json.loads(vllm_speed.RECORD.read_text(encoding="utf-8"))["rounds"]
    assert vllm_speed.table(rows) in vllm_speed.PAGE.read_text(encoding="utf-8")
    clients = [*vllm_speed.ASKS, vllm_speed.OURS]
    assert sorted(each["round"] for each in rows) == sorted([*range(5)] * len(clients) * 2 * 2)
    assert {each["client"] for each in rows} == set(clients)


def test_ratios_are_taken_round_by_round() -> None:
    # 2 over 1 and 8 over 2: ln 2 and ln 4, mean 1.0397, deviation 0.4901, half 12.7062 * 0.4901 / sqrt(2) = 4.4035
    ours, theirs = [row("grouprl", 0, 2.0), row("grouprl", 1, 8.0)], [row("other", 1, 2.0), row("other", 0, 1.0)]
    assert vllm_speed.ratio([*ours, *theirs], "other") == "2.83 [0.03, 231.22]"


def test_prompts_of_different_rounds_differ() -> None:
    case = vllm_speed.Case("m", "model", 4, 8, 2)
    assert len(set(vllm_speed.prompts(case, 1)) | set(vllm_speed.prompts(case, 2))) == 8, "no prompt is read twice"
