"""Generated mode: hypothesis looks for an exchange that fails and shrinks it over the live processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from ucp_conformance.connection import Connection, DriverError
from ucp_conformance.exchange import REQUIREMENTS, Fault, exchange
from ucp_conformance.results import Result
from ucp_conformance.strategies import plans

__all__ = ["case_of", "replay", "run_pair", "run_pairs"]

SHRINKING_S = 20.0
"""How long a failure is shrunk."""


class _FoundError(Exception):
    """An exchange failed."""


class _Search:
    """The smallest failure so far."""

    def __init__(self, writer: Connection, reader: Connection) -> None:
        self.writer = writer
        self.reader = reader
        self.examples: Counter[str] = Counter()
        self.fault: Fault | None = None
        self.plan: dict[str, Any] | None = None
        self.since: float | None = None

    def told(self) -> str:
        """Return how many exchanges there were, by storage."""
        counts = ", ".join(f"{count} {storage}" for storage, count in sorted(self.examples.items()))
        return f"{self.examples.total()} examples: {counts}" if counts else "no examples"

    def attempt(self, plan: dict[str, Any]) -> None:
        if self.since is not None and time.monotonic() - self.since > SHRINKING_S:
            return
        self.examples[plan["storage"]] += 1
        fault = exchange(self.writer, self.reader, plan)
        if fault is None:
            return
        if self.fault is not None and (fault.blamed, fault.role) != (self.fault.blamed, self.fault.role):
            return
        self.since = self.since or time.monotonic()
        self.fault, self.plan = fault, plan
        raise _FoundError


def case_of(search_plan: dict[str, Any], fault: Fault, writer: str, reader: str) -> dict[str, Any]:
    """Return a failed exchange as a document that `replay` takes."""
    return {
        "kind": "exchange", "writer": writer, "reader": reader, "fault": f"{fault.role} {fault.blamed}",
        "why": fault.why, "plan": search_plan,
    }  # fmt: skip


def run_pair(writer: Connection, reader: Connection, *, examples: int, seed_: int) -> list[Result]:
    """Return results of one ordered pair: one for the writer, one for the reader."""
    search = _Search(writer, reader)
    start = time.monotonic()
    try:
        strategy = plans(writer.hello(), reader.hello())
        looked = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        seed(seed_)(looked(given(strategy)(search.attempt)))()
    except DriverError as wrong:
        search.fault = search.fault or Fault(writer.label, "writer", "crash", str(wrong))
    except BaseException as wrong:
        # What hypothesis raises says less than what the search has kept.
        if search.fault is None or isinstance(wrong, KeyboardInterrupt):
            raise
    ms = 1000 * (time.monotonic() - start)
    found = []
    for role, mine, other in (("writer", writer, reader), ("reader", reader, writer)):
        fault = search.fault
        blamed = (
            fault is not None
            and fault.blamed == mine.label
            and (fault.role == "writer") == (role == "writer")
        )
        # With A to A both are one implementation: the role says which half is meant.
        found.append(
            Result(
                id=f"generated/{writer.label}-to-{reader.label}:{role}",
                driver=mine.label,
                role=fault.role if blamed and fault is not None else role,
                level="reshard",
                outcome=fault.outcome if blamed and fault is not None else "pass",
                requirements=REQUIREMENTS,
                ms=ms,
                detail=fault.why if blamed and fault is not None else search.told(),
                stderr=fault.stderr if blamed and fault is not None else "",
                other=other.label,
                case=case_of(search.plan, fault, writer.label, reader.label)
                if blamed and fault is not None and search.plan is not None
                else None,
            )
        )
    return found


def run_pairs(
    connections: Sequence[Connection], tell: Callable[[Result], None], *, examples: int, seed_: int
) -> Iterator[Result]:
    """Yield all ordered pairs of drivers that write and read; each with itself first."""
    pairs = [(one, one) for one in connections]
    pairs += [(writer, reader) for writer in connections for reader in connections if writer is not reader]
    for writer, reader in pairs:
        if (
            "writer" not in writer.hello().document["roles"]
            or "reader" not in reader.hello().document["roles"]
        ):
            continue
        for result in run_pair(writer, reader, examples=examples, seed_=seed_):
            tell(result)
            yield result


def replay(case: dict[str, Any], writer: Connection, reader: Connection) -> Fault | None:
    """Run a serialised exchange again."""
    return exchange(writer, reader, case["plan"])
