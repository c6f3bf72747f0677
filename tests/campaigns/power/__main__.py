"""`python -m tests.campaigns.power`: records operations, and judges what a loss of power at any moment may leave.

``--states`` is how many states in all, shared by the operations; fewer where there are no more. ``--only`` is a
pattern of names of operations. Ends with 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
import warnings
from pathlib import Path

from tests.campaigns.power.campaign import Campaign, recorded
from tests.campaigns.power.operations import OPERATIONS


def main() -> int:
    """Run, and say what was run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    memory = Path("/dev/shm")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(
        dir=memory if memory.is_dir() else None, prefix="ucp-power-"
    ) as directory:
        chosen = [one for one in OPERATIONS if re.search(options.only, one.name)]
        module = "tests.campaigns.power.operations"
        traces = recorded(Path(directory), module, chosen, *(one.name for one in chosen))
        campaign = Campaign(Path(directory))
        share = -(-options.states // len(traces))
        for number, trace in enumerate(traces):
            before = campaign.counts["states"]
            campaign.run(trace, share, options.seed + number)
            found, seconds = campaign.counts["states"] - before, time.monotonic() - begun
            print(
                f"{found:>7,} states of {trace.operation.name}, {len(trace.records)} calls, {seconds:.0f} s",
                flush=True,
            )
    for what, count in sorted(campaign.counts.items()):
        print(f"{count:>9,} {what}")
    for wrong, where in campaign.wrong.items():
        print(f"WRONG: {wrong} ({where})")
    print(f"{campaign.counts['states']:,} states, {len(campaign.wrong)} wrong")
    return 1 if campaign.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
