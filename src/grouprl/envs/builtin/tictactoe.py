"""Tic-tac-toe against a scripted opponent."""

from __future__ import annotations

import random
from functools import cache

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns

MINE, THEIRS, FREE = "x", "o", "."
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def winner(board: str) -> str:
    """Return the sign with three in a row; "" if there is none."""
    return next((board[a] for a, b, c in LINES if board[a] != FREE and board[a] == board[b] == board[c]), "")


def place(board: str, cell: int, sign: str) -> str:
    """Return the board with a sign in a cell."""
    return board[:cell] + sign + board[cell + 1 :]


def free_cells(board: str) -> list[int]:
    """Return the cells without a sign."""
    return [cell for cell, sign in enumerate(board) if sign == FREE]


@cache
def value(board: str, sign: str) -> int:
    """Return the value for the player of `sign`, whose turn it is, under perfect play: 1 won, 0 drawn, -1 lost."""
    if winner(board):
        return -1
    other = THEIRS if sign == MINE else MINE
    return max((-value(place(board, cell, sign), other) for cell in free_cells(board)), default=0)


def best_cells(board: str, sign: str) -> list[int]:
    """Return the best cells for the player of `sign`, whose turn it is."""
    other = THEIRS if sign == MINE else MINE
    worth = {cell: -value(place(board, cell, sign), other) for cell in free_cells(board)}
    return [cell for cell in worth if worth[cell] == max(worth.values())]


class TicTacToe(Game):
    """Three in a row against an opponent that plays well with chance `skill` and at random otherwise.

    Column: `board`, nine signs row by row, 'x' the policy's, 'o' the opponent's, '.' free. Actions are the cells 0..8.
    An observation is the board and '>'. The turn's reward is 1 for a win and 0.5 for a draw. Any other action, such as
    a taken cell, is invalid, costs a turn and is answered with '!' before the board. The state is the board.
    """

    def __init__(self, max_turns: int = 6, skill: float = 0.25, noise: float = 0.3) -> None:
        """Prepare an episode of at most `max_turns` actions.

        Args:
            max_turns: actions allowed, invalid ones included.
            skill: chance that a move of the opponent is optimal.
            noise: chance that a demonstration's move is random.
        """
        super().__init__(max_turns)
        self.skill, self.noise = skill, noise
        self.board = FREE * 9
        self._luck = random.Random(0)

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Set up the board."""
        self.board, self._luck = str(columns["board"]), rng

    @property
    def state(self) -> str:
        """The board."""
        return self.board

    @property
    def legal(self) -> tuple[str, ...]:
        """The free cells."""
        return tuple(map(str, free_cells(self.board)))

    @property
    def correct(self) -> bool:
        """True if the game is over and not lost."""
        return winner(self.board) != THEIRS and self._over

    @property
    def _over(self) -> bool:
        return bool(winner(self.board)) or FREE not in self.board

    def act(self, action: str) -> Outcome:
        """Take a cell and let the opponent answer."""
        if action not in self.legal:
            return Outcome(f"!{self.board}>", valid=False)
        self.board = place(self.board, int(action), MINE)
        if not self._over:
            self.board = place(self.board, self._answer(), THEIRS)
        return Outcome(f"{self.board}>", self._reward(), self._over)

    def demonstrate(self, rng: random.Random) -> str:
        """Return one of the best cells, or with a certain chance any cell."""
        good = rng.random() >= self.noise
        return str(rng.choice(best_cells(self.board, MINE) if good else free_cells(self.board)))

    def _answer(self) -> int:
        good = self._luck.random() < self.skill
        return self._luck.choice(best_cells(self.board, THEIRS) if good else free_cells(self.board))

    def _reward(self) -> float:
        if not self._over:
            return 0.0
        return {MINE: 1.0, THEIRS: 0.0}.get(winner(self.board), 0.5)
