"""Adapter to the reasoning-gym library: its generators, scorers and curricula."""

from __future__ import annotations

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError
from grouprl.core.hashing import generator
from grouprl.core.json_types import JsonObject
from grouprl.records.examples import Example, Split
from grouprl.rewards import KnownExample, Reward
from grouprl.rewards.catalogue.library import BLOCK, Entries, LibraryScore, dataset_maker, problems
from grouprl.tasks.questions import QuestionTask
from grouprl.tasks.registry import register_task
from grouprl.tasks.task import check_request, split_of

# The stream is cut into blocks of BLOCK entries, each with its own seed; prompt i searches the candidates from
# i * STRIDE on for one of its split.
STRIDE = 50
MAX_SAMPLES = 1000
PROBED = 2
"""Entries on which a scorer is tested when a dataset is loaded."""


@register_task("reasoning_gym", argument="dataset")
class ReasoningGym(QuestionTask):
    """Any dataset of the reasoning-gym library (extra 'envs'), with its own scorer and curriculum.

    The answer is the text of the last <answer>…</answer>, or the whole completion without such tags; the
    library's scorer, which is guarded (`grouprl.rewards.catalogue.library`), gives 0..1. Guaranteed for every seed: a
    prompt is in one split only, decided by the hash of its text. Not guaranteed: that a small dataset never repeats a
    prompt within a split.
    """

    dataset: str = Field(description="the name of the reasoning-gym dataset")
    seed: int = Field(0, description="which stream of prompts is sampled")
    level: int | None = Field(None, ge=1, description="curriculum level, 1 is the library's level 0")
    config: JsonObject = Field(default_factory=dict, description="fields of the dataset's own configuration")
    demonstrations: bool = Field(False, description="whether the library's answers serve as demonstrations")

    _score: LibraryScore = PrivateAttr()

    def model_post_init(self, context: object) -> None:
        """Find the dataset and check its configuration by sampling from it."""
        dataset_maker(self.dataset, self.level, self.config)(self._seed_of(0))  # its errors about the configuration
        self._score = LibraryScore((self.dataset, self.level, self.config, self._seed_of(0)))
        try:
            entries = [self._block(0)[place] for place in range(PROBED)]
        except InputError as error:
            raise InputError(f"{error.what} with config {self.config}", error.rule) from error
        if found := problems(self.dataset, self._score, entries):
            raise InputError(
                f"reasoning-gym's '{self.dataset}' cannot be trained on: {'; '.join(found[:3])}",
                "a scorer must accept the library's own answers and give 0 to empty, junk or copied ones",
                "Choose another dataset, or another level or config.",
            )

    @property
    def name(self) -> str:
        """The library's name after "reasoning_gym:"."""
        return f"reasoning_gym:{self.dataset}"

    @property
    def description(self) -> str:
        """A sentence that names the dataset."""
        return f"The dataset '{self.dataset}' of the reasoning-gym library, with its own scorer."

    @property
    def reward(self) -> Reward:
        """The library's scorer, 0..1, applied to the text of the answer tag."""
        return self._score

    def _block(self, block: int) -> Entries:
        return Entries(self.dataset, self.level, self.config, self._seed_of(block))

    def _seed_of(self, block: int) -> int:
        return generator(self.seed, self.name, block).randrange(2**31)

    def example(self, split: Split, index: int) -> Example:
        """Return prompt `index` (any number from 0) of a split.

        Raises:
            InputError: on an unknown split, a negative index, or a dataset too small to hold prompts out.
        """
        check_request(self.name, split, index, None)
        for candidate in range(index * STRIDE, index * STRIDE + MAX_SAMPLES):
            block, position = divmod(candidate, BLOCK)
            entry = self._block(block)[position]
            if split_of(entry["question"]) == split:
                columns = {"entry": entry, "answer": entry["answer"]}
                return Example(
                    f"{self.name}/{split}/{index}", self.asked(str(entry["question"])), columns, self.level or 0
                )
        raise InputError(
            f"Task '{self.name}' found no prompt for the split '{split}' in {MAX_SAMPLES} samples",
            "one prompt in ten is held out, so there must be a few dozen different ones",
            "Choose a higher level or a larger configuration.",
        )

    def size(self, split: Split) -> None:
        """Return None: both splits are endless."""
        check_request(self.name, split, 0, None)

    def demonstration(self, example: Example, seed: int) -> str | None:
        """Return the library's completion, if demonstrations are on and it has one."""
        return self.solution(example) if self.demonstrations else None

    def solution(self, example: Example) -> str | None:
        """Return the library's completion; None for datasets without a single one."""
        return example.columns["answer"]

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return the library's completion of the first prompt, if it has one, and an empty completion."""
        example = self.example("train", 0)
        right = self.solution(example)
        wrong = KnownExample("", example.columns, False)
        return (wrong,) if right is None else (KnownExample(right, example.columns, True), wrong)
