"""Every case of the product of misbehaving episodes, once: python scripts/culprits.py [SECONDS] (`make culprits`).

Writes docs/culprits.json: each case with what was not as it must be. A record that was cut off is gone on with.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs" / "culprits.json"
sys.path[:0] = [str(ROOT / "tests" / "support")]


def main(seconds: float) -> int:
    """Play cases, in an order of their own, until all are played or the time is over; 1 where one is wrong."""
    from culprit_cases import Stages, every_case, wrong

    found = json.loads(RECORD.read_text()) if RECORD.exists() else {"cases": 0, "played": []}
    cases = every_case()
    random.Random(0).shuffle(cases)
    known = [each["case"] for each in found["played"]]
    end, stages = time.monotonic() + seconds, Stages()
    for case in cases:
        if case.record() in known or time.monotonic() > end:
            continue
        found["played"].append({"case": case.record(), "wrong": wrong(case, stages.of(case))})
        found["cases"] = len(cases)
        RECORD.write_text(json.dumps(found, indent=1) + "\n")
    stages.close()
    bad = [each for each in found["played"] if each["wrong"]]
    print(f"{len(found['played'])} of {len(cases)} cases were played, {len(bad)} went wrong")
    for each in bad:
        print(each["case"], each["wrong"])
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else float("inf")))
