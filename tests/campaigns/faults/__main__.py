"""`python -m tests.campaigns.faults`: builds the shim, starts itself under it, and runs the campaign.

``--runs`` is how many, at even distances of all there are; all, unless given. ``--part I/N`` is one of N parts, for
several processes. Ends with 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import os
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
    }
    command = [sys.executable, "-m", "tests.campaigns.faults", *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


def main() -> int:
    """Run, and say what was run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--part", default="1/1")
    options = parser.parse_args()
    memory = Path("/dev/shm")  # syncs cost nothing there
    with tempfile.TemporaryDirectory(
        dir=memory if memory.is_dir() else None, prefix="ucp-faults-"
    ) as directory:
        if "UCP_FAULT_PLAN" not in os.environ:
            return started(sys.argv[1:], Path(directory))
        return _campaign(options.runs, options.part, Path(directory))


def _campaign(count: int | None, part: str, directory: Path) -> int:
    from tests.campaigns.faults.campaign import Campaign, drawn
    from tests.campaigns.faults.plan import Plan

    campaign = Campaign(Plan(Path(os.environ["UCP_FAULT_PLAN"])), directory)
    runs = list(campaign.runs())
    print(f"{len(runs):,} faults of {len({run.scenario.name for run in runs})} operations", flush=True)
    number, parts = map(int, part.split("/"))
    chosen = drawn(runs, count or len(runs))[number - 1 :: parts]
    begun = time.monotonic()
    for done, run in enumerate(chosen, 1):
        campaign.run(run)
        if done % 1000 == 0:
            seconds = time.monotonic() - begun
            print(f"{done:,} runs, {len(campaign.wrong)} wrong, {seconds:.0f} s", flush=True)
    for what, found in sorted(campaign.counts.items()):
        print(f"{found:>8,} {what}")
    for wrong in campaign.wrong:
        print(f"WRONG: {wrong}")
    print(f"{len(chosen):,} runs, {len(campaign.wrong)} wrong")
    return 1 if campaign.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
