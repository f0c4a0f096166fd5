"""Groups whose measure is an outlier are left out (BRPO)."""

from __future__ import annotations

from typing_extensions import override

from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.lines import APART
from grouprl.algorithms.part import part
from grouprl.algorithms.preferences import MEASURE, VERDICTS, By, needs, verdicts
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import Share


@part("filter")
class LopsidedGroups(Filter):
    """Leave out groups whose measure nearly all others beat, or nearly none: |Σ_i A_i|/G > `most` (BRPO)."""

    by: By = "judge"
    most: Share = 0.6
    says = "leave out groups in which the wins against the measure less the losses are above {most:g} of all"
    equation = "without groups with |Σ_i A_i|/G > {most:g}"

    def __call__(self, batch: Batch) -> Batch:
        """Drop groups that are lopsided, and completions that were not compared."""
        sign_b, compared_b = verdicts(batch, self.by, self.name)
        counted_b = compared_b.to(batch.dtype)
        size_b = levels.count(batch.group_b, counted_b, batch.dtype).clamp(min=1)
        share_b = levels.total(sign_b, batch.group_b).abs() / size_b
        return drop(batch, (share_b > self.most) | ~compared_b, from_statistics=True)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        if self.by == "judge":
            return ""
        return f"""{VERDICTS}
seen_b = met_b | (measure_b & known_bb.any(0))
share_b = (same_bb * sign_b).sum(1).abs() / (same_bb & seen_b).sum(1).clamp(min=1)
out_b = (share_b > {self.most!r}) | ~seen_b
active_bt = active_bt & ~out_b[:, None]
{APART}"""

    @override
    def needs(self) -> tuple[str, ...]:
        return (*needs(self.by), f"keys.{MEASURE}")
