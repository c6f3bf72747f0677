"""The manager in one process, on disk and behind a URL: keeping, resuming, damage, debris."""

from __future__ import annotations

import math
import os
import shutil
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import numpy as np
import pytest

import ucpformat as ucp
from ucpformat.errors import UcpError
from ucpformat.manager import collect, collection
from ucpformat.storage.stores.directory_claim import CONDEMNED


def state(step: int) -> dict[str, Any]:
    return {"model": {"w": np.full(3000, step, np.float32)}, "step": step}


def blank() -> dict[str, Any]:
    return {"model": {"w": np.zeros(3000, np.float32)}, "step": -1}


@pytest.fixture(params=["local", "memory"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "run") if request.param == "local" else f"memory://{uuid4().hex}/run"


def files(run: str) -> list[str]:
    filesystem, path = fsspec.core.url_to_fs(run)
    base = filesystem._strip_protocol(path).rstrip("/") + "/"
    return sorted(one.removeprefix(base) for one in filesystem.find(path))


def entries(run: str) -> set[str]:
    return {one.split("/")[0] for one in files(run)}


def overwrite(run: str, name: str, change: Any) -> None:
    filesystem, path = fsspec.core.url_to_fs(f"{run}/{name}")
    data = bytearray(filesystem.cat_file(path))
    filesystem.pipe_file(path, bytes(change(data)))


def flip(data: bytearray) -> bytearray:
    data[100] ^= 1
    return data


def pack(run: str, step: int | str) -> str:
    """A pack of a step, such as 2, or of what has replaced it, such as ``2.r1``."""
    return next(name for name in files(run) if name.startswith(f"step-{step}.ucp/packs/"))


def put(run: str, name: str) -> None:
    filesystem, path = fsspec.core.url_to_fs(f"{run}/{name}")
    filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    filesystem.pipe_file(path, b"x")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_it_keeps_the_last_and_resumes_from_the_newest(run: str, asynchronous: bool) -> None:
    with ucp.CheckpointManager(run, keep_last=2, keep_every=100, asynchronous=asynchronous) as manager:
        fresh = blank()
        assert manager.resume(fresh) is None
        assert manager.latest() is None
        assert fresh["step"] == -1
        for step in (0, 50, 100, 150, 199):
            changing = state(step)
            save = manager.save(step, changing)
            changing["model"]["w"][:] = -1
            assert Path(save.path).name == f"step-{step}.ucp"
        assert save.wait().nbytes == 12000
        manager.wait()
        assert manager.steps() == [0, 100, 150, 199]
    with ucp.CheckpointManager(run) as manager:
        filled = blank()
        assert manager.resume(filled) == manager.latest() == 199
        assert filled["step"] == 199
        assert (filled["model"]["w"] == 199).all()
        assert manager.restore(filled, 100) == 100
        assert (filled["model"]["w"] == 100).all()
        assert manager.restore(blank(), check="integrity") == 199
    assert entries(run) == {f"step-{step}.ucp" for step in (0, 100, 150, 199)}


def test_the_best_are_kept_by_what_the_checkpoints_themselves_say(run: str) -> None:
    losses = {1: 3.0, 2: 1.0, 3: math.nan, 4: 2.0, 5: 1.5, 6: math.inf}
    for step, loss in losses.items():
        # A new manager each time: nothing is kept in memory alone.
        with ucp.CheckpointManager(run, keep_best=2, metric="loss") as manager:
            manager.save(step, state(step), metrics={"loss": loss, "n": step})
    with ucp.CheckpointManager(run) as manager:
        assert manager.steps() == [2, 5, 6]
        assert manager.metrics(5) == {"loss": 1.5, "n": 5.0}
        assert manager.metrics(6) == {"n": 6.0}


def test_a_step_of_others_is_replaced_on_request_alone(run: str) -> None:
    with ucp.CheckpointManager(run) as manager:
        manager.save(1, state(1))
    with ucp.CheckpointManager(run) as manager:
        with pytest.raises(UcpError, match="replace=True replaces it") as caught:
            manager.save(1, state(2))
        assert caught.value.code == "UCP-E-EXISTS"
        manager.save(1, state(2), replace=True, asynchronous=True)
        manager.save(1, state(3), replace=True, asynchronous=True).wait()
        filled = blank()
        manager.restore(filled)
        assert filled["step"] == 3
        assert manager.steps() == [1]
    assert len(entries(run)) == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_interval_and_a_request_to_stop_may_fall_on_one_step(run: str, asynchronous: bool) -> None:
    """What docs/torch.md tells a loop to do; and stopping right after it has resumed."""
    for restarts in range(3):
        with ucp.CheckpointManager(run, keep_last=1, asynchronous=asynchronous) as manager:
            assert manager.resume(blank()) == (5 if restarts else None)
            manager.save(5, state(50))
            if not restarts:
                manager.save(5, state(51 + restarts))
            assert Path(manager.save(5, state(52 + restarts)).path).name.startswith("step-5.r")
            manager.wait()
            filled = blank()
            assert manager.restore(filled) == 5
            assert filled["step"] == 52 + restarts
            assert manager.steps() == [5]
        assert len(entries(run)) == 1


def test_a_run_goes_back_to_an_earlier_step(run: str) -> None:
    with ucp.CheckpointManager(run) as manager:
        for step in (1, 2):
            manager.save(step, state(step))
    with ucp.CheckpointManager(run) as manager, ucp.CheckpointManager(run) as other:
        other.resume(blank())
        filled = blank()
        manager.restore(filled, 1)
        manager.save(3, state(3))
        manager.save(2, state(20))
        manager.restore(filled, 2)
        assert filled["step"] == 20
        with pytest.raises(UcpError, match="UCP-E-EXISTS"):
            other.save(3, state(30))


def test_what_is_replaced_survives_until_the_new_one_is_committed(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ucpformat.storage.writing.piece_writer import PieceWriter

    def refuse(*_: object) -> None:
        raise OSError("no space left")

    def removed_later(*_: object, **__: object) -> Any:
        raise UcpError("UCP-E-STORE", "not now")

    filled = blank()
    with ucp.CheckpointManager(run, keep_last=1) as manager:
        manager.save(1, state(1))
        with monkeypatch.context() as patch:
            patch.setattr(PieceWriter, "drain", refuse)
            with pytest.raises(OSError, match="no space left"):
                manager.save(1, state(2))
        assert manager.restore(filled) == filled["step"] == 1
        with monkeypatch.context() as patch:
            patch.setattr("ucpformat.manager.checkpoint_manager.collect", removed_later)
            with pytest.warns(RuntimeWarning, match="not now"):
                manager.save(1, state(3))
        assert len(entries(run)) == 2, "committed, and the job died before the earlier one was removed"
    with ucp.CheckpointManager(run, keep_last=1) as manager:
        assert manager.restore(filled) == 1
        assert filled["step"] == 3
        overwrite(run, f"{Path(manager.path(1)).name}/ucp.json", lambda data: data[:-1])
        with pytest.raises(UcpError, match="UCP-E-"):
            manager.collect()
        assert len(entries(run)) == 2, "nothing makes place for a damaged one"
    assert (ucp.load(f"{run}/step-1.ucp", blank())["model"]["w"] == 1).all()


def test_a_metric_that_is_not_there_is_an_error_and_removes_nothing(run: str) -> None:
    with ucp.CheckpointManager(run, keep_best=1, metric="eval_los") as manager:
        with pytest.raises(
            UcpError, match="'eval_los', which is not among the metrics: 'eval_loss'"
        ) as caught:
            manager.save(1, state(1), metrics={"eval_loss": 1.0})
        assert caught.value.code == "UCP-E-MISMATCH"
        with pytest.raises(UcpError, match="a metric is a number, not 'low'"):
            manager.save(1, state(1), metrics={"eval_los": "low"})  # type: ignore[dict-item]
        assert manager.steps() == []
    with ucp.CheckpointManager(run) as manager:
        for step, loss in {1: 0.5, 2: 3.0, 3: 2.0}.items():
            manager.save(step, state(step), metrics={"eval_loss": loss})
    with ucp.CheckpointManager(run, keep_best=1, metric="eval_los") as manager:
        with pytest.warns(RuntimeWarning, match="no checkpoint has a finite metric 'eval_los'.*'eval_loss'"):
            manager.save(4, state(4))
        assert manager.steps() == [1, 2, 3, 4]
    with ucp.CheckpointManager(run, keep_best=1, metric="eval_loss") as manager:
        manager.save(5, state(5))
        assert manager.steps() == [1, 5], "without an evaluation it is not among the best"


def test_damage_is_passed_over_and_said(run: str) -> None:
    with ucp.CheckpointManager(run) as manager:
        for step in (1, 2, 3, 4):
            manager.save(step, state(step))
    overwrite(run, pack(run, 4), lambda data: data[:-1])
    overwrite(run, pack(run, 3), flip)
    with ucp.CheckpointManager(run, keep_last=1) as manager:
        filled = blank()
        with pytest.warns(RuntimeWarning, match="passed over; resumed from step 2") as warned:
            assert manager.resume(filled) == 2
        assert len(warned) == 2
        assert filled["step"] == 2
        assert (filled["model"]["w"] == 2).all()
        assert {step: fault.code for step, fault in manager.damaged.items()} == {
            4: "UCP-E-LENGTH",
            3: "UCP-E-CHECKSUM",
        }
        with pytest.raises(UcpError):
            manager.restore(blank(), 3)
        manager.save(3, state(30))
        assert manager.steps() == [3, 4], "2 has made place, the other damaged one stays to be looked at"
    with ucp.CheckpointManager(run) as manager, pytest.warns(RuntimeWarning, match="step 4 is damaged"):
        assert manager.resume(filled) == 3
    assert filled["step"] == 30


def saved_again(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps 1 and 2, and 2 once more, by a job that ends before it removes what that has replaced."""
    with ucp.CheckpointManager(run) as manager:
        manager.save(1, state(1))
        manager.save(2, state(2))
        with monkeypatch.context() as patched:
            patched.setattr(ucp.CheckpointManager, "_collected", lambda *_: collection.Collected())
            manager.save(2, state(20))
    assert {"step-1.ucp", "step-2.ucp", "step-2.r1.ucp"} <= entries(run)


@pytest.mark.parametrize("step", [None, 2])
@pytest.mark.parametrize("change", [flip, lambda data: data[:-1]])
def test_a_step_whose_new_checkpoint_is_damaged_is_what_it_was_before(
    run: str, monkeypatch: pytest.MonkeyPatch, step: int | None, change: Any
) -> None:
    saved_again(run, monkeypatch)
    overwrite(run, pack(run, "2.r1"), change)
    filled = blank()
    with ucp.CheckpointManager(run, keep_last=1) as manager:
        with pytest.warns(RuntimeWarning) as warned:
            assert manager.restore(filled, step) == 2
        (said,) = [str(one.message) for one in warned]
        assert "step 2 (step-2.r1.ucp) is damaged and was passed over; resumed from step 2" in said
        assert "as it was saved before, step-2.ucp" in said
        assert (filled["step"], filled["model"]["w"][0]) == (2, 2)
        assert [*manager.damaged] == [2]
        manager.collect()
        assert {"step-2.ucp", "step-2.r1.ucp"} <= entries(run), (
            "what is whole stays as long as nothing else is"
        )
        manager.save(2, state(22))
        assert [name for name in entries(run) if name.startswith("step-2")] == ["step-2.r2.ucp"]
    with ucp.CheckpointManager(run) as manager:
        assert manager.resume(filled) == 2
    assert filled["step"] == 22


def test_where_both_of_a_step_are_damaged_the_step_before_it_is_taken(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_again(run, monkeypatch)
    for name in ("2", "2.r1"):
        overwrite(run, pack(run, name), flip)
    filled = blank()
    with ucp.CheckpointManager(run) as manager:
        with pytest.warns(RuntimeWarning, match="resumed from step 1") as warned:
            assert manager.resume(filled) == 1
        assert len(warned) == 2
        assert all("before" not in str(one.message) for one in warned)
        with pytest.raises(UcpError) as caught:
            manager.restore(filled, 2)
        assert caught.value.code == "UCP-E-CHECKSUM"


def test_damage_of_all_is_an_error(run: str) -> None:
    with ucp.CheckpointManager(run) as manager:
        manager.save(1, state(1))
        overwrite(run, "step-1.ucp/ucp.json", lambda data: data[:-3])
        with pytest.raises(UcpError) as caught:
            manager.resume(blank())
        assert caught.value.code in ("UCP-E-JSON", "UCP-E-DIGEST")
        with pytest.raises(UcpError) as caught:
            manager.restore(blank(), 7)
        assert caught.value.code == "UCP-E-NOT-FOUND"


def test_a_state_that_does_not_fit_is_no_damage(run: str) -> None:
    with ucp.CheckpointManager(run) as manager:
        manager.save(1, state(1))
        manager.save(2, state(2))
        with pytest.raises(UcpError) as caught:
            manager.resume({"model": {"other": np.zeros(1)}})
        assert caught.value.code == "UCP-E-MISMATCH"
        assert manager.damaged == {}
        assert manager.resume({"model": {"w": np.zeros(3000)}}, cast=True) == 2
        manager.save(3, {"model": {"other": np.zeros(1)}})
        with pytest.raises(UcpError, match="UCP-E-MISMATCH"):
            manager.resume(blank())


def test_the_last_good_one_is_never_removed_for_a_bad_one(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest is committed, and loses a pack before the older one would go."""

    def damaging(*arguments: Any, **options: Any) -> Any:
        if len(entries(run)) == 2:
            overwrite(run, pack(run, 2), lambda data: data[:-1])
        return collect(*arguments, **options)

    monkeypatch.setattr("ucpformat.manager.checkpoint_manager.collect", damaging)
    with ucp.CheckpointManager(run, keep_last=1) as manager:
        manager.save(1, state(1))
        with pytest.warns(RuntimeWarning, match="keeps others from being removed"):
            manager.save(2, state(2))
        with pytest.warns(RuntimeWarning, match="step 2 is damaged"):
            assert manager.resume(blank()) == 1


def test_what_is_not_ours_is_neither_seen_nor_removed(run: str) -> None:
    for name in ("notes.txt", "step-x.ucp/ucp.json", "step-01.ucp/ucp.json", "step-9.ucp/mine.txt"):
        put(run, name)
    with ucp.CheckpointManager(run, keep_last=1, debris_age=0) as manager:
        for step in (1, 2):
            manager.save(step, state(step))
        assert manager.collect() == []
        assert manager.steps() == [2]
    assert entries(run) == {"notes.txt", "step-x.ucp", "step-01.ucp", "step-9.ucp", "step-2.ucp"}


def test_debris_goes_when_it_is_old(run: str) -> None:
    with ucp.CheckpointManager(run) as manager:
        manager.save(5, state(5))
    for name in (
        "step-4.ucp/packs/a-0-0.pack",
        "step-6.ucp/index/a.json",
        "step-4.ucp.debris-0123abcd/packs/x",
    ):
        put(run, name)
    with ucp.CheckpointManager(run, debris_age=3600) as manager:
        assert manager.collect() == []
    with ucp.CheckpointManager(run, debris_age=0) as manager:
        assert manager.steps() == [5]
        assert manager.collect() == ["step-4.ucp", "step-6.ucp", "step-4.ucp.debris-0123abcd"]
    assert entries(run) == {"step-5.ucp"}
    assert not [name for name in files(run) if "clock" in name]


def test_the_age_of_debris_is_that_of_its_newest_part(tmp_path: Path) -> None:
    put(str(tmp_path), "step-1.ucp/packs/a-0-0.pack")
    put(str(tmp_path), "step-1.ucp/packs/a-1-0.pack")
    old = time.time() - 7200
    for path in (tmp_path / "step-1.ucp").rglob("*"):
        os.utime(path, (old, old))
    os.utime(tmp_path / "step-1.ucp", (old, old))
    manager = ucp.CheckpointManager(tmp_path, debris_age=3600)
    (tmp_path / "step-1.ucp" / "packs" / "a-1-0.pack").write_bytes(b"more")
    assert manager.collect() == []
    os.utime(tmp_path / "step-1.ucp" / "packs" / "a-1-0.pack", (old, old))
    assert manager.collect() == ["step-1.ucp"]


def test_a_writer_that_is_alive_is_no_debris(tmp_path: Path) -> None:
    spec = ucp.AtomSpec("w", {"value": ucp.SlotSpec("float32", (4,))})
    manager = ucp.CheckpointManager(tmp_path, debris_age=0)
    writer = ucp.CheckpointWriter(tmp_path / "step-3.ucp", [spec])
    with pytest.raises(UcpError, match="writer is at work"):
        manager.collect()
    writer.write("w", "value", np.ones(4, np.float32))
    writer.commit()
    assert manager.steps() == [3]


def test_a_link_is_followed_and_never_removed(tmp_path: Path) -> None:
    with ucp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(1, state(1))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "step-1.ucp").symlink_to(tmp_path / "a" / "step-1.ucp")
    with ucp.CheckpointManager(tmp_path / "b", keep_last=1) as manager:
        assert manager.resume(blank()) == 1
        with pytest.warns(RuntimeWarning, match=r"step-1\.ucp could not be removed"):
            manager.save(2, state(2))
    assert (tmp_path / "a" / "step-1.ucp" / "ucp.json").exists()


def test_removal_that_breaks_off_leaves_debris_and_no_bad_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(5, "no")

    with ucp.CheckpointManager(tmp_path, keep_last=1, debris_age=0) as manager:
        manager.save(1, state(1))
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", refuse)
            with pytest.warns(RuntimeWarning, match="UCP-E-STORE"):
                manager.save(2, state(2))
        assert manager.steps() == [2]
        assert len(list(tmp_path.iterdir())) == 2
        (name,) = manager.collect()
        assert name.startswith("step-1.ucp.debris-")
    assert [path.name for path in tmp_path.iterdir()] == ["step-2.ucp"]


def test_a_failed_save_in_the_background_is_heard_once(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ucpformat.storage.writing.piece_writer import PieceWriter

    def refuse(*_: object) -> None:
        raise OSError("no space left")

    with ucp.CheckpointManager(run, asynchronous=True) as manager:
        manager.save(1, state(1))
        manager.wait()
        with monkeypatch.context() as patch:
            patch.setattr(PieceWriter, "drain", refuse)
            manager.save(2, state(2)).staged()
            with pytest.raises(OSError, match="no space left"):
                manager.wait()
        manager.save(3, state(3))
    assert ucp.CheckpointManager(run).steps() == [1, 3]


def test_debris_that_a_dead_process_was_clearing_is_in_nobodys_way(tmp_path: Path) -> None:
    """A job that starts again at once does not wait for an hour, after which it would be taken for left."""
    debris = tmp_path / "step-3.ucp"
    debris.mkdir()
    (debris / CONDEMNED).touch()
    with ucp.CheckpointManager(tmp_path) as manager:
        manager.save(3, {"w": np.ones(2)})
        assert manager.path(3).endswith("step-3.r1.ucp")
        assert manager.steps() == [3]
