"""Saving in the background, with threads for ranks: what is stored is the snapshot, and no failure goes unheard."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.distributed.test_save import TensorLayout, cases, local_state, logical
from tests.distributed.thread_group import ThreadGroup, run_threads
from ucpformat import open as open_checkpoint
from ucpformat import validate
from ucpformat.distributed import background
from ucpformat.distributed.background import BackgroundSaver
from ucpformat.distributed.group import OneProcess
from ucpformat.distributed.local_state import LocalState, SlotName
from ucpformat.distributed.save import SaveOptions
from ucpformat.distributed.save_options import SaveReport
from ucpformat.distributed.snapshot import Copied, Copy, HostCopier
from ucpformat.errors import UcpError, error
from ucpformat.geometry import Layout, Mesh, MeshAxis, Shard
from ucpformat.model.state import StateDocument

_T = TypeVar("_T")

OPTIONS = SaveOptions(durability="none", workers=1, chunk_bytes=1024)
TRUSTING = replace(OPTIONS, replicas="trust")  # to compare copies is to look at tensors during the call
RANKS = 2
ROWS: dict[SlotName, TensorLayout] = {
    ("w", "value"): ((700, 3), Layout(Mesh((MeshAxis("dp", RANKS),)), (Shard("dp", 0),)), None),
    ("norm", "value"): ((900,), None, None),
}
NORM: dict[SlotName, TensorLayout] = {("norm", "value"): ((900,), None, None)}


class GatedCopier(HostCopier):
    """Lets nothing be written before the gate opens."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self._gate = gate

    def copy(self, local: LocalState, copies: Sequence[Copy], memory: NDArray[np.uint8]) -> Copied:
        super().copy(local, copies, memory)

        def ready() -> None:
            self._gate.wait(60)

        return Copied(ready)


def together(size: int, work: Callable[[ThreadGroup], _T]) -> list[_T]:
    """What the threads returned; raises what one of them raised."""
    found = run_threads(size, work)
    results = []
    for one in found:
        if isinstance(one, BaseException):
            raise one
        results.append(one)
    return results


def owned(
    rank: int, slots: dict[SlotName, TensorLayout], state: StateDocument | None = None
) -> tuple[LocalState, Any]:
    """A local state whose tensors may be changed, and these."""
    local = local_state(rank, slots, state)
    tensors = {name: np.array(source()) for name, source in local.arrays.items()}
    return replace(local, arrays={name: one.view for name, one in tensors.items()}), tensors


def spoil(tensors: dict[SlotName, NDArray[np.generic]]) -> None:
    for tensor in tensors.values():
        tensor[...] = np.zeros((), tensor.dtype)


def is_snapshot(path: Path, slots: dict[SlotName, TensorLayout]) -> None:
    assert list(validate(path)) == []
    with open_checkpoint(path) as checkpoint:
        assert {(atom, slot) for atom, view in checkpoint.items() for slot in view} == set(slots)
        for seed, (name, (shape, _, _)) in enumerate(slots.items()):
            assert np.array_equal(checkpoint[name[0]][name[1]].read(), logical(shape, seed))


@given(cases(), st.sampled_from([None, 16 << 10, 256 << 10]))
def test_what_changes_after_the_call_is_not_in_the_checkpoint(
    case: tuple[int, dict[SlotName, TensorLayout]], limit: int | None
) -> None:
    """Nothing is written before everything has changed, but where there is less room than tensors need."""
    size, slots = case
    gates = [threading.Event() for _ in range(size)]

    def work(group: ThreadGroup) -> list[SaveReport]:
        gate = gates[group.rank]
        copier = GatedCopier(gate) if limit is None else HostCopier()
        reports = []
        with BackgroundSaver(group, arena_bytes=limit, copier=copier) as saver:
            for number in range(2):
                local, tensors = owned(group.rank, slots)
                gate.clear()
                options = replace(OPTIONS, chunk_bytes=16 << 10)
                save = saver.save(scratch / f"{number}.ucp", partial(replace, local), options)
                spoil(tensors)
                gate.set()
                reports.append(save.wait())
            assert saver.arena.allocations <= 1
        return reports

    with TemporaryDirectory() as name:
        scratch = Path(name)
        found = together(size, work)
        for number in range(2):
            is_snapshot(scratch / f"{number}.ucp", slots)
            assert len({reports[number].digest for reports in found}) == 1
            total = sum(4 * np.prod(shape, dtype=int) for shape, _, _ in slots.values())
            assert sum(reports[number].nbytes for reports in found) == total
            for reports in found:
                assert limit is None or reports[number].arena_bytes <= limit


@pytest.mark.parametrize("limit", [None, 2048])
def test_chunks_that_ranks_share_go_to_one_of_them(tmp_path: Path, limit: int | None) -> None:
    """In storage plain parts travel between the threads that write, from memory that is used again."""

    def work(group: ThreadGroup) -> SaveReport:
        local, tensors = owned(group.rank, ROWS)
        with BackgroundSaver(group, arena_bytes=limit) as saver:
            options = replace(OPTIONS, storage="plain", chunk_bytes=1040)
            save = saver.save(tmp_path / "a.ucp", lambda: local, options)
            spoil(tensors)
            return save.wait()

    assert len({report.digest for report in together(RANKS, work)}) == 1
    is_snapshot(tmp_path / "a.ucp", ROWS)


def test_only_what_a_rank_writes_is_staged(tmp_path: Path) -> None:
    """A tensor that two ranks have takes each of them the memory of its half."""
    slots: dict[SlotName, TensorLayout] = {("w", "value"): ((8 << 20,), None, None)}

    def work(group: ThreadGroup) -> SaveReport:
        local, _ = owned(group.rank, slots)
        with BackgroundSaver(group) as saver:
            options = replace(OPTIONS, chunk_bytes=1 << 20)
            return saver.save(tmp_path / "a.ucp", lambda: local, options).wait()

    for report in together(2, work):
        assert report.nbytes == report.arena_bytes == 16 << 20


def broken(group: ThreadGroup) -> LocalState:
    """A state of which rank 1 cannot give a tensor."""
    local, _ = owned(group.rank, ROWS)

    def refuse() -> Any:
        raise ValueError("out of memory")

    return replace(local, arrays=dict.fromkeys(local.arrays, refuse)) if group.rank == 1 else local


def failing(group: ThreadGroup, path: Path) -> BackgroundSaver:
    """A saver whose first save fails in the background, on all ranks."""
    saver = BackgroundSaver(group)
    saver.save(path, lambda: broken(group), TRUSTING)
    return saver


def raised(call: Callable[[], object]) -> str | None:
    try:
        call()
    except (UcpError, ValueError) as failure:
        return str(failure)
    return None


def test_a_failure_is_raised_by_the_next_call_once(tmp_path: Path) -> None:
    def work(group: ThreadGroup) -> list[str | None]:
        saver = failing(group, tmp_path / "a.ucp")

        def good() -> object:
            return saver.save(tmp_path / "b.ucp", lambda: owned(group.rank, ROWS)[0], OPTIONS)

        return [raised(call) for call in (good, saver.wait, good, saver.close)]

    first, second = together(RANKS, work)
    assert second == ["out of memory", None, None, None]
    assert first[0] is not None
    assert first[0].endswith("ValueError: out of memory (on rank 1)")
    assert first[1:] == [None, None, None]
    assert not (tmp_path / "a.ucp").exists()
    is_snapshot(tmp_path / "b.ucp", ROWS)


@pytest.mark.parametrize("call", ["wait", "close", "handle", "with"])
def test_a_failure_is_raised_by_whatever_comes_next(tmp_path: Path, call: str) -> None:
    def work(group: ThreadGroup) -> list[str | None]:
        saver = BackgroundSaver(group)
        save = saver.save(tmp_path / "a.ucp", lambda: broken(group), TRUSTING)
        calls: dict[str, Callable[[], object]] = {
            "wait": saver.wait,
            "close": saver.close,
            "handle": save.wait,
            "with": lambda: saver.__exit__(None, None, None),
        }
        heard = [raised(calls[call])]
        return [*heard, raised(saver.wait), raised(saver.close)]

    for heard in together(RANKS, work):
        assert heard[0] is not None
        assert heard[0].find("out of memory") >= 0
        assert heard[1:] == [None, None]


def test_ranks_that_have_heard_do_not_go_on_alone(tmp_path: Path) -> None:
    def work(group: ThreadGroup) -> list[str | None]:
        saver = BackgroundSaver(group)
        save = saver.save(tmp_path / "a.ucp", lambda: broken(group), TRUSTING)
        first = raised(save.wait) if group.rank == 0 else None
        again = raised(lambda: saver.save(tmp_path / "b.ucp", lambda: owned(group.rank, ROWS)[0], OPTIONS))
        return [first, again, raised(saver.close)]

    found = together(RANKS, work)
    assert [None not in one[1:2] for one in found] == [True, True]
    assert not (tmp_path / "b.ucp").exists()


def test_an_error_of_the_block_goes_first_and_names_the_other(tmp_path: Path) -> None:
    def work(group: ThreadGroup) -> None:
        with failing(group, tmp_path / "a.ucp"):
            raise KeyError("mine")

    for failure in run_threads(RANKS, work):
        assert isinstance(failure, KeyError)
        assert "out of memory" in failure.__notes__[0]


def test_what_contradicts_is_raised_by_the_call(tmp_path: Path) -> None:
    def work(group: ThreadGroup) -> None:
        def describe() -> LocalState:
            if group.rank == 1:
                raise error("UCP-E-OBJECT", "no", at="x")
            return owned(group.rank, ROWS)[0]

        with BackgroundSaver(group) as saver:
            saver.save(tmp_path / "a.ucp", describe, OPTIONS)

    assert [getattr(one, "code", None) for one in run_threads(RANKS, work)] == ["UCP-E-OBJECT"] * RANKS


def test_a_part_that_exceeds_the_arena_fails_the_save(tmp_path: Path) -> None:
    def work(group: ThreadGroup) -> None:
        with BackgroundSaver(group, arena_bytes=512) as saver:
            saver.save(tmp_path / "a.ucp", lambda: owned(group.rank, ROWS)[0], OPTIONS)

    assert [getattr(one, "code", None) for one in run_threads(RANKS, work)] == ["UCP-E-LIMIT"] * RANKS
    assert not (tmp_path / "a.ucp").exists()


def test_writing_that_fails_wakes_whoever_waits_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arena holds a part of the snapshot, and nothing is ever given back."""
    from ucpformat.storage.writing.piece_writer import PieceWriter

    def refuse(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(PieceWriter, "drain", refuse)

    def work(group: ThreadGroup) -> None:
        with BackgroundSaver(group, arena_bytes=1024) as saver:
            saver.save(tmp_path / "a.ucp", lambda: owned(group.rank, ROWS)[0], OPTIONS)

    for failure in run_threads(RANKS, work):
        assert "no space left" in str(failure)


@pytest.mark.parametrize("slow", [{0}, {1}, {0, 1}])
def test_ranks_agree_on_what_a_busy_saver_does(tmp_path: Path, slow: set[int]) -> None:
    """A rank whose part is written waits for the commit, so that all are busy as long as one is."""
    gates = [threading.Event() for _ in range(RANKS)]

    def work(group: ThreadGroup) -> tuple[str | None, bool, str | None]:
        gate = gates[group.rank]
        if group.rank not in slow:
            gate.set()
        saver = BackgroundSaver(group, copier=GatedCopier(gate))

        def save(name: str, mode: Any) -> Any:
            return saver.save(tmp_path / name, lambda: owned(group.rank, ROWS)[0], OPTIONS, when_busy=mode)

        first = save("a.ucp", "wait")
        refused = raised(lambda: save("b.ucp", "raise"))
        skipped = save("c.ucp", "skip")
        mixed = raised(lambda: save("x.ucp", "raise" if group.rank else "skip"))
        gate.set()
        last = save("d.ucp", "wait")
        assert first.done()
        saver.close()
        assert not last.wait().skipped
        return refused, skipped.wait().skipped, mixed

    for refused, skipped, mixed in together(RANKS, work):
        assert refused is not None
        assert "UCP-E-EXISTS" in refused
        assert skipped
        assert mixed is not None
        assert "when_busy" in mixed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ucp", "d.ucp"]


def test_a_handle_tells_without_raising_and_waits_no_longer_than_asked(tmp_path: Path) -> None:
    gate = threading.Event()

    def work(group: ThreadGroup) -> None:
        with BackgroundSaver(group, copier=GatedCopier(gate)) as saver:
            save = saver.save(tmp_path / "a.ucp", lambda: owned(0, NORM)[0], OPTIONS)
            assert not save.done()
            with pytest.raises(TimeoutError):
                save.wait(0)
            gate.set()
            save.staged()
            report = save.wait()
            assert save.done()
            assert report.stalled >= report.staging >= 0
            assert report.stalled >= report.waited >= 0

    together(1, work)


def test_a_closed_saver_refuses(tmp_path: Path) -> None:
    def work(group: ThreadGroup) -> None:
        saver = BackgroundSaver(group)
        saver.close()
        saver.close()
        with pytest.raises(UcpError, match="closed"):
            saver.save(tmp_path / "a.ucp", lambda: owned(0, NORM)[0], OPTIONS)

    together(1, work)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_what_its_parent_saves(tmp_path: Path) -> None:
    """A DataLoader's workers took ten seconds to end, and `Process.join` never returned."""
    gate = threading.Event()
    saver = BackgroundSaver(OneProcess(), copier=GatedCopier(gate))
    save = saver.save(tmp_path / "a", lambda: local_state(0, NORM), OPTIONS)
    child = os.fork()
    if child == 0:  # pragma: no cover - in the other process
        ended = 1
        try:
            with pytest.raises(UcpError, match="UCP-E-RANK"):
                save.wait(5)
            saver.wait()
            background._finish_all()
            gate.set()
            saver.save(tmp_path / "b", lambda: local_state(0, NORM), OPTIONS).wait(20)
            ended = 0
        finally:
            os._exit(ended)
    try:
        assert not save.done()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        gate.set()
    assert save.wait(30).digest is not None
    saver.close()


@pytest.mark.parametrize("submitted", [True, False])
def test_an_interrupt_while_the_thread_gets_the_save_leaves_nobody_waiting(
    tmp_path: Path, submitted: bool
) -> None:
    """Ctrl-C comes to the thread that calls, wherever it is: here before or after the other one has the save."""
    with BackgroundSaver(OneProcess()) as saver:
        submit = saver._thread.submit

        def interrupted(work: Callable[[], None]) -> None:
            if submitted:
                submit(work)
            raise KeyboardInterrupt

        local, _ = owned(0, NORM)
        with patch.object(saver._thread, "submit", interrupted), pytest.raises(KeyboardInterrupt):
            saver.save(tmp_path / "c", lambda: local, OPTIONS)
        with suppress(KeyboardInterrupt):
            saver.wait()
        # All was copied: there is a whole checkpoint, or none.
        if list(tmp_path.iterdir()):
            assert submitted
            assert validate(tmp_path / "c") == []
        saver.save(tmp_path / "d", lambda: local, OPTIONS).wait(30)
