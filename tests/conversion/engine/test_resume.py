"""Conversions that are interrupted anywhere, and gone on with: what is finished is not done again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ucpformat
from tests.conversion.engine.jobs import Breaks, assert_same, make, rewrite
from ucpformat.conversion.engine import journal, worker
from ucpformat.errors import UcpError
from ucpformat.storage.stores import local
from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.stores.local_pack import LocalPackFile
from ucpformat.storage.stores.remote.store import RemoteStore

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "source.ucp"
    make(path)
    return path


def interrupted(source: Path, out: Path, storage: str, calls: int, failure: BaseException) -> bool:
    """Convert until the n-th write; whether that came."""
    where: Any = (LocalPackFile, "append") if storage == "packed" else (local, "write_all")
    with pytest.MonkeyPatch.context() as patch:
        breaks = Breaks(calls, failure)
        patch.setattr(where[0], where[1], breaks(getattr(*where)))
        try:
            rewrite(source, out, storage, resume=True, workers=1)
        except (type(failure), UcpError) as reason:
            return failure in (reason, reason.__cause__)
    return False


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    storage=st.sampled_from(["packed", "plain"]),
    stops=st.lists(st.floats(0, 1), min_size=1, max_size=3),
    is_error=st.booleans(),
)
def test_interrupted_anywhere_and_resumed_it_is_the_same(
    source: Path, tmp_path_factory: pytest.TempPathFactory, storage: str, stops: list[int], is_error: bool
) -> None:
    out = tmp_path_factory.mktemp("out") / "c"
    for stop in stops:
        failure = OSError(28, "No space left on device") if is_error else KeyboardInterrupt()
        if not interrupted(source, out, storage, int(stop * (16 if storage == "packed" else 260)), failure):
            break
        assert not (out / "ucp.json").exists()
    else:
        rewrite(source, out, storage, resume=True, workers=2)
    assert_same(source, out)


def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the batches that are really copied."""
    numbers: list[int] = []
    copy = worker._copy

    def recorded(*arguments: Any) -> bytes:
        numbers.append(arguments[2].number)
        return copy(*arguments)

    monkeypatch.setattr(worker, "_copy", recorded)
    return numbers


@pytest.mark.parametrize("storage", ["packed", "plain"])
def test_finished_batches_are_not_copied_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    numbers = copied(monkeypatch)
    rewrite(source, tmp_path / "whole", storage, workers=1)
    every = sorted(numbers)
    assert every == list(range(len(every)))
    assert len(every) > 5
    numbers.clear()
    assert interrupted(source, tmp_path / "c", storage, 200 if storage == "plain" else 8, KeyboardInterrupt())
    first = sorted(numbers)
    assert 1 < len(first) < len(every)
    numbers.clear()
    rewrite(source, tmp_path / "c", storage, resume=True)
    # The last one was under way.
    assert sorted(numbers) == every[len(first) - 1 :]
    assert_same(source, tmp_path / "c")


KILLED = """
import os, signal
from pathlib import Path
from tests.conversion.engine.jobs import rewrite
from ucpformat.storage.stores import local
from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.stores.local_pack import LocalPackFile
from ucpformat.storage.stores.remote.store import RemoteStore
calls = []
def killing(write, at):
    def killed(first, buffers, *rest, **named):
        calls.append(1)
        if len(calls) == at:
            write(first, [buffers[0][: buffers[0].nbytes // 2]], *rest, **named)
            os.kill(os.getpid(), signal.SIGKILL)
        return write(first, buffers, *rest, **named)
    return killed
"""


@pytest.mark.parametrize("storage", ["packed", "plain"])
def test_a_process_that_is_killed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    """In the middle of a write: what was half written is done again, and nothing of it is left."""
    where = "LocalPackFile.append" if storage == "packed" else "local.write_all"
    script = f"""{KILLED}
{where} = killing({where}, {8 if storage == "packed" else 200})
rewrite(Path({str(source)!r}), Path({str(tmp_path / "c")!r}), {storage!r}, workers=1)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        check=False,
        timeout=300,
    )
    assert done.returncode == -signal.SIGKILL
    left = [path.name for path in (tmp_path / "c" / "packs").iterdir()]
    assert [name for name in left if name.endswith(".receipt")]
    # The draft of the root document, and in storage plain that of an object that was being replaced.
    drafts = [path for path in (tmp_path / "c").iterdir() if path.is_file()]
    assert len(drafts) == (2 if storage == "plain" else 1)
    with pytest.raises(UcpError, match="UCP-E-NOT-FOUND"):
        ucpformat.open(tmp_path / "c")
    numbers = copied(monkeypatch)
    rewrite(source, tmp_path / "c", storage, resume=True)
    assert 0 not in numbers
    assert_same(source, tmp_path / "c")


def test_without_resume_it_begins_anew_and_leaves_nothing_where_it_fails(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    assert interrupted(source, out, "packed", 10, KeyboardInterrupt())
    before = {path.name for path in (out / "packs").iterdir()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalPackFile, "append", Breaks(10, OSError(28, "full"))(LocalPackFile.append))
        with pytest.raises(OSError, match="full"):
            rewrite(source, out)
    assert not out.exists()
    assert before
    rewrite(source, out)
    assert_same(source, out)


@pytest.mark.parametrize("what", ["source", "options", "receipt", "pack", "plan"])
def test_what_does_not_fit_is_refused_or_done_again(source: Path, tmp_path: Path, what: str) -> None:
    mine, out = tmp_path / "source.ucp", tmp_path / "c"
    make(mine)
    assert interrupted(mine, out, "packed", 8, KeyboardInterrupt())
    receipts = sorted((out / "packs").glob("*.receipt"))
    assert len(receipts) > 2
    if what == "source":
        os.utime(next((mine / "packs").iterdir()), ns=(1, 1))
        with pytest.raises(UcpError, match="changed since"):
            rewrite(mine, out, resume=True)
        return
    if what == "options":
        with pytest.raises(UcpError, match="another conversion was begun"):
            rewrite(mine, out, "plain", resume=True)
        return
    if what == "receipt":
        data = bytearray(receipts[0].read_bytes())
        data[len(data) // 2] ^= 1
        receipts[0].write_bytes(data)
    elif what == "pack":
        number = receipts[0].name.partition("-")[2].partition(".")[0]
        (pack,) = (out / "packs").glob(f"*-{number}-*.pack")
        os.truncate(pack, pack.stat().st_size - 1)
    else:
        (plan,) = (out / "packs").glob("*.plan")
        plan.write_bytes(b"{")
    rewrite(mine, out, resume=True)
    assert_same(mine, out)


def test_what_is_committed_is_not_resumed(source: Path, tmp_path: Path) -> None:
    rewrite(source, tmp_path / "c", resume=True)
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        rewrite(source, tmp_path / "c", resume=True)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "precious").touch()
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        rewrite(source, tmp_path / "d", resume=True)
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["precious"]


def test_remote_stores_resume_too(source: Path) -> None:
    out = "memory://resumed/c"
    from ucpformat.storage.stores.remote.packs import RemotePackFile

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemotePackFile, "append", Breaks(12, KeyboardInterrupt())(RemotePackFile.append))
        with pytest.raises(KeyboardInterrupt):
            rewrite(source, out, resume=True, workers=1)
    rewrite(source, out, resume=True)
    assert_same(source, out)


def test_a_batch_that_two_workers_do_has_one_result(source: Path, tmp_path: Path) -> None:
    """A worker that was thought dead comes back: the one that comes later takes over what the first has done."""
    from concurrent.futures import ThreadPoolExecutor

    class Twice(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **named: Any) -> Any:
            first = super().submit(*arguments, **named)
            again = super().submit(*arguments, **named)
            first.result()
            return again

    # Before it is anew, so that what a worker that died long ago had staged lies there.
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / ".ucp.json.0").write_bytes(b"half")
    for storage in ("packed", "plain"):
        with Twice(4) as executor:
            rewrite(source, tmp_path / storage, storage, executor=executor)
        assert_same(source, tmp_path / storage)
        packs = list((tmp_path / storage).glob("packs/*"))
        assert all(path.suffix == ".pack" for path in packs)
    with ucpformat.open(tmp_path / "plain") as checkpoint:
        assert np.array_equal(checkpoint["scalar"]["value"].read(), np.float32(2.5))


def test_a_receipt_that_comes_when_its_pack_was_removed_is_not_believed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UCP-W-010: a worker that was thought dead writes it behind the pack, which looked like nobody's."""
    out = tmp_path / "c"
    assert interrupted(source, out, "packed", 8, KeyboardInterrupt())
    receipt = min((out / "packs").glob("*.receipt"))
    late = receipt.read_bytes()
    receipt.unlink()
    real = journal.earlier

    def earlier(*arguments: Any) -> Any:
        found = real(*arguments)
        receipt.write_bytes(late)
        return found

    monkeypatch.setattr(journal, "earlier", earlier)
    rewrite(source, out, resume=True, workers=1)
    assert_same(source, out)


@pytest.mark.parametrize("storage", ["packed", "plain"])
@pytest.mark.parametrize("out", ["memory://damaged-receipt/{}/c", "{}/c"])
def test_a_receipt_that_is_damaged_on_its_way_costs_no_objects(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str, out: str
) -> None:
    """The worker read it whole, took its pack over, and the pack went with the debris behind the commit."""
    url = out.format(tmp_path)
    store = RemoteStore if "://" in url else LocalStore
    stopped = Mock(side_effect=KeyboardInterrupt)
    with patch.object(store, "publish", stopped), pytest.raises(KeyboardInterrupt):
        rewrite(source, url, storage, resume=True, workers=1)
    whole, seen = worker.unsealed, 0

    def damaged_once(data: bytes) -> bytes | None:
        nonlocal seen
        seen += 1
        return None if seen == 1 else whole(data)

    monkeypatch.setattr(journal, "unsealed", damaged_once)
    rewrite(source, url, storage, resume=True, workers=1)
    assert seen > 5
    assert not ucpformat.validate(url)
    assert_same(source, url)


def test_a_source_that_cannot_be_listed_is_a_registered_error(tmp_path: Path) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    ucpformat.save("memory://unlisted/c", {"w": np.ones(3)})
    failing = Mock(side_effect=OSError(121, "injected"))
    with patch.object(MemoryFileSystem, "find", failing), pytest.raises(UcpError) as refusal:
        rewrite("memory://unlisted/c", tmp_path / "c")
    assert refusal.value.code == "UCP-E-STORE"
