"""What ranks do together where replicas of theirs are gone: at one step, and without one that waits for ever."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ucpformat as ucp
from ucpformat.replay.replica import feed as feeding
from ucpformat.replay.replica.feed import ReplicaFeed
from ucpformat.replay.replica.link import LostError
from ucpformat.replay.replica.roll_call import Standing
from ucpformat.replay.replica.setting import Setting
from ucpformat.replay.replica.wire import Message
from ucpformat.update_log.documents import Epoch
from ucpformat.update_log.drafts import BatchDraft, StepDraft

STEPS = 7
WAIT = 60.0
CURRENT = threading.local()
"""The group of the rank that is this thread."""


def test_the_greatest_standing_is_the_worst() -> None:
    order = [Standing(), Standing(True), Standing(True, 0), Standing(True, 5), Standing(True, 0, True)]
    numbers = [one.to_int() for one in order]
    assert numbers == sorted(set(numbers))
    assert [Standing.from_int(one) for one in numbers] == order


@dataclass
class Company:
    """Replicas of all ranks that were begun together; where one dies, the others do so a few calls later."""

    ready: threading.Barrier
    steps: dict[int, int] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    fails: bool = False


@dataclass
class World:
    """Ranks that are threads.

    ``deaths`` has of each rank at which calls of its links these die; a call of 0 is their beginning. ``lag`` is how
    many calls behind that the others' die.
    """

    ranks: int
    deaths: Mapping[int, Sequence[int]]
    lag: int
    companies: dict[int, Company] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)
    living: dict[int, int] = field(default_factory=dict)
    said: dict[tuple[int, int], int] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def company(self, number: int) -> Company:
        with self.changed:
            return self.companies.setdefault(number, Company(threading.Barrier(self.ranks)))

    def call(self, rank: int) -> bool:
        """Count a call of a rank's links; return whether they die at it."""
        with self.changed:
            self.calls[rank] = self.calls.get(rank, 0) + 1
            return self.calls[rank] in self.deaths.get(rank, ())


@dataclass
class Member:
    """The group of one rank, as the roll call and a feed ask for it."""

    world: World
    rank: int
    turn: int = 0

    @property
    def ranks(self) -> range:
        return range(self.world.ranks)

    def another(self) -> Member:
        return Member(self.world, self.rank)

    def greatest(self, number: int) -> Callable[[], int]:
        turn, self.turn = self.turn, self.turn + 1
        with self.world.changed:
            self.world.said[turn, self.rank] = number
            self.world.changed.notify_all()

        def wait() -> int:
            names = [(turn, rank) for rank in self.ranks]
            with self.world.changed:
                assert self.world.changed.wait_for(lambda: all(one in self.world.said for one in names), WAIT)
                return max(self.world.said[one] for one in names)

        return wait


class FakeLink:
    """A link to a replica that makes each step at once, and may die."""

    process = None

    def __init__(self, hello: Any, tensors: object, *, nbytes: int, group: Member) -> None:
        self.world, self.rank = group.world, group.rank
        self.company = self.world.company(hello["company"])
        self.durable_step, self.made, self.has_died, self.is_over = -1, 0, False, False
        self.memory = np.zeros(1 << 16, np.uint8)
        self.step: int = hello["step"]
        self.lag = self.world.lag
        self.company.steps[self.rank] = self.step
        self.company.fails |= self.world.call(self.rank)
        self.world.living[self.rank] = self.world.living.get(self.rank, 0) + 1
        assert self.world.living[self.rank] == 1
        self.company.ready.wait(WAIT)
        if self.company.fails:
            self.discard()
            raise LostError("it was killed", is_own=True)

    def act(self) -> None:
        assert not self.is_over
        if self.company.dead - {self.rank}:
            self.lag -= 1
        own = self.world.call(self.rank)
        if own or self.lag < 0:
            self.company.dead.add(self.rank)
            self.discard()
            raise LostError("it was killed", is_own=own)

    def take(self, nbytes: int) -> int:
        self.act()
        return 0

    def put(self, step: int, start: int, nbytes: int) -> None:
        self.act()
        assert step == self.step
        self.step, self.made = step + 1, self.made + 1

    def tell(self, message: Message) -> None:
        self.act()

    def hear(self, *, wait: bool) -> object:
        self.act()
        self.durable_step = self.step
        return object() if wait else None

    def raise_told(self) -> None:
        pass

    def discard(self) -> None:
        self.world.living[self.rank] -= not self.is_over
        self.is_over = True

    leave = end = discard


def trained(world: World, epoch: Epoch) -> list[tuple[str, int]]:
    """Train on all ranks; return how each has ended, and with which step durable."""
    found: list[tuple[str, int]] = [("hangs", 0)] * world.ranks

    def train(rank: int) -> None:
        member = Member(world, rank)
        CURRENT.member = member
        model = torch.nn.Linear(2, 2)
        group: Any = member
        setting = Setting("run", "run", epoch, "", None, 2, group, frozenset())
        try:
            feed = ReplicaFeed(
                ucp.Replica(), setting, model, torch.optim.SGD(model.parameters()), {}, most_bytes=1
            )
            for step in range(STEPS):
                feed.begin_step()
                feed.put(BatchDraft(step, [StepDraft()], {}, (), None))
                if step == 3:
                    feed.full()
                if step == 4:
                    feed.drain()
                    assert feed.durable_step == 5
            feed.close()
            found[rank] = "done", feed.durable_step
        except ucp.UcpError as problem:
            found[rank] = problem.code, 0
        except BaseException as problem:
            found[rank] = repr(problem), 0

    threads = [threading.Thread(target=train, args=(rank,), daemon=True) for rank in range(world.ranks)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(feeding, "Link", FakeLink)
        patched.setattr(feeding, "TorchGroup", lambda: CURRENT.member)
        for one in threads:
            one.start()
        for one in threads:
            one.join(WAIT)
    return found


@pytest.fixture(scope="module")
def epoch(tmp_path_factory: pytest.TempPathFactory) -> Epoch:
    model = torch.nn.Linear(2, 2)
    with ucp.UpdateLog(
        tmp_path_factory.mktemp("log") / "run", model, torch.optim.SGD(model.parameters())
    ) as log:
        return log._epoch


@given(
    st.integers(2, 3),
    st.dictionaries(st.integers(0, 2), st.lists(st.integers(1, 40), max_size=2), max_size=3),
    st.integers(0, 3),
)
def test_all_ranks_replace_theirs_at_one_step_or_all_say_that_they_do_not(
    epoch: Epoch, ranks: int, deaths: dict[int, list[int]], lag: int
) -> None:
    world = World(ranks, deaths, lag)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = trained(world, epoch)
    assert found in ([("done", STEPS)] * ranks, [("UCP-E-RANK", 0)] * ranks), (found, world)
    for company in world.companies.values():
        assert sorted(company.steps) == list(range(ranks))
        assert len({*company.steps.values()}) == 1
    # A loss is known one step later: a company goes on from a later step than the one before, or from the last.
    begun = [next(iter(one.steps.values())) for _, one in sorted(world.companies.items())]
    assert begun == sorted(begun)
    assert not any(world.living.values())


def test_it_is_the_rank_concerned_that_warns(epoch: Epoch) -> None:
    world = World(3, {1: [9]}, 1)
    with pytest.warns(RuntimeWarning) as warned:
        found = trained(world, epoch)
    assert found == [("done", STEPS)] * 3
    (one,) = warned
    assert "the replica is gone (it was killed); another one has the state of step" in str(one.message)
    assert len(world.companies) == 2
