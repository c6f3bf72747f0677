"""Each replica of a job hears of the end of another, unless that has said that it leaves."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import ucpformat as ucp
from ucpformat.replay.replica.company import Company, alone
from ucpformat.replay.replica.ties import Meeting, Ties, opened, tied

WAIT = 30.0


class Tied:
    """The ties of one replica, its own socket, and whether it has heard of an end."""

    def __init__(self, ties: Ties, end: socket.socket, heard: threading.Event) -> None:
        self.ties, self.end, self.heard = ties, end, heard

    def die(self) -> None:
        """Close what the kernel would."""
        self.end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def job() -> Iterator[tuple[Meeting, list[Tied]]]:
    """The first replica of three, and two others."""
    with ExitStack() as stack:
        meeting, (_, listener) = stack.enter_context(opened("127.0.0.1"))
        secret = bytes.fromhex(meeting.secret)
        heard = [threading.Event() for _ in range(3)]
        found = [Tied(Ties(listener=listener, secret=secret, broken=heard[0].set), listener, heard[0])]
        for event in heard[1:]:
            tie = stack.enter_context(tied(meeting))
            found.append(Tied(Ties(tie=tie, broken=event.set), tie, event))
        until_known(found[0].ties, 2)
        yield meeting, found


def until_known(ties: Ties, count: int) -> None:
    """Return when the first replica knows so many others."""
    limit = time.monotonic() + WAIT
    while sum(len(one) >= 16 for one in [*ties._heard.values()]) != count:
        assert time.monotonic() < limit
        time.sleep(0.002)


def test_all_hear_of_one_that_is_gone(job: tuple[Meeting, list[Tied]]) -> None:
    _, (first, second, third) = job
    third.die()
    assert first.heard.wait(WAIT)
    assert second.heard.wait(WAIT)


def test_nobody_hears_of_one_that_leaves(job: tuple[Meeting, list[Tied]]) -> None:
    _, (first, second, third) = job
    third.ties.leave()
    third.die()
    until_known(first.ties, 1)
    assert not first.heard.is_set()
    assert not second.heard.is_set()
    first.ties.leave()
    for tie in [*first.ties._heard]:
        tie.shutdown(socket.SHUT_RDWR)
    until_known(first.ties, 0)
    assert not first.heard.is_set()
    assert not second.heard.is_set()


def test_the_others_hear_of_the_end_of_the_first(job: tuple[Meeting, list[Tied]]) -> None:
    _, (first, second, third) = job
    for tie in [*first.ties._heard]:
        tie.shutdown(socket.SHUT_RDWR)
    assert second.heard.wait(WAIT)
    assert third.heard.wait(WAIT)


def test_a_stranger_may_come_and_go(job: tuple[Meeting, list[Tied]]) -> None:
    meeting, (first, *_) = job
    for said in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes.fromhex(meeting.secret)[:5]):
        with socket.create_connection((meeting.host, meeting.ties)) as stranger:
            stranger.sendall(said)
    # Connections are taken in the order in which they were made.
    with tied(meeting):
        until_known(first.ties, 3)
        assert not first.heard.is_set()
    assert first.heard.wait(WAIT)


def test_a_meeting_that_nobody_holds_is_refused() -> None:
    with opened("127.0.0.1") as (meeting, _):
        pass
    with pytest.raises(ucp.UcpError, match=r"UCP-E-RANK.*set MASTER_ADDR"), tied(meeting):
        pass


def test_a_save_breaks_a_job_of_replicas_where_it_cannot_talk() -> None:
    def problem(code: str, cause: BaseException | None) -> ucp.UcpError:
        found = ucp.errors.error(code, "a save")
        found.__cause__ = cause
        return found

    class Group:
        rank = 0
        ranks = (0, 1)

    company = Company(Group(), None)  # type: ignore[arg-type]
    assert company.is_broken_by(problem("UCP-E-RANK", RuntimeError()))
    assert not company.is_broken_by(problem("UCP-E-RANK", None))
    assert not company.is_broken_by(problem("UCP-E-STORE", RuntimeError()))
    assert not alone().is_broken_by(problem("UCP-E-RANK", RuntimeError()))
