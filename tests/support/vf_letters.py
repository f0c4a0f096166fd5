"""Environments written for verifiers before 0.4, of which the trainer knows nothing."""

import time

import verifiers as vf
from datasets import Dataset

WORDS = ["ab", "ba", "abb", "bab", "aab", "bba", "aba", "baa", "abab", "baba"]


def rows(words):
    return Dataset.from_list(
        [{"question": f"Copy {word}", "answer": word, "info": {"size": len(word)}} for word in words]
    )


def exact(completion, answer):
    return float(completion[-1]["content"].strip() == answer)


async def overlap(parser, completion, answer):
    said = parser.parse_answer(completion) or ""
    return sum(a == b for a, b in zip(said, answer, strict=False)) / len(answer)


def length(completion):
    return float(len(completion[-1]["content"]))


def broken(completion):
    raise ValueError("no such column")


def shortest(completions):
    """The shortest completions of the group share a reward."""
    sizes = [len(each[-1]["content"]) for each in completions]
    return [float(size == min(sizes)) for size in sizes]


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


class Guessing(vf.MultiTurnEnv):
    """Says for every guess how many letters are right, until all are."""

    async def setup_state(self, state, **kwargs):
        state["tries"] = 0
        return state

    @vf.stop
    async def solved(self, state, **kwargs):
        return bool(state["trajectory"]) and self._said(state) == state["answer"]

    @staticmethod
    def _said(state):
        return state["trajectory"][-1]["completion"][-1]["content"].strip()

    async def env_response(self, messages, state, **kwargs):
        state["tries"] += 1
        said = self._said(state)
        if said == "hang":
            time.sleep(3600)
        if said == "fail":
            raise vf.InfraError("the server is gone")
        right = sum(a == b for a, b in zip(said, state["answer"], strict=False))
        return [{"role": "user", "content": f"{right} right"}]


def fewer_tries(state):
    return 1.0 / (1 + state["tries"])


class Owned(vf.StatefulToolEnv):
    """A tool that is given what the model does not see."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.add_tool(self.secret, args_to_skip=["word"])

    async def secret(self, position: int, word: str) -> str:
        """Return a letter.

        Args:
            position: which, from 0.
            word: the word.
        """
        return word[position]

    async def setup_state(self, state, **kwargs):
        return await super().setup_state(state, **kwargs) or state

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "word": state["answer"]}


def load_environment(kind="single", held_out=True, words=None):
    given = {"dataset": rows(words or WORDS), "system_prompt": "Say letters."}
    if held_out:
        given["eval_dataset"] = rows(["aabb", "bbaa"])
    parser = vf.Parser()
    copied = vf.Rubric(funcs=[exact, overlap, length], weights=[1.0, 0.5, 0.0], parser=parser)
    if kind == "single":
        shots = [{"role": "user", "content": "Copy b"}, {"role": "assistant", "content": "b"}]
        return vf.SingleTurnEnv(parser=parser, rubric=copied, few_shot=shots, **given)
    if kind == "broken":
        return vf.SingleTurnEnv(rubric=vf.Rubric(funcs=[exact, broken]), **given)
    if kind == "group":
        return vf.SingleTurnEnv(rubric=vf.Rubric(funcs=[exact, shortest]), **given)
    if kind == "turns":
        return Guessing(max_turns=4, rubric=vf.Rubric(funcs=[exact, fewer_tries], weights=[1.0, 1.0]), **given)
    if kind == "tool":
        return vf.ToolEnv(tools=[add], max_turns=3, rubric=vf.Rubric(funcs=[exact]), **given)
    if kind == "owned":
        return Owned(max_turns=3, rubric=vf.Rubric(funcs=[exact]), **given)
    if kind == "judge":
        return vf.SingleTurnEnv(rubric=vf.JudgeRubric(), **given)
    if kind == "hub":
        from datasets import load_dataset

        return vf.SingleTurnEnv(dataset=load_dataset("nobody/nothing-like-this"), rubric=copied)
    if kind == "silent":
        return vf.SingleTurnEnv(rubric=vf.Rubric(), **given)
    raise ValueError(f"there is no kind {kind!r}")
