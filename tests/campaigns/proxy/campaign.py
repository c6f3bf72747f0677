"""Runs operations against a proxy that misbehaves, and judges what is left by a client that goes round it.

Nothing that was committed is lost. Nobody is told of a success that is none, nor, by a fault that is met once, of a
failure. What fails for ever ends with a registered error, after a bounded number of requests. An attempt afterwards
commits, or is told what is in its way; when that is collected, it commits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from uuid import uuid4

import fsspec
import numpy as np
from s3fs import S3FileSystem

import ucpformat as ucp
from benchmarks.s3_server import BUCKET, S3Server, served
from tests.campaigns.faults.state import state
from tests.campaigns.proxy.logs import LOGS
from tests.campaigns.proxy.proxy import KINDS, Fault, Proxy, Request
from tests.campaigns.proxy.scenarios import PART_BYTES, SCENARIOS, Place, Scenario
from ucpformat.errors import UcpError
from ucpformat.manager.collection import collect
from ucpformat.manager.retention import Retention
from ucpformat.manager.run_directory import open_run
from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.stores.remote import conditional_put, repetition

__all__ = ["Campaign", "Run", "drawn"]

_SOON: Final = 0.4
"""Seconds after which a client that is to meet slow answers gives a request up."""

_MOST: Final = 400
"""Requests that one operation may make when each of them fails."""


_LOGGED: Final = frozenset(("500 before", "500 after", "503 before", "503 after", "429 before", "slow"))
"""Faults that a log has when the operation succeeds.

aiohttp does not say that it repeats what was asked by a connection that it had kept and that was closed, nor s3fs that
it reads again what was cut off.
"""


@dataclass(frozen=True)
class Run:
    """A scenario and the fault that it meets; ``request`` is what the request of that number was without any."""

    scenario: Scenario
    fault: Fault
    request: Request


class _Told(logging.Handler):
    """Counts what is logged."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


@dataclass
class Campaign:
    """Runs below one bucket; ``counts`` is how they ended, ``wrong`` what must not be."""

    directory: Path
    proxy: Proxy
    direct: dict[str, Any]
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    most: int = 0
    told: _Told = field(default_factory=_Told)

    @classmethod
    @contextmanager
    def begun(cls, directory: Path) -> Iterator[Campaign]:
        """With a server and a proxy, for the time of the block."""
        with ExitStack() as stack:
            stack.enter_context(patch.dict(os.environ, {"S3_UPLOAD_PART_MIN_SIZE": str(PART_BYTES)}))
            server = stack.enter_context(served())
            proxy = Proxy(server.endpoint, _SOON)
            proxy.start()
            stack.callback(proxy.stop)
            stack.enter_context(patch("asyncio.sleep", _hurried(asyncio.sleep, proxy.thread)))
            stack.enter_context(patch.object(repetition, "_FIRST_WAIT", 0.0))
            before = fsspec.config.conf.get("s3")
            campaign = cls(directory, proxy, server.options())
            log = logging.getLogger("ucpformat.storage")
            stack.enter_context(patch.object(log, "propagate", False))
            log.addHandler(campaign.told)
            stack.callback(log.removeHandler, campaign.told)
            yield campaign
            S3FileSystem.clear_instance_cache()
            fsspec.config.conf.pop("s3", None)
            if before is not None:
                fsspec.config.conf["s3"] = before

    @contextmanager
    def _client(self, kind: str | None) -> Iterator[None]:
        """s3fs asks the proxy, or for None the server itself."""
        options = self.direct
        if kind is not None:
            waits = {"read_timeout": _SOON if kind == "slow" else 60}
            options = {**S3Server(self.proxy.endpoint).options(), "config_kwargs": waits}
        with patch.dict(fsspec.config.conf, {"s3": options}):
            yield

    def runs(self) -> Iterator[Run]:
        """Every fault of every request of every scenario, as a run without any shows them; once and for ever."""
        for scenario in (*SCENARIOS, *LOGS):
            for request in self.requests(scenario):
                for kind in KINDS:
                    if request.can_meet(kind):
                        for for_ever in (False, True):
                            yield Run(scenario, Fault(kind, request.number, for_ever), request)

    def requests(self, scenario: Scenario) -> list[Request]:
        """The requests of a scenario when nothing fails."""
        with self._place(scenario) as place:
            problem = self._met(scenario, place, None)
            if problem is not None:
                raise problem
            requests = sorted(self.proxy.requests, key=lambda request: request.number)
            self._judge(scenario, place, None, "no fault", None)
            return requests

    def run(self, run: Run) -> None:
        """Run, and judge."""
        with self._place(run.scenario) as place:
            begun = time.monotonic()
            problem = self._met(run.scenario, place, run.fault)
            seconds = time.monotonic() - begun
            self.counts["runs"] += 1
            if not self.proxy.met:
                self.counts["faults that were not met"] += 1
            what = f"{run.fault} ({run.request}), {self.proxy.met} met, {seconds:.1f} s"
            self._judge(run.scenario, place, run.fault, what, problem)

    @contextmanager
    def _place(self, scenario: Scenario) -> Iterator[Place]:
        url = f"s3://{BUCKET}/{uuid4().hex}"
        with tempfile.TemporaryDirectory(dir=self.directory) as local:
            place = Place(url, Path(local))
            with self._client(None):
                scenario.prepare(place)
            yield place

    def _met(self, scenario: Scenario, place: Place, fault: Fault | None) -> BaseException | None:
        """What a scenario raises."""
        conditional_put._known.clear()
        repetition._stores.clear()  # the run before has left a store that does not answer
        self.told.count = 0
        with (
            self._client("" if fault is None else fault.kind),
            self.proxy.armed(fault),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # what could not be removed, on purpose
            try:
                scenario.run(place)
            except BaseException as problem:
                return problem
        return None

    def _judge(
        self, scenario: Scenario, place: Place, fault: Fault | None, what: str, problem: BaseException | None
    ) -> None:
        def say(wrong: str) -> None:
            self.wrong.append(f"{scenario.name}, {what}: {wrong}")

        self.most = max(self.most, self.proxy.met)
        if self.proxy.met > _MOST:
            say(f"{self.proxy.met} requests met the fault")
        if problem is None:
            self.counts["succeeded"] += 1
            if self.told.count:
                self.counts["succeeded, and failed requests were logged"] += 1
            elif fault is not None and self.proxy.met and fault.kind in _LOGGED:
                say("a request failed, and nobody is told")
        elif isinstance(problem, UcpError):
            self.counts["registered errors"] += 1
            if fault is None or not (fault.for_ever or fault.kind == "flipped"):
                say(f"a failure that is none: {problem}")
        else:
            say("".join(traceback.format_exception(problem)))
        with self._client(None):
            S3FileSystem(**self.direct).invalidate_cache()
            for name, number in (scenario.keeps or {}).items():
                if not _is_committed(f"{place.url}/{name}"):
                    say(f"{name} is gone")
                elif (harm := _harm(f"{place.url}/{name}", number)) is not None:
                    say(f"{name} is gutted: {harm}")
            for name, number in (scenario.makes or {}).items():
                self._judge_made(place, name, number, problem, say)
            if scenario.judge is not None and (wrong := scenario.judge(place, problem)) is not None:
                say(wrong)
        if scenario.local is not None and problem is None:
            harm = _harm(str(place.local / scenario.local), 1)
            if harm is not None:
                say(f"the local checkpoint is gutted: {harm}")

    def _judge_made(
        self, place: Place, name: str, number: int, problem: BaseException | None, say: Callable[[str], None]
    ) -> None:
        url = f"{place.url}/{name}"
        if _is_committed(url):
            self.counts["committed"] += 1
            if problem is not None:
                self.counts["committed, and a failure was told"] += 1
            if (harm := _harm(url, number)) is not None:
                say(f"{name} is gutted: {harm}")
            return
        if problem is None:
            say(f"{name} is not there, and success was told")
        try:
            ucp.save(url, state(number), storage="plain")
        except UcpError as refused:
            left = S3FileSystem(**self.direct).find(url, refresh=True)
            if refused.code != "UCP-E-EXISTS" or not left:
                say(f"a save afterwards fails: {refused}")
            self.counts["left to be collected"] += 1
            _collected(url)
            ucp.save(url, state(number))
        if (harm := _harm(url, number)) is not None:
            say(f"a save afterwards is gutted: {harm}")


def _collected(url: str) -> None:
    """Remove debris as `ucp gc` does, which looks for the names that a manager gives."""
    run = open_run(url.rpartition("/")[0])
    with patch.object(type(run), "without_root", lambda _: [url.rpartition("/")[2]]):
        for problem in collect(run, Retention(), debris_age=0).failed.values():
            raise problem


def _hurried(sleep: Callable[..., Any], patient: threading.Thread) -> Callable[..., Any]:
    """`asyncio.sleep` that does not wait, but in the thread of the proxy: what a client waits between its tries."""

    async def hurried(seconds: float, result: Any = None) -> Any:
        return await sleep(seconds if threading.current_thread() is patient else 0, result)

    return hurried


def _is_committed(url: str) -> bool:
    return bool(fsspec.filesystem("s3").exists(f"{url}/{ROOT_KEY}"))


def _harm(url: str, number: int) -> str | None:
    """What is wrong with a committed checkpoint."""
    try:
        problems = [problem for problem in ucp.validate(url, workers=1) if problem.severity == "error"]
        if problems:
            return f"{problems[0].code} at {problems[0].at}"
        found, expected = ucp.load(url), state(number)
        same = (np.array_equal(found["model"][name], array) for name, array in expected["model"].items())
        if found["step"] != number or not all(same):
            return "it holds something else"
    except UcpError as problem:
        return str(problem)
    return None


def drawn(runs: Sequence[Run], count: int) -> list[Run]:
    """So many of the runs, at even distances."""
    return [runs[len(runs) * number // count] for number in range(min(count, len(runs)))]
