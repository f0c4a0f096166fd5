"""The plan of a run: its settings, checks and costs, stated before it starts.

`grouprl.plan` is this package, and `grouprl.plan(source)` the plan of a run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grouprl.config.run import Config
    from grouprl.plan.plan import Plan


class _Planning(ModuleType):
    """This package, made callable."""

    def __call__(self, source: str | Path | Mapping[str, object] | Config, changes: Sequence[str] = ()) -> Plan:
        """Return the plan of a run that is given as `grouprl.train` takes it.

        Raises:
            InputError: a name or an option does not fit; contradictions are `refusals` of the plan.
        """
        from grouprl.config.run import Config, changed_data, load_config
        from grouprl.plan.plan import plan

        if isinstance(source, str | Path):
            return plan(load_config(str(source), changes))
        data = source.model_dump(mode="json") if isinstance(source, Config) else source
        return plan(changed_data(data, changes))


sys.modules[__name__].__class__ = _Planning
