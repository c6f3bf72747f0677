"""Races of update logs: two processes begin the same epoch, or one writes while another goes on, at the same time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from ucp_conformance.connection import Connection, Reply
from ucp_conformance.exchange import Fault
from ucp_conformance.log_sequences import writes_logs
from ucp_conformance.log_written import batch_fault, epoch_fault
from ucp_conformance.oracle.problem import RefusalError
from ucp_conformance.oracle.update_logs import UpdateLog, log_problems
from ucp_conformance.results import Result
from ucp_conformance.workplace import Workplace, snapshot

__all__ = ["REQUIREMENTS", "run_races"]

REQUIREMENTS: Final = ("UCP-W-036", "UCP-W-038", "UCP-W-039")
"""What races hold."""

_EPOCHS: Final = 6
_LOST: Final = ("UCP-E-EXISTS", "UCP-E-FENCED")
_EPOCH: Final[dict[str, Any]] = {
    "first_step": 0, "ranks": 1, "groups": [[0]], "exactness": "bitwise",
    "tensors": [{"atom": "w", "role": "gradient", "dtype": "float32", "shape": [2]}],
    "pieces": [{"tensor": 0, "rank": 0, "offset": [0], "shape": [2]}],
}  # fmt: skip
_STEP: Final = {"options": [{"lr": 0.5}], "entries": []}


class _WrongError(Exception):
    """One of two has not raced as it has to."""

    def __init__(self, who: int, why: str, outcome: str = "fail") -> None:
        super().__init__(why)
        self.who, self.why, self.outcome = who, why, outcome


class _Track:
    """Two processes that are asked at the same time, and by how much the second is asked later, so that it is close."""

    def __init__(self, racers: Sequence[Connection], seed: str) -> None:
        self.racers = racers
        self.random = Random(seed)  # noqa: S311 - no secret
        self.later: dict[str, float] = {}
        self.stride: dict[str, float] = {}
        self.won: Counter[str] = Counter()

    def race(self, kind: str, requests: Sequence[tuple[str, dict[str, Any]]]) -> list[Reply]:
        """Send a request to each, and return what comes of them."""
        later = self.later.get(kind, 0.0) + self.random.uniform(-0.0005, 0.0005)
        waits = max(0.0, -later), max(0.0, later)
        replies: list[Reply | None] = [None, None]
        gate = threading.Barrier(2)

        def ask(number: int) -> None:
            gate.wait()
            time.sleep(waits[number])
            replies[number] = self.racers[number].request(*requests[number])

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, reply in enumerate(replies):
            if reply is None or not reply.is_answer or reply.kind in ("internal", "unsupported"):
                kind, body = ("crash", {}) if reply is None else (reply.kind, reply.body)
                outcome = kind if kind in ("crash", "timeout", "unsupported") else "fail"
                raise _WrongError(number, f"{requests[number][0]} came to {kind} {body}", outcome)
        return [reply for reply in replies if reply is not None]

    def settle(self, kind: str, winner: int) -> None:
        """Note who has won, and give the other one a start next time, of half as much once the winners alternate."""
        stride = self.stride.setdefault(kind, 0.004)
        self.later[kind] = self.later.get(kind, 0.0) + (-stride if winner == 0 else stride)
        self.stride[kind] = max(0.0002, stride * 0.7)
        self.won[f"{kind} {winner}"] += 1


def _epoch_race(track: _Track, path: Path, number: int) -> int:
    """Have both begin an epoch: exactly one does, and the other says that it is there. Returns who has won."""
    common = {"path": str(path), **_EPOCH, "after": number - 1 if number else None}
    if number:
        common["epoch"] = number
    asked = [{**common, "optimizer": {"type": "ucp.sgd", "profile": {"racer": str(n)}}} for n in range(2)]
    before = snapshot(path)
    kind = "next" if number else "first"
    replies = track.race(kind, [("begin-epoch", params) for params in asked])
    winners = [n for n, reply in enumerate(replies) if reply.kind == "result"]
    for n, reply in enumerate(replies):
        if reply.kind == "error" and reply.body["code"] not in _LOST:
            raise _WrongError(n, f"the loser of a race for epoch {number} says {reply.body}")
    if not winners:
        raise _WrongError(0, f"nobody has won the race for epoch {number}: {[one.body for one in replies]}")
    try:
        there = int(UpdateLog(path).epoch(number)[0]["optimizer"]["profile"]["racer"])
    except RefusalError as refusal:
        problem = refusal.problem
        raise _WrongError(winners[-1], f"a race has left {problem.code} at {problem.at}") from None
    if len(winners) == 2 or there not in winners:
        # What lies there now was written over what the other had begun.
        raise _WrongError(there, f"both began epoch {number}, and one has written over the other's")
    fault = epoch_fault(path, asked[there], replies[there].body, number)
    if fault is not None:
        raise _WrongError(there, f"begin-epoch in a race: {fault}")
    _require(path, before, {f"epochs/{number}.json", *({"log.json"} - before.keys())}, 1 - there)
    track.settle(kind, there)
    return there


def _fence_race(track: _Track, path: Path, number: int, writer: int) -> None:
    """Have one write a batch of its epoch while the other begins the next: it is there, or was refused."""
    batch = {"path": str(path), "epoch": number, "rank": 0, "steps": [_STEP], "values": {}}
    asked = {
        "path": str(path), **_EPOCH, "after": number, "epoch": number + 1,
        "optimizer": {"type": "ucp.sgd", "profile": {}},
    }  # fmt: skip
    requests = [("write-batch", batch), ("begin-epoch", asked)]
    before = snapshot(path)
    replies = track.race(f"fence {writer}", requests if writer == 0 else requests[::-1])
    written, begun = replies[writer], replies[1 - writer]
    if begun.kind != "result":
        raise _WrongError(1 - writer, f"an epoch is not begun while a batch is written: {begun.body}")
    if (fault := epoch_fault(path, asked, begun.body, number + 1)) is not None:
        raise _WrongError(1 - writer, f"begin-epoch while a batch is written: {fault}")
    if written.kind != "result" and written.body["code"] != "UCP-E-FENCED":
        raise _WrongError(writer, f"write-batch while an epoch is begun came to {written.body}")
    made = {f"batches/{number}/0/0.batch"} if written.kind == "result" else set()
    _require(path, before, {f"epochs/{number + 1}.json", *made}, writer)
    if made:
        _, digest = UpdateLog(path).epoch(number)
        fault, _ = batch_fault(path, batch, 0, digest, {})
        if fault is not None:
            raise _WrongError(writer, f"write-batch while an epoch is begun: {fault}")
        again = track.racers[writer].request("write-batch", batch)
        if again.kind != "error" or again.body["code"] != "UCP-E-FENCED":
            raise _WrongError(writer, f"write-batch behind an epoch came to {again.kind} {again.body}")
    # Who was refused is asked sooner next time.
    track.settle(f"fence {writer}", writer if made else 1 - writer)


def _require(path: Path, before: Mapping[str, bytes], wanted: set[str], who: int) -> None:
    """Check that a race has made just these objects, has changed none, and left a log that is good."""
    now = snapshot(path)
    changed = sorted(key for key, data in before.items() if now.get(key) != data)
    if changed or now.keys() - before.keys() != wanted:
        raise _WrongError(who, f"a race has made {sorted(now.keys() - before.keys())}, and changed {changed}")
    if problems := log_problems(path):
        raise _WrongError(who, f"a race has left {problems[0].code} at {problems[0].at}")


def _raced(track: _Track, rounds: int) -> Fault | None:
    """Race so many times; None if all was right."""
    for number in range(rounds):
        place = Workplace()
        path = place.fresh() / "updates.ucplog"
        path.parent.mkdir()
        try:
            winner = [_epoch_race(track, path, epoch) for epoch in range(_EPOCHS)][-1]
            _fence_race(track, path, _EPOCHS - 1, winner)
        except _WrongError as wrong:
            racer = track.racers[wrong.who]
            why = f"{wrong.why}, in round {number + 1}"
            return Fault(racer.label, "writer", wrong.outcome, why, racer.stderr())
        finally:
            place.close()
    return None


def run_races(
    connections: Sequence[Connection], tell: Callable[[Result], None], *, rounds: int, seed_: int
) -> Iterator[Result]:
    """Yield a result for each of two drivers that write logs and race, also against another process of its own."""
    writers = [connection for connection in connections if writes_logs(connection)]
    pairs = [(one, other) for n, one in enumerate(writers) for other in writers[n:]]
    for one, other in pairs:
        rival = one.twin() if one is other else other
        start = time.monotonic()
        track = _Track((one, rival), f"{seed_}/{one.label}/{other.label}")
        try:
            fault = _raced(track, rounds)
        finally:
            if one is other:
                rival.kill()
        counts = ", ".join(f"{name} {count}" for name, count in sorted(track.won.items()))
        for mine, partner in dict.fromkeys([(one, other), (other, one)]):
            is_blamed = fault is not None and fault.blamed == mine.label
            result = Result(
                f"logs/{mine.label}-races-{partner.label}:writer",
                mine.label,
                "writer",
                "full",
                fault.outcome if fault and is_blamed else "pass",
                REQUIREMENTS,
                ("update-log",),
                ms=1000 * (time.monotonic() - start),
                detail=fault.why if fault and is_blamed else f"{rounds} rounds, won: {counts}",
                stderr=fault.stderr if fault and is_blamed else "",
                other=partner.label,
            )
            tell(result)
            yield result
