"""`python -m tests.campaigns.faults`: builds the shim, starts itself under it, and runs the campaign.

``--runs`` is how many, at even distances of all there are; all, unless given. ``--part I/N`` is one of N parts, for
several processes. ``--only`` is a pattern of names of operations. With
``--broken`` protocols that do not hold are run, which have to be found out. Ends with 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHIM = Path(__file__).with_name("shim.c")


def build(directory: Path) -> Path:
    """Compile the shim."""
    library = directory / "shim.so"
    compiler = shutil.which("cc") or "cc"
    flags = ["-O1", "-Wall", "-Wextra", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", str(library), str(SHIM), "-ldl"], check=True)
    return library


def started(arguments: list[str], directory: Path) -> int:
    """Start this module again with the shim, and return how it ended."""
    from tests.campaigns.faults.plan import Plan

    library, page = build(directory), directory / "plan"
    Plan.create(page)
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "UCP_FAULT_PLAN": str(page),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",  # a fork has no threads but its own
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    command = [sys.executable, "-m", "tests.campaigns.faults", *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


def main() -> int:
    """Run, and say what was run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--only", default="")
    parser.add_argument("--broken", action="store_true")
    options = parser.parse_args()
    memory = Path("/dev/shm")  # syncs cost nothing there
    with tempfile.TemporaryDirectory(
        dir=memory if memory.is_dir() else None, prefix="ucp-faults-"
    ) as directory:
        if "UCP_FAULT_PLAN" not in os.environ:
            return started(sys.argv[1:], Path(directory))
        return (_broken if options.broken else _campaign)(options, Path(directory))


def _campaign(options: argparse.Namespace, directory: Path) -> int:
    from tests.campaigns.faults.campaign import Campaign, drawn
    from tests.campaigns.faults.plan import Plan
    from tests.campaigns.faults.scenarios import SCENARIOS

    campaign = Campaign(Plan(Path(os.environ["UCP_FAULT_PLAN"])), directory)
    scenarios = [one for one in SCENARIOS if re.search(options.only, one.name)]
    runs = list(campaign.runs(scenarios))
    print(f"{len(runs):,} faults of {len({run.scenario.name for run in runs})} operations", flush=True)
    number, parts = map(int, options.part.split("/"))
    chosen = drawn(runs, options.runs or len(runs))[number - 1 :: parts]
    begun = time.monotonic()
    for done, run in enumerate(chosen, 1):
        before = len(campaign.wrong)
        campaign.run(run)
        for wrong in campaign.wrong[before:]:
            print(f"WRONG: {wrong}", flush=True)
        if done % 1000 == 0:
            seconds = time.monotonic() - begun
            print(f"{done:,} runs, {len(campaign.wrong)} wrong, {seconds:.0f} s", flush=True)
    for what, found in sorted(campaign.counts.items()):
        print(f"{found:>8,} {what}")
    print(f"{len(chosen):,} runs, {len(campaign.wrong)} wrong")
    return 1 if campaign.wrong else 0


def _broken(options: argparse.Namespace, directory: Path) -> int:
    """Whether each protocol that does not hold is found out, by so many runs of its operation."""
    from tests.campaigns.faults.broken import BROKEN
    from tests.campaigns.faults.campaign import Campaign, drawn
    from tests.campaigns.faults.plan import Plan
    from tests.campaigns.faults.scenarios import SCENARIOS

    missed = 0
    for name, change in BROKEN.items():
        campaign = Campaign(Plan(Path(os.environ["UCP_FAULT_PLAN"])), directory)
        with change():
            for run in drawn(
                list(campaign.runs([one for one in SCENARIOS if one.name == name])), options.runs or 200
            ):
                campaign.run(run)
        print(f"{change.__name__}, {name}: {len(campaign.wrong)} wrong of {campaign.counts['runs']}")
        missed += not campaign.wrong
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
