"""The manager on several ranks, threads of one process: the first decides, and what one finds all go by."""

from __future__ import annotations

import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ucpformat as ucp
from tests.distributed.test_background import together
from tests.distributed.thread_group import ThreadGroup, run_threads
from ucpformat.errors import UcpError

RANKS = 3
ROWS = ucp.Layout(ucp.Mesh((ucp.MeshAxis("dp", RANKS),)), (ucp.Shard("dp", 0),))
LAYOUTS = {"model.w": ucp.TensorLayout(ROWS, (900,))}


def state(rank: int, step: int) -> dict[str, Any]:
    return {"model": {"w": np.full(300, 10 * step + rank, np.float32), "b": np.full(7, step)}, "step": step}


def manager(path: Path, group: ThreadGroup, **options: Any) -> ucp.CheckpointManager:
    return ucp.CheckpointManager(path, group=group, **options)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_ranks_save_keep_and_resume_together(tmp_path: Path, asynchronous: bool) -> None:
    def work(group: ThreadGroup) -> list[object]:
        with manager(
            tmp_path, group, keep_best=1, metric="loss", mode="max", asynchronous=asynchronous
        ) as run:
            for step, loss in ((1, 0.5), (2, 3.0), (3, 1.0), (4, 2.0)):
                # Of metrics, the first rank's count.
                run.save(step, state(group.rank, step), metrics={"loss": loss + group.rank}, layouts=LAYOUTS)
            run.wait()
            filled = state(9, 9)
            return [
                run.resume(filled, layouts=LAYOUTS),
                filled["step"],
                int(filled["model"]["w"][-1]),
                run.steps(),
                run.latest(),
                run.metrics(2)["loss"],
                run.collect(),
            ]

    for rank, found in enumerate(together(RANKS, work)):
        assert found == [4, 4, 40 + rank, [2, 4], 4, 3.0, []]


def test_damage_that_one_rank_meets_sends_all_to_the_one_before(tmp_path: Path) -> None:
    """Each reads its own rows; those of the last rank alone are damaged."""

    def write(group: ThreadGroup) -> None:
        with manager(tmp_path, group) as run:
            for step in (1, 2):
                run.save(step, state(group.rank, step), layouts=LAYOUTS, chunk_bytes=1200)

    together(RANKS, write)
    (pack,) = (tmp_path / "step-2.ucp" / "packs").glob("*-2-0.pack")
    pack.write_bytes(bytes([pack.read_bytes()[0] ^ 1]) + pack.read_bytes()[1:])

    def read(group: ThreadGroup) -> tuple[int | None, int, set[int]]:
        filled = state(9, 9)
        del filled["model"]["b"]
        with manager(tmp_path, group) as run:
            found = run.resume(filled, layouts=LAYOUTS, strict=False)
            return found, int(filled["model"]["w"][0]), set(run.damaged)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = together(RANKS, read)
    assert found == [(1, 10 + rank, {2}) for rank in range(RANKS)]
    assert [str(one.message).count("passed over") for one in told] == [1], "the first rank says it, once"


def test_what_one_rank_alone_cannot_do_fails_on_all(tmp_path: Path) -> None:
    together(RANKS, lambda group: manager(tmp_path, group).save(1, state(group.rank, 1), layouts=LAYOUTS))

    def work(group: ThreadGroup) -> None:
        filled = state(9, 9)
        if group.rank == 1:
            del filled["model"]["w"]
            filled["model"]["other"] = np.zeros(3)
        manager(tmp_path, group).resume(filled, layouts={} if group.rank == 1 else LAYOUTS)

    for failure in run_threads(RANKS, work):
        assert isinstance(failure, UcpError)
        assert failure.code == "UCP-E-MISMATCH"


def test_a_directory_that_the_first_rank_cannot_read_fails_on_all(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")

    def work(group: ThreadGroup) -> None:
        manager(tmp_path / "run", group).latest()

    for failure in run_threads(RANKS, work):
        assert isinstance(failure, UcpError)


def test_a_signal_to_one_rank_stops_all(tmp_path: Path) -> None:
    """Threads have no signals of their own: one of them notes what the process got."""

    def work(group: ThreadGroup) -> list[bool]:
        run = manager(tmp_path, group)
        found = [run.stopping()]
        if group.rank == 1:
            run._stop = Stopped()  # type: ignore[assignment]
        return [*found, run.stopping()]

    assert together(RANKS, work) == [[False, True]] * RANKS


class Stopped:
    came = True


def test_a_signal_is_noted_until_the_manager_is_closed(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        with ucp.CheckpointManager(tmp_path) as run:
            run.stop_on(signal.SIGUSR1, signal.SIGUSR2)
            run.stop_on(signal.SIGUSR1)
            assert not run.stopping()
            signal.raise_signal(signal.SIGUSR2)
            assert run.stopping()
            signal.raise_signal(signal.SIGUSR1)
        assert heard == [signal.SIGUSR1], "who listened before hears it as well"
        signal.raise_signal(signal.SIGUSR1)
        assert len(heard) == 2
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGUSR1, before)
