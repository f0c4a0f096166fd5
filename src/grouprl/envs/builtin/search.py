"""Questions about a local corpus, with a search tool."""

from __future__ import annotations

import random
from functools import cache

from grouprl.core.errors import MissingExtra
from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns
from grouprl.rewards.by_task.search import SEARCH_REWARDS, Searched


class Corpus:
    """Short documents, found by the words they share with a query (BM25, by bm25s)."""

    def __init__(self, documents: tuple[str, ...]) -> None:
        """Index the documents.

        Raises:
            MissingExtra: the package bm25s is not installed.
        """
        try:
            import bm25s
        except ImportError as error:
            raise MissingExtra("bm25s", "search", "The search tool") from error
        self.documents = documents
        self._index = bm25s.BM25()
        self._index.index([document.split() for document in documents], show_progress=False)
        self._known = {word for document in documents for word in document.split()}

    def best(self, query: str) -> int | None:
        """Return the number of the document that fits the query best, the first of several equal ones; None if no word
        fits.
        """
        words = [word for word in query.split() if word in self._known]
        return int(self._index.get_scores(words).argmax()) if words else None


@cache
def corpus_of(documents: tuple[str, ...]) -> Corpus:
    """Return the index of documents, made once per process."""
    return Corpus(documents)


class Search(Game):
    """A question such as "bako lives?", a search tool and an answer.

    Columns: `answer`, `path` (the queries that lead to it, () if none is needed). "s bako lives" searches and is
    answered with the document that fits best and '>', or with "none>" if no word fits; "a miru" answers and ends the
    episode. Anything else is invalid and answered with "!>". The state is the documents read.

    `reward` is one of `grouprl.rewards.by_task.search.SEARCH_REWARDS`.
    """

    def __init__(self, documents: tuple[str, ...], max_turns: int, reward: str = "exact", noise: float = 0.3) -> None:
        """Prepare an episode of at most `max_turns` turns; `noise` is the chance of a demonstration's slip."""
        super().__init__(max_turns)
        self.documents, self.reward, self.noise = documents, reward, noise
        self.answer, self.said = "", ""
        self.path: tuple[str, ...] = ()
        self.read: list[int] = []
        self.searches = self.malformed = 0

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Set up the question."""
        self.answer, self.path = columns["answer"], tuple(columns["path"])

    @property
    def state(self) -> str:
        """The numbers of the documents read, in order; "-" before the first."""
        return ",".join(map(str, sorted(set(self.read)))) or "-"

    @property
    def correct(self) -> bool:
        """True if the right answer was given."""
        return self.said == self.answer

    def act(self, action: str) -> Outcome:
        """Search or answer."""
        kind, _, text = action.partition(" ")
        counted = {"searches": self.searches, "malformed": self.malformed}
        if kind == "a" and text:
            self.said = text
            return Outcome("", self._reward(), ended=True, info=counted)
        if kind != "s" or not text:
            self.malformed += 1
            return Outcome("!>", valid=False, info=counted)
        self.searches += 1
        found = corpus_of(self.documents).best(text)
        if found is None:
            return Outcome("none>", info=counted)
        self.read.append(found)
        return Outcome(f"{self.documents[found]}>", info=counted)

    def score(self) -> dict[str, float]:
        """Return `correct`, and as '#density' the share of the documents read that the answer needs."""
        needed = {corpus_of(self.documents).best(query) for query in self.path}
        return {**super().score(), "#density": sum(each in needed for each in self.read) / max(1, len(self.read))}

    def demonstrate(self, rng: random.Random) -> str:
        """Search for what is needed, or answer; with a certain chance search needlessly, badly, or answer too early."""
        following = [query for query in self.path if corpus_of(self.documents).best(query) not in self.read]
        if rng.random() < self.noise:
            word = rng.choice(rng.choice(self.documents).split())
            return rng.choice([f"s {word}", f"a {word}", f"s {following[0].split()[0]}" if following else f"s {word}"])
        return f"s {following[0]}" if following else f"a {self.answer}"

    def _reward(self) -> float:
        seen = Searched(self.correct, self.searches, bool(self.path), self.malformed == 0)
        return SEARCH_REWARDS[self.reward](seen)
