"""`python -m tests.simulation`: all worlds, all schedules within bounds, and drawn ones beyond them.

``--schedules`` is how many are run in all, shared by the worlds. Ends with 1 where one breaks the invariant.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.cases import Case, cases
from tests.simulation.schedule import Bounds

BOUNDS = (Bounds(2, 0), Bounds(1, 1), Bounds(3, 0), Bounds(2, 1))
BEYOND = Bounds(6, 2)


def main() -> int:
    """Run, and say what was run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="worlds whose names have this in them")
    options = parser.parse_args()
    found = [case for case in cases() if options.only in case.name]
    share = -(-options.schedules // len(found))
    counts: Counter[str] = Counter()
    begun = time.monotonic()
    for number, case in enumerate(found):
        broken = _run(case, share, options.seed + number, counts)
        if broken is not None:
            print(f"BROKEN in {case.name}\n{broken}")
            return 1
        seconds = time.monotonic() - begun
        print(
            f"{number + 1}/{len(found)} {counts.total():,} schedules, {seconds:.0f} s: {case.name}",
            flush=True,
        )
    for what, count in counts.items():
        print(f"{count:>10,} {what}")
    print(f"{counts.total():>10,} schedules in {len(found)} worlds, none breaks the invariant")
    return 0


def _run(case: Case, share: int, seed: int, counts: Counter[str]) -> str | None:
    """All within each of the bounds as far as the share goes, the rest drawn."""
    left = share
    for bounds in BOUNDS:
        explored = case.explore(bounds, max(1, left // 2))
        what = f"with {bounds.switches} switches, {bounds.faults} faults"
        counts[f"{what}, {'all there are' if explored.is_all else 'the first'}"] += explored.count
        left -= explored.count
        if explored.broken is not None:
            return f"{explored.broken.violation}\n" + "\n".join(explored.broken.trace)
    explored = case.drawn(BEYOND, max(1, left), seed)
    counts[f"drawn, with {BEYOND.switches} switches, {BEYOND.faults} faults"] += explored.count
    if explored.broken is not None:
        return f"{explored.broken.violation}\n" + "\n".join(explored.broken.trace)
    return None


if __name__ == "__main__":
    sys.exit(main())
