"""Pieces of the lines of plain torch that several parts print (`Part.code`)."""

from __future__ import annotations

from grouprl.core.batch import SOURCES

APART = "counts_b, same_bb = counts_b & ~out_b, same_bb & ~out_b & counts_b"
"""Lines that take the rows of `out_b` out of group statistics."""


def is_from(source: str) -> str:
    """Return the expression [B] bool: the rows of one source."""
    return f"source_b == {SOURCES[source]}"


def compared(value: str, of: str, scale: str, eps: float) -> str:
    """Return the expression that compares values [N] with those that the rows of `of` [N,N] mark or weigh.

    `scale` is 'none', 'sample_std' or 'population_std'.
    """
    if scale == "none":
        return f"centered({value}, {of})"
    return f"standardised({value}, {of}, {eps!r}{'' if scale == 'sample_std' else ', 0'})"


def clipped_at(x: str, low: str, high: str) -> str:
    """Return the expression of ratios clipped at two expressions: by `within` where a bound may be 1, as ratios are at
    first.
    """
    return f"{x}.clamp({low}, {high})" if _apart(low) and _apart(high) else f"within({x}, {low}, {high})"


def _apart(bound: str) -> bool:
    try:
        return float(bound) != 1
    except ValueError:
        return False


def clip_lines(low: str, high: str, dual: float | None, loss: str = "loss_bt", adv: str = "adv_bt") -> list[str]:
    """Return the lines of PPO's clip of `ratio_bt` at the expressions `low` and `high`, and of the dual clip."""
    lines = [f"{loss} = torch.maximum(-{adv} * ratio_bt, -{adv} * {clipped_at('ratio_bt', low, high)})"]
    if dual is not None:
        lines.append(f"{loss} = torch.where({adv} < 0, torch.minimum({loss}, -{adv} * {dual!r}), {loss})")
    return lines


SPLIT = (
    "there_bs = turns_there(turn_bt, mask_bt, turn_reward_bs.shape[1])",
    "paid_bs, rest_b = split_rewards(reward_b, turn_reward_bs, there_bs)",
)
"""Lines that assign the rewards of the existing turns, and the rest of each row's reward."""
PAY = "reward_b = reward_b + (turn_reward_bs - paid_bs).sum(1)"
"""Lines that add to the rewards of rows what their turns have gained."""
