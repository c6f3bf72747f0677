"""One process of the fuzzing campaign: mutates what behaved in a new way, or cost more than anything before it.

``python -m tests.campaigns.hostile.worker TARGET SEED RUNS SEEDS SCRATCH FOUND``. Each kind of finding is kept once,
made smaller.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
import sys
import time
import warnings
from pathlib import Path
from typing import Final

from tests.campaigns.hostile.seeds import Document, written
from tests.campaigns.hostile.targets import Target, changed, target_of
from tests.campaigns.hostile.watch import Seen, Watch

__all__ = ["Fuzzer"]

_POOL: Final = 400
_DIGITS: Final = re.compile(r"\d+|'[^']*'|\"[^\"]*\"")
_SMALLER: Final = 60


class Fuzzer:
    """The loop over one target."""

    def __init__(self, target: Target, watch: Watch, seed: int, found: Path | None, name: str = "") -> None:
        self._target, self._watch, self._found, self._name = target, watch, found, name
        self._draw = random.Random(seed)
        self._pool: list[tuple[int, Document]] = [*enumerate(target.seeds)]
        self._kinds: set[tuple[str, str, int, int]] = set()
        self.findings: dict[str, str] = {}
        self.runs = 0
        self.slowest = 0.0
        self.largest = 0

    def one(self) -> Seen:
        """Run one mutated document, and keep it if nothing was like it."""
        draw = self._draw
        number, base = self._pool[
            draw.randrange(len(self._pool))
            if draw.random() < 0.7
            else draw.randrange(len(self._target.seeds))
        ]
        document = changed(base, draw, self._target.seeds)
        seen = self._run(number, document)
        self.runs += 1
        self.slowest, self.largest = max(self.slowest, seen.seconds), max(self.largest, seen.nbytes)
        cost = max(0, round(math.log2(1 + seen.seconds * 250)))
        size = max(0, round(math.log2(1 + seen.nbytes / (8 << 20))))
        kind = (seen.outcome, _DIGITS.sub("0", seen.message)[:80], cost, size)
        if kind not in self._kinds:
            self._kinds.add(kind)
            if len(self._pool) < _POOL:
                self._pool.append((number, document))
            else:
                self._pool[draw.randrange(len(self._target.seeds), _POOL)] = (number, document)
        if seen.wrong:
            self._keep(number, document, seen)
        return seen

    def _run(self, number: int, document: Document) -> Seen:
        ready = self._target.prepared(number, document, self._draw)
        return self._watch.run(lambda: self._target.run(ready))

    def _keep(self, number: int, document: Document, seen: Seen) -> None:
        key = _DIGITS.sub("0", seen.wrong)[:120] if seen.outcome != "too long" else seen.outcome
        if key in self.findings:
            return
        self.findings[key] = seen.wrong
        if self._found is None:
            return
        small = self._smaller(number, dict(document), seen)
        place = self._found / f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
        if place.exists():
            return
        written(self._target.prepared(number, small, random.Random(0)), place / "source")
        facts = {"target": self._name, "wrong": seen.wrong, "seconds": seen.seconds, "bytes": seen.nbytes}
        (place / "finding.json").write_text(json.dumps(facts, indent=1))

    def _smaller(self, number: int, document: dict[str, bytes], seen: Seen) -> Document:
        """Take away from what differs from the seed, as long as the same is wrong."""
        if seen.outcome == "too long":
            return document
        seed = self._target.seeds[number]
        wanted = _DIGITS.sub("0", seen.wrong)
        for name in [name for name, data in document.items() if seed.get(name) != data]:
            step, tries = len(document[name]) // 2, 0
            while step and tries < _SMALLER:
                for start in range(0, len(document[name]), step):
                    data = document[name]
                    less = {**document, name: data[:start] + data[start + step :]}
                    tries += 1
                    if _DIGITS.sub("0", self._run(number, less).wrong) == wanted:
                        document = less
                        break
                    if tries >= _SMALLER:
                        break
                else:
                    step //= 2
        return document


def main() -> None:
    """Run, and print a line of JSON at the end and every few seconds."""
    name, seed, runs, seeds, scratch, found = sys.argv[1:]
    warnings.simplefilter("ignore")
    place = Path(scratch)
    place.mkdir(parents=True, exist_ok=True)
    target = target_of(name, Path(seeds), place)
    for number, document in enumerate(target.seeds):  # loads what is loaded late
        target.prepared(number, document, random.Random(0))
        try:
            target.run(document)
        except Exception as problem:
            print(json.dumps({"seed": number, "problem": repr(problem)[:300]}), flush=True)
    fuzzer = Fuzzer(target, Watch(place), int(seed), Path(found), name)
    told = time.monotonic()
    for _ in range(int(runs)):
        fuzzer.one()
        if time.monotonic() - told > 5:
            told = time.monotonic()
            _tell(fuzzer)
    _tell(fuzzer)


def _tell(fuzzer: Fuzzer) -> None:
    facts = {
        "runs": fuzzer.runs,
        "findings": list(fuzzer.findings.values()),
        "slowest": round(fuzzer.slowest, 3),
        "largest": fuzzer.largest,
        "kinds": len(fuzzer._kinds),
        "processor": round(time.process_time(), 1),
    }
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
