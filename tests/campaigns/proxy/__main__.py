"""`python -m tests.campaigns.proxy`: operations at an ``s3://`` URL, by a proxy that lets their requests fail.

``--runs`` is how many, at even distances of all there are; all, unless given. ``--part I/N`` is one of N parts, for
several processes. Ends with 1 where anything is wrong. Needs what ``requirements/s3.txt`` names.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.campaigns.proxy.campaign import Campaign, drawn


def main() -> int:
    """Run, and say what was run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--only", default="", help="what the name of the operation and the fault has to have")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="ucp-proxy-") as directory,
        Campaign.begun(Path(directory)) as campaign,
    ):
        runs = [run for run in campaign.runs() if options.only in f"{run.scenario.name}, {run.fault}"]
        scenarios = {run.scenario.name for run in runs}
        print(f"{len(runs):,} faults of {len(scenarios)} operations", flush=True)
        number, parts = map(int, options.part.split("/"))
        chosen = drawn(runs, options.runs or len(runs))[number - 1 :: parts]
        begun = time.monotonic()
        for done, run in enumerate(chosen, 1):
            before = len(campaign.wrong)
            campaign.run(run)
            for wrong in campaign.wrong[before:]:
                print(f"WRONG: {wrong}", flush=True)
            if done % 50 == 0:
                seconds = time.monotonic() - begun
                print(f"{done:,} runs, {len(campaign.wrong)} wrong, {seconds:.0f} s", flush=True)
    for what, found in sorted(campaign.counts.items()):
        print(f"{found:>8,} {what}")
    print(f"{campaign.most:>8,} requests of one operation failed at most")
    print(f"{len(chosen):,} runs, {len(campaign.wrong)} wrong")
    return 1 if campaign.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
