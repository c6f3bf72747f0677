"""Views as arrays, across processes, and after a fork."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.builders import STORAGES, Tensor, fresh_url, save
from ucpformat.errors import UcpError
from ucpformat.model.root import Storage
from ucpformat.reader import Checkpoint, open_checkpoint
from ucpformat.views import AtomView, SlotView

DATA = np.arange(2 * 300 * 40, dtype=np.float32).reshape(2, 300, 40)
STATE = {
    **{(f"w{number}", "value"): Tensor(DATA + number, "float32") for number in range(3)},
    ("w0", "step"): Tensor(np.array(7, np.int64), "int64"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(tmp_path / "c", STATE, chunk_bytes=1 << 14)
    return tmp_path / "c"


def test_a_slot_is_an_array_to_numpy(path: Path) -> None:
    with open_checkpoint(path) as checkpoint:
        slot, step = checkpoint["w1"]["value"], checkpoint["w0"]["step"]
        assert (slot.dtype, slot.ndim, slot.size, len(slot)) == (np.dtype("float32"), 3, DATA.size, 2)
        assert (slot.shape, slot.nbytes, step.ndim, step.size) == (DATA.shape, DATA.nbytes, 0, 1)
        assert repr(slot) == "<SlotView w1/value: float32[2, 300, 40]>"
        assert np.array_equal(np.asarray(slot), DATA + 1)
        assert np.asarray(slot, np.float64).dtype == np.float64
        assert float(np.mean(slot)) == float(np.mean(DATA + 1))  # type: ignore[arg-type]
        assert np.array_equal(np.stack([slot, slot])[1], DATA + 1)
        assert int(np.asarray(step)) == int(step[()]) == int(step[...]) == 7
        assert step[None].tolist() == [7]
        assert [row.shape for row in slot] == [(300, 40)] * 2
        for where in (
            np.s_[1],
            np.s_[-1, ..., 2],
            np.s_[:, 5:250:7],
            np.s_[...],
            np.s_[()],
            np.s_[np.int64(1)],
            np.s_[:, ::-3, 30:2:-1],
            np.s_[5:1],
            np.s_[None, 1, ..., None],
            [1, 0],
            [],
            np.s_[:, [0, -1, 0, 299], 1],
            np.s_[:, [[250], [3]], [1, 2, 39]],
            np.s_[[0, 1], :, [2, 3]],
            DATA > 100,
            np.s_[..., DATA[0, 0] % 3 == 0],
            np.s_[1, DATA[0] > 5000],
            np.s_[np.array([True, False])],
            torch.tensor([1, 1]),
        ):
            assert np.array_equal(slot[where], (DATA + 1)[where])


def test_what_a_slot_does_not_do_is_said(path: Path) -> None:
    with open_checkpoint(path) as checkpoint:
        slot = checkpoint["w1"]["value"]
        for where, said in (
            (slot.shape == (), "only integers, slices, .* select, not False"),
            (np.array(True), "only integers, slices"),
            (1.5, "only integers, slices"),
            ("a", "only integers, slices"),
            (np.s_[..., ...], "a single ellipsis"),
            (np.s_[0, 0, 0, 0], "too many indices"),
            (np.zeros((2, 299), bool), r"a mask of shape \(2, 299\) does not fit"),
            (2, "index 2 is out of bounds for dimension 0 with extent 2"),
            (np.s_[0, [3, 300]], "index 300 is out of bounds for dimension 1"),
            (np.s_[0, [-301]], "index -301 is out of bounds"),
        ):
            with pytest.raises(IndexError, match=said):
                slot[where]
        with pytest.raises(ValueError, match=r"mapped\(\) gives it without"):
            slot.__array__(copy=False)
        with pytest.raises(TypeError, match=r"no len\(\)"):
            len(checkpoint["w0"]["step"])
        with pytest.raises(TypeError, match="neither true nor false"):
            bool(slot)


@pytest.mark.parametrize("storage", STORAGES)
def test_what_is_pickled_is_opened_again(tmp_path: Path, storage: Storage) -> None:
    save(tmp_path / "c", STATE, storage=storage)
    with open_checkpoint(tmp_path / "c", verify=False, workers=3) as checkpoint:
        assert checkpoint["w1"]["value"][0, 0, 0] == 1
        kept = pickle.dumps(
            (checkpoint, checkpoint["w1"], checkpoint["w2"]["value"], checkpoint["w1"]["value"])
        )
        one = pickle.loads(pickle.dumps(checkpoint["w0"]))
    again, atom, slot, other = pickle.loads(kept)
    assert isinstance(again, Checkpoint)
    assert isinstance(atom, AtomView)
    assert isinstance(slot, SlotView)
    assert again._opening == checkpoint._opening
    again.close()  # views have one of their own, in common
    assert atom._source is slot._source is other._source is one._source is not again
    assert np.array_equal(slot.read(), DATA + 2)
    assert np.array_equal(atom["value"].read(), other.read())


def test_a_relative_path_is_found_from_elsewhere(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    with open_checkpoint("c") as checkpoint:
        kept = pickle.dumps(checkpoint["w1"]["value"])
    monkeypatch.chdir("/")
    assert pickle.loads(kept)[1, 2, 3] == DATA[1, 2, 3] + 1


def test_another_checkpoint_in_its_place_is_refused(path: Path) -> None:
    with open_checkpoint(path) as checkpoint:
        kept = [pickle.dumps(checkpoint), pickle.dumps(checkpoint["w1"]["value"])]
    shutil.rmtree(path)
    save(path, {("w1", "value"): Tensor(DATA, "float32")})
    for data in kept:
        with pytest.raises(UcpError, match="another checkpoint has taken the place") as caught:
            pickle.loads(data)
        assert caught.value.code == "UCP-E-DIGEST"
    shutil.rmtree(path)
    with pytest.raises(UcpError, match="UCP-E-NOT-FOUND"):
        pickle.loads(kept[1])


def test_a_remote_checkpoint_is_pickled() -> None:
    url = fresh_url("memory", Path())
    save(url, STATE)
    with open_checkpoint(url) as checkpoint:
        kept = pickle.dumps(checkpoint["w1"]["value"])
    assert np.array_equal(pickle.loads(kept).read(), DATA + 1)


def in_a_worker(slot: SlotView) -> tuple[int, bytes]:
    return os.getpid(), slot[1, 100:].tobytes()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork here")
def test_a_fork_reads_on(path: Path) -> None:
    """The threads that read, and locks that others held meanwhile, stay behind in the parent."""
    with open_checkpoint(path, workers=2) as checkpoint:
        slot = checkpoint["w1"]["value"]
        assert np.array_equal(slot.read(), DATA + 1)  # by several threads: there are several chunks

        def child(connection: Any) -> None:
            whole = {("w2", "value"): np.empty_like(DATA)}
            checkpoint.load(whole)
            connection.send_bytes(slot.read().tobytes() + whole["w2", "value"].tobytes())

        held, may_end = threading.Event(), threading.Event()

        def hold() -> None:
            with checkpoint._lock:
                held.set()
                may_end.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        receiver, sender = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=child, args=(sender,))
        process.start()
        may_end.set()
        holder.join()
        assert receiver.poll(60)
        assert receiver.recv_bytes() == (DATA + 1).tobytes() + (DATA + 2).tobytes()
        process.join()
        assert process.exitcode == 0


def test_views_go_to_worker_processes(path: Path) -> None:
    with (
        open_checkpoint(path) as checkpoint,
        ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as pool,
    ):
        pid, data = pool.submit(in_a_worker, checkpoint["w1"]["value"]).result()
    assert pid != os.getpid()
    assert data == (DATA + 1)[1, 100:].tobytes()
