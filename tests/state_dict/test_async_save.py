"""`async_save` and `AsyncSaver` in one process: torch, numpy, devices, and the end of the interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ucpformat as ucp
from ucpformat.comparison import compare
from ucpformat.distributed import snapshot
from ucpformat.distributed.arena import Arena
from ucpformat.distributed.group import OneProcess
from ucpformat.distributed.local_state import LocalState
from ucpformat.distributed.save import SaveOptions, prepare_save
from ucpformat.distributed.snapshot import Copied, Copy, HostCopier, Snapshot, double_buffered
from ucpformat.state_dict import async_save
from ucpformat.state_dict.state import live_state
from ucpformat.state_dict.tensors.device_copier import DeviceCopier


def training() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 33), torch.nn.Linear(33, 5))
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    return model, optimizer


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(3, 7)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_it_saves_what_save_saves_however_training_goes_on(tmp_path: Path) -> None:
    model, optimizer = training()
    array = np.arange(12.0)
    state = {"model": model, "optim": optimizer, "more": {"array": array, "list": [1, 2]}, "epoch": 3}
    ucp.save(tmp_path / "a.ucp", state, step=4)
    saves = []
    for name in "bc":
        saves.append(ucp.async_save(tmp_path / f"{name}.ucp", state, step=4))
        if name == "c":
            step(model, optimizer)
            array[:] = -1
            state["more"]["list"].append(3)  # type: ignore[index]
            state["epoch"] = 9
    saves.append(ucp.async_save(tmp_path / "d.ucp", state, step=4))
    assert len({save.wait().digest for save in saves}) == 3
    with ucp.open(tmp_path / "a.ucp") as expected:
        for name in "bc":
            assert ucp.validate(tmp_path / f"{name}.ucp") == []
            with ucp.open(tmp_path / f"{name}.ucp") as found:
                assert compare(expected, found).differences == ()
        with ucp.open(tmp_path / "d.ucp") as later:
            assert len(compare(expected, later).differences) > 4


def test_one_saver_serves_all_calls_and_keeps_its_memory(tmp_path: Path) -> None:
    state = {"model": {"w": torch.ones(1 << 20)}}
    ucp.async_save(tmp_path / "a.ucp", state).wait()
    known = dict(async_save._savers)
    ucp.async_save(tmp_path / "b.ucp", state).wait()
    assert async_save._savers == known
    with ucp.AsyncSaver() as saver:
        reports = [saver.save(tmp_path / f"{number}.ucp", state).wait() for number in range(3)]
        assert {(report.nbytes, report.arena_bytes) for report in reports} == {(4 << 20, 4 << 20)}
        assert saver._saver.arena.allocations == 1


def test_a_saver_is_bounded_and_lets_go(tmp_path: Path) -> None:
    state = {"model": {"w": torch.arange(1 << 20)}}
    with ucp.AsyncSaver(arena_bytes=1 << 20) as saver:
        save = saver.save(tmp_path / "a.ucp", state, chunk_bytes=1 << 18, annotations={"org.example": 1})
        assert saver.arena_bytes == 1 << 20
    assert save.wait().arena_bytes == 1 << 20
    assert saver.arena_bytes == 0
    with ucp.open(tmp_path / "a.ucp") as checkpoint:
        assert np.array_equal(checkpoint["w"]["value"].read(), np.arange(1 << 20))
        assert checkpoint.root.envelope.annotations == {"org.example": 1}


def run(program: str, path: Path) -> subprocess.CompletedProcess[str]:
    begin = "import sys, numpy as np, ucpformat as ucp\nstate = {'w': np.arange(1 << 20)}\n"
    command = [sys.executable, "-c", begin + program, str(path)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)


def test_the_interpreter_ends_after_the_save(tmp_path: Path) -> None:
    done = run("ucp.async_save(sys.argv[1], state)", tmp_path / "a.ucp")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert ucp.validate(tmp_path / "a.ucp") == []


def test_a_failure_that_nobody_asks_for_is_printed_at_the_end(tmp_path: Path) -> None:
    refuse = """
from ucpformat.storage.writing.piece_writer import PieceWriter
def refuse(*_):
    raise OSError("no space left")
PieceWriter.drain = refuse
"""
    asked = """
try:
    save.wait()
except OSError:
    pass
"""
    done = run(refuse + "save = ucp.async_save(sys.argv[1], state)", tmp_path / "a.ucp")
    assert "no space left" in done.stderr
    assert "a.ucp" in done.stderr
    quiet = run(refuse + "save = ucp.async_save(sys.argv[1], state)" + asked, tmp_path / "a.ucp")
    assert quiet.stderr == ""


class Events:
    """A device module that runs nothing until a stream is waited for: copies happen when they must, or never."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def Stream(self, device: Any) -> Events:  # noqa: N802
        return self

    def current_stream(self, device: Any) -> Events:
        return self

    @contextmanager
    def stream(self, stream: Events) -> Any:
        self.log.append("begin")
        yield
        self.log.append("end")

    def record_event(self) -> Events:
        self.log.append("an event")
        return self

    def wait_event(self, event: Events) -> None:
        self.log.append("a stream waits")

    def synchronize(self) -> None:
        self.log.append("the host waits")


def test_tensors_of_a_device_are_copied_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """CPU tensors stand for those of a device, with what torch offers for one: streams, events, pinned memory."""
    events = Events()
    monkeypatch.setattr(torch, "get_device_module", lambda device: events)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    empty = torch.empty
    pinned = []

    def pin(*shape: int, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        pinned.append(pin_memory)
        return empty(*shape, **options)

    tensors = {
        "a": torch.arange(3000, dtype=torch.int32).reshape(60, 50)[:, 10:],
        "b": torch.randn(9, dtype=torch.complex64).conj(),
        "c": torch.ones((), dtype=torch.bfloat16),
        "d": torch.rand(40).to(torch.float8_e4m3fn),
    }
    local = live_state({"model": tensors})

    def refuse() -> Any:
        raise AssertionError("the whole tensor was copied")

    devices = {(name, "value"): tensor for name, tensor in tensors.items() if name != "d"}
    arrays = {name: refuse if name in devices else source for name, source in local.arrays.items()}
    there = LocalState(local.atoms, arrays, local.state, devices)
    saving = prepare_save(tmp_path / "a.ucp", lambda: there, OneProcess(), SaveOptions(chunk_bytes=1024))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", pin)
        taken = Snapshot(saving, Arena(allocate=(copier := DeviceCopier()).allocate), copier)
    assert pinned == [True]
    (batch,) = list(taken.batches(range(len(taken.sizes))))
    # Copies wait for what the device had to do when the save was called, and not for what came since.
    assert events.log == ["an event", "a stream waits", "begin", "end", "an event"]
    batch.copied.hold()
    assert events.log[-1] == "a stream waits"
    batch.copied.ready()
    assert events.log[-1] == "the host waits"
    saving.run(lambda: iter([batch.parts]))
    found = ucp.load(tmp_path / "a.ucp", tensors="torch")["model"]
    for name, tensor in tensors.items():
        wanted = tensor.contiguous().resolve_conj()
        assert found[name].dtype == wanted.dtype
        assert found[name].to(torch.complex128).tolist() == wanted.to(torch.complex128).tolist()


def test_memory_is_made_anew_where_the_first_state_of_a_device_comes() -> None:
    on_host = live_state({"w": torch.ones(3)})
    on_device = LocalState(on_host.atoms, on_host.arrays, on_host.state, {("w", "value"): torch.ones(3)})
    copier = DeviceCopier()
    assert [copier.begin(local) for local in (on_host, on_device, on_device, on_host)] == [
        True,
        False,
        True,
        True,
    ]


class LateCopier(HostCopier):
    """Copies when it is waited for, as a device may, and spoils what the memory held before."""

    def copy(self, local: LocalState, copies: Sequence[Copy], memory: NDArray[np.uint8]) -> Copied:
        memory[:] = 0xEE
        copy = partial(super().copy, local, list(copies), memory)

        def ready() -> None:
            copy()

        return Copied(ready)


@settings(max_examples=30)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 900), st.booleans()), min_size=1, max_size=12),
    batch=st.sampled_from([1, 512, 2048]),
    storage=st.sampled_from(["packed", "plain"]),
)
def test_while_one_batch_is_written_the_next_is_copied(
    sizes: list[tuple[int, bool]], batch: int, storage: Any
) -> None:
    tensors = {f"t{index:02}": torch.randn(size) for index, (size, _) in enumerate(sizes)}
    local = live_state(tensors)
    on_device = {(f"t{index:02}", "value") for index, (_, there) in enumerate(sizes) if there}
    devices = {name: tensors[name[0]] for name in on_device if name in local.arrays}
    there = LocalState(local.atoms, local.arrays, local.state, devices)
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "_BATCH_BYTES", batch)
        path = Path(directory, "a.ucp")
        saving = prepare_save(path, lambda: there, OneProcess(), SaveOptions(storage, chunk_bytes=1024))
        saving.run(lambda: double_buffered(saving, LateCopier(1)))
        found = ucp.load(path, tensors="torch")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
