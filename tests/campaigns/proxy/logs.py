"""Update logs at an ``s3://`` URL while requests fail: jobs that log, that recover, that go on (SPEC-UPDATE-LOGS 4)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch

import ucpformat as ucp
from tests.campaigns.proxy.scenarios import Place, Scenario
from tests.replay.jobs import Job, trained

__all__ = ["LOGS"]

_HALF: Final = 4
_ALL: Final = 7


def _recovered(place: Place) -> tuple[Job, ucp.Recovery]:
    """A job at the step that it recovers, which is one of training, to the last bit."""
    job = Job()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    recovery = ucp.recover(place.url, job.model, job.optimizer, state=job.objects)
    if recovery.step == 0:
        torch.set_rng_state(state)
    job.require_equal(trained(recovery.step))
    return job, recovery


def _log(place: Place, stop: int) -> None:
    """Recover, and log up to a step; what is told to be durable on the way is noted."""
    job, recovery = _recovered(place)
    _require(recovery.step, _told(place))
    options: dict[str, Any] = {"batch": 1, "full_every": 3, "check_every": 1}
    with ucp.UpdateLog(
        place.url, job.model, job.optimizer, state=job.objects, after=recovery, **options
    ) as log:
        try:
            for step in range(recovery.step, stop):
                job.train(log, step, step + 1)
                log.flush()
        finally:
            (place.local / "durable").write_text(str(log.durable_step))


def _told(place: Place) -> int:
    path = place.local / "durable"
    return int(path.read_text()) if path.exists() else 0


def _require(step: int, least: int) -> None:
    if step < least:
        raise AssertionError(f"step {step} was recovered, and {least} told to be durable")


def _recover(place: Place) -> None:
    """The newest step, or a failure that is told: not an earlier one for a fault of the way to it."""
    _require(_recovered(place)[1].step, _HALF)


def _judge(place: Place, problem: BaseException | None, *, stop: int) -> str | None:
    """Say what is wrong with a run, as a client sees it that goes round the proxy."""
    try:
        _, recovery = _recovered(place)
        _require(recovery.step, _told(place) if problem is not None else stop)
        _log(place, _ALL)
        _require(_recovered(place)[1].step, _ALL)
    except Exception as wrong:
        return f"{type(wrong).__name__}: {wrong}"
    return None


LOGS: Sequence[Scenario] = (
    Scenario("log", partial(_log, stop=_HALF), judge=partial(_judge, stop=_HALF)),
    Scenario(
        "log, gone on with",
        partial(_log, stop=_ALL),
        partial(_log, stop=_HALF),
        judge=partial(_judge, stop=_ALL),
    ),
    Scenario("log, recovered", _recover, partial(_log, stop=_HALF), judge=partial(_judge, stop=_HALF)),
)
