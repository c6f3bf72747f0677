"""Generated mode: hypothesis looks for an exchange or a life that fails; it is shrunk over the live processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from hypothesis import HealthCheck, Phase, example, given, seed, settings
from hypothesis.strategies import SearchStrategy

from ucp_conformance.connection import Connection, DriverError
from ucp_conformance.exchange import REQUIREMENTS, Fault, exchange
from ucp_conformance.log_plans import FIRST_LIVES, log_plans
from ucp_conformance.log_run import reads_logs
from ucp_conformance.log_sequences import REQUIREMENTS as LIVES_HOLD
from ucp_conformance.log_sequences import live, writes_logs
from ucp_conformance.log_shrinking import shrunk
from ucp_conformance.results import Result
from ucp_conformance.strategies import plans

__all__ = ["case_of", "replay", "run_lives", "run_pair", "run_pairs"]

PREFIXES: Final = {"exchange": "generated", "log": "logs"}
"""What ids of results begin with, by kind of case."""

SHRINKING_S = 20.0
"""How long a failure is shrunk."""


class _FoundError(Exception):
    """An exchange failed."""


class _Search:
    """The smallest failure so far of what ``run`` makes of a plan; ``sort_of`` says how examples are counted."""

    def __init__(
        self, run: Callable[[dict[str, Any]], Fault | None], sort_of: Callable[[dict[str, Any]], str]
    ) -> None:
        self.run = run
        self.sort_of = sort_of
        self.examples: Counter[str] = Counter()
        self.fault: Fault | None = None
        self.plan: dict[str, Any] | None = None
        self.since: float | None = None

    def told(self) -> str:
        """Return how many examples there were, by sort."""
        counts = ", ".join(f"{count} {sort}" for sort, count in sorted(self.examples.items()))
        return f"{self.examples.total()} examples: {counts}" if counts else "no examples"

    def fails(self, plan: dict[str, Any]) -> bool:
        """Return whether a plan fails as the one before did, while there is time."""
        try:
            self.attempt(plan)
        except _FoundError:
            return True
        return False

    def attempt(self, plan: dict[str, Any]) -> None:
        if self.since is not None and time.monotonic() - self.since > SHRINKING_S:
            return
        self.examples[self.sort_of(plan)] += 1
        fault = self.run(plan)
        if fault is None:
            return
        if self.fault is not None and (fault.blamed, fault.role) != (self.fault.blamed, self.fault.role):
            return
        self.since = self.since or time.monotonic()
        self.fault, self.plan = fault, plan
        raise _FoundError


def case_of(
    search_plan: dict[str, Any], fault: Fault, writer: str, reader: str, kind: str = "exchange"
) -> dict[str, Any]:
    """Return a failed exchange or life of a log as a document that `replay` takes."""
    return {
        "kind": kind, "writer": writer, "reader": reader, "fault": f"{fault.role} {fault.blamed}",
        "why": fault.why, "plan": search_plan,
    }  # fmt: skip


def _searched(
    search: _Search,
    strategy: SearchStrategy[dict[str, Any]],
    writer: Connection,
    examples: int,
    seed_: int,
    first: Sequence[dict[str, Any]] = (),
    shrink: Callable[[dict[str, Any], Callable[[dict[str, Any]], bool]], object] | None = None,
) -> float:
    """Look for a failure, of ``first`` before others, and shrink it; returns the time that it took, in ms.

    ``shrink`` does that in place of hypothesis.
    """
    start = time.monotonic()
    phases = [Phase.explicit, Phase.generate, *([] if shrink else [Phase.shrink])]
    try:
        looked = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        attempted = given(strategy)(search.attempt)
        for plan in first:
            attempted = example(plan)(attempted)
        seed(seed_)(looked(attempted))()
    except DriverError as wrong:
        search.fault = search.fault or Fault(writer.label, "writer", "crash", str(wrong))
    except BaseException as wrong:
        # What hypothesis raises says less than what the search has kept.
        if search.fault is None or isinstance(wrong, KeyboardInterrupt):
            raise
    if shrink is not None and search.plan is not None:
        shrink(search.plan, search.fails)
    return 1000 * (time.monotonic() - start)


def run_pair(writer: Connection, reader: Connection, *, examples: int, seed_: int) -> list[Result]:
    """Return results of one ordered pair: one for the writer, one for the reader."""
    search = _Search(lambda plan: exchange(writer, reader, plan), lambda plan: str(plan["storage"]))
    ms = _searched(search, plans(writer.hello(), reader.hello()), writer, examples, seed_)
    return _results(search, writer, reader, ms, "exchange", level="reshard", requirements=REQUIREMENTS)


def _results(
    search: _Search, writer: Connection, reader: Connection, ms: float, kind: str, **members: Any
) -> list[Result]:
    """Return a result for each half, the one to blame among them, and another one where neither half is."""
    fault = search.fault
    name = f"{PREFIXES[kind]}/{writer.label}-to-{reader.label}"
    passed = [
        Result(
            f"{name}:{role}", mine, role, outcome="pass", ms=ms, detail=search.told(), other=other, **members
        )
        for role, mine, other in (
            ("writer", writer.label, reader.label),
            ("reader", reader.label, writer.label),
        )
    ]
    if fault is None:
        return passed
    case = None
    if search.plan is not None:
        case = case_of(search.plan, fault, writer.label, reader.label, kind)
    said: dict[str, Any] = {
        "role": fault.role, "outcome": fault.outcome, "detail": fault.why, "stderr": fault.stderr, "case": case,
    }  # fmt: skip
    # With A to A both are one implementation: the role says which half is meant.
    half = "writer" if fault.role == "writer" else "reader"
    found = [
        replace(one, **said) if (one.driver, one.role) == (fault.blamed, half) else one for one in passed
    ]
    if found == passed:
        other = Result(
            f"{name}:{half}-{fault.blamed}", fault.blamed, ms=ms, other=writer.label, **members | said
        )
        found.append(other)
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


def run_lives(
    connections: Sequence[Connection], tell: Callable[[Result], None], *, examples: int, seed_: int
) -> Iterator[Result]:
    """Yield two results for each ordered pair of drivers of which one writes logs, and both read them if they are two.

    In the lives of a pair the first logs, the second recovers and goes on, and so on; at the end all drivers recover.
    Of a driver that reads logs and claims to write none, it yields that.
    """
    readers = [connection for connection in connections if reads_logs(connection)]
    members: dict[str, Any] = {
        "level": "full", "requirements": LIVES_HOLD, "features": ("update-log",)
    }  # fmt: skip
    writers = [connection for connection in connections if writes_logs(connection)]
    for reader in readers:
        if reader not in writers:
            name = f"{PREFIXES['log']}/{reader.label}:writer"
            result = Result(name, reader.label, "writer", outcome="unclaimed", **members)
            tell(result)
            yield result
    pairs = [(one, one) for one in writers]
    pairs += [(writer, reader) for writer in writers for reader in readers if writer is not reader]
    for writer, reader in pairs:
        search = _Search(partial(live, [writer, reader], readers), lambda plan: str(plan["optimizer"]))
        ms = _searched(search, log_plans(), writer, examples, seed_, FIRST_LIVES, shrunk)
        for result in _results(search, writer, reader, ms, "log", **members):
            tell(result)
            yield result


def replay(case: dict[str, Any], writer: Connection, reader: Connection) -> Fault | None:
    """Run a serialised exchange or life of a log again."""
    if case["kind"] == "log":
        return live([writer, reader], [reader], case["plan"])
    return exchange(writer, reader, case["plan"])
