"""`python -m tests.campaigns.damage`: draws damage, and looks whether anybody takes it for data.

``--draws`` is how many damages in all, ``--seed`` the first seed, ``--workers`` how many processes. ``--medium s3``
damages objects of moto's server, by s3fs (`requirements/s3.txt`), ``memory`` those of fsspec's memory. Ends with 1
where anything is wrong.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.campaigns.damage.campaign import DAMAGES_PER_CHECKPOINT
from tests.campaigns.damage.work import begin, run


def main() -> int:
    """Run, and say what was run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--medium", choices=("local", "memory", "s3"), default="local")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    begun = time.monotonic()
    checkpoints = -(-options.draws // DAMAGES_PER_CHECKPOINT)
    seeds = range(options.seed, options.seed + checkpoints)
    print(f"seeds {seeds[0]} to {seeds[-1]}, {options.medium}", flush=True)
    with ExitStack() as stack:
        endpoint = None
        if options.medium == "s3":
            from benchmarks.s3_server import missing_packages, served

            if missing := missing_packages():
                parser.error(f"--medium s3 needs {', '.join(missing)}: see requirements/s3.txt")
            endpoint = stack.enter_context(served()).options()
        memory = Path("/dev/shm")
        place = memory if memory.is_dir() else None
        scratch = stack.enter_context(tempfile.TemporaryDirectory(dir=place, prefix="ucp-damage-"))
        spawning = multiprocessing.get_context("spawn")
        pool = stack.enter_context(spawning.Pool(options.workers, begin, (scratch, options.medium, endpoint)))
        with suppress(KeyboardInterrupt):  # what was done counts
            for done, (found, faults) in enumerate(pool.imap_unordered(run, seeds), 1):
                counts.update(found)
                wrong += faults
                for fault in faults:
                    print(f"WRONG: {fault}", flush=True)
                if done % 25 == 0:
                    seconds = time.monotonic() - begun
                    print(f"{counts['damages']:,} damages, {len(wrong)} wrong, {seconds:.0f} s", flush=True)
        pool.terminate()
        pool.join()
    for what, count in sorted(counts.items()):
        print(f"{count:>9,} {what}")
    readings = sum(count for what, count in counts.items() if what.split(": ")[-1] in _READINGS)
    print(f"{counts['damages']:,} damages, {readings:,} readings, {len(wrong)} wrong")
    return 1 if wrong else 0


_READINGS = ("refused", "right", "right, but what is refused")


if __name__ == "__main__":
    sys.exit(main())
