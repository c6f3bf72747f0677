"""What increments share is not read to be compared, and everything that differs is found."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

import ucpformat as ucp
from tests.test_increments import FORMS, save
from ucpformat.comparison import Comparison
from ucpformat.comparison.same_bytes import Files, unshared_boxes
from ucpformat.storage.stores.local_objects import LocalObjects

Arrays = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def read() -> Iterator[dict[str, int]]:
    """Bytes of each key that local stores were asked for, documents included."""
    found: dict[str, int] = {}

    def counting(name: str) -> Any:
        real = getattr(LocalObjects, name)

        def call(self: LocalObjects, key: str, *rest: Any) -> Any:
            match name:
                case "head":
                    nbytes = min(rest[0], self.size(key) or 0)
                case "read_into":
                    nbytes = sum(buffer.nbytes for buffer in rest[1])
                case _:
                    nbytes = rest[1] - rest[0]
            found[key] = found.get(key, 0) + nbytes
            return real(self, key, *rest)

        return mock.patch.object(LocalObjects, name, call)

    with counting("head"), counting("read"), counting("read_into"), counting("mapped"):
        yield found


@pytest.fixture
def fetched() -> Iterator[list[tuple[str, int]]]:
    """What was asked for at URLs, documents included: keys and bytes."""
    found: list[tuple[str, int]] = []
    real = MemoryFileSystem.cat_file

    def cat_file(self: Any, path: str, *args: Any, **options: Any) -> Any:
        data = real(self, path, *args, **options)
        found.append((path, len(data)))
        return data

    with mock.patch.object(MemoryFileSystem, "cat_file", cat_file):
        yield found
    MemoryFileSystem.store.clear()


def two_versions(path: Path | str, *, form: str = "packed") -> tuple[Arrays, Arrays]:
    """64 tensors of 256 KiB, of which one differs."""
    rng = np.random.default_rng(0)
    one = {f"w{n}": rng.integers(1, 1 << 30, (64, 1 << 10), np.int32) for n in range(64)}
    other = {**one, "w7": one["w7"] + 1}
    save(f"{path}/1", one, form=form, chunk_bytes=1 << 18)
    save(f"{path}/2", other, form=form, chunk_bytes=1 << 18, base=f"{path}/1")
    return one, other


@pytest.mark.parametrize("form", FORMS)
def test_only_what_differs_is_read(tmp_path: Path, form: str, read: dict[str, int]) -> None:
    two_versions(tmp_path, form=form)
    read.clear()
    found = ucp.diff(tmp_path / "1", tmp_path / "2")
    (difference,) = found.differences
    assert difference.what == "atoms/w7/value"
    assert (found.slots_by_sharing, found.slots_by_digest, found.slots_by_bytes) == (63, 0, 1)
    data = sum(nbytes for key, nbytes in read.items() if key.startswith(("packs/", "atoms/")))
    assert data == found.fetched <= 2 * ((1 << 18) + 4)
    documents = sum(read.values()) - data
    assert documents < 100_000, "of 32 MiB in both"


def test_sharing_is_proof_where_no_digest_is_recorded(tmp_path: Path, read: dict[str, int]) -> None:
    """And a tensor that differs is read although most of it is shared: the chunks that are not."""
    rng = np.random.default_rng(0)
    arrays = {"a": rng.integers(1, 1 << 30, (64, 1 << 10), np.int32)}
    save(tmp_path / "1", arrays, chunk_bytes=1 << 14)
    changed = arrays["a"].copy()
    changed[9, 5] += 3
    save(tmp_path / "2", {"a": changed}, chunk_bytes=1 << 14, base=tmp_path / "1")
    found = ucp.diff(tmp_path / "1", tmp_path / "2")
    (difference,) = found.differences
    assert difference.tensor is not None
    assert (difference.tensor.ranges, difference.tensor.max_abs) == (((9, 10),), 3)
    assert found.fetched <= 2 << 14
    everything = ucp.diff(tmp_path / "1", tmp_path / "2", by="bytes")
    assert everything.differences == found.differences
    assert everything.fetched == 2 * arrays["a"].nbytes


def test_rows_that_were_written_over_are_all_that_is_read_of_the_new_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(1, 1 << 30, (1 << 14, 64), np.int32)  # 4 MiB, of rows of 256 bytes
    save(tmp_path / "1", {"t": table}, chunk_bytes=1 << 24)
    rows = {2: [5, 6, 9000], 3: [6, 16000]}
    for step, some in rows.items():
        table = table.copy()
        table[some] += step
        save(tmp_path / f"{step}", {"t": table}, chunk_bytes=1 << 24, base=tmp_path / f"{step - 1}")
    with ucp.open(tmp_path / "3") as ckpt:
        assert any(one.row_set for one in ckpt["t"]["value"].stored.segments(0)), "layers"
    for first, second, changed in (
        (1, 2, ((5, 7), (9000, 9001))),
        (2, 3, ((6, 7), (16000, 16001))),
        (1, 3, ((5, 7), (9000, 9001), (16000, 16001))),
    ):
        found = ucp.diff(tmp_path / f"{first}", tmp_path / f"{second}")
        tensor = found.differences[0].tensor
        assert tensor is not None
        assert tensor.ranges == changed
        with ucp.open(tmp_path / f"{first}") as a, ucp.open(tmp_path / f"{second}") as b:
            sides = [(one["t"]["value"].stored, Files(one.store)) for one in (a, b)]
            (boxes,) = unshared_boxes(sides[0][0], sides[1][0], sides[0][1], sides[1][1])
        assert sum(box.shape[0] for box in boxes) <= 300, "rows, with what lies near between them"


@pytest.mark.parametrize("form", FORMS)
def test_of_copies_in_a_store_only_what_differs_is_read(form: str, fetched: list[tuple[str, int]]) -> None:
    """Each has objects of its own, and digests and checksums say that they hold the same."""
    url = f"memory://{uuid4().hex}"
    two_versions(url, form=form)
    fetched.clear()
    found = ucp.diff(f"{url}/1", f"{url}/2")
    assert [one.what for one in found.differences] == ["atoms/w7/value"]
    assert (found.slots_by_sharing, found.slots_by_digest, found.slots_by_bytes) == (0, 63, 1)
    data = sum(nbytes for path, nbytes in fetched if "/packs/" in path or "/c/" in path)
    assert data == found.fetched <= 2 * ((1 << 18) + 4)
    assert sum(nbytes for _, nbytes in fetched) - data < 100_000, "documents"


@pytest.mark.parametrize("form", FORMS)
def test_of_a_tensor_that_is_copied_in_part_the_rest_is_read(
    form: str, fetched: list[tuple[str, int]]
) -> None:
    rng = np.random.default_rng(0)
    url = f"memory://{uuid4().hex}"
    array = rng.integers(1, 1 << 30, (64, 1 << 10), np.int32)
    save(f"{url}/1", {"a": array}, form=form, chunk_bytes=1 << 14)
    changed = array.copy()
    changed[9, 5] += 3
    save(f"{url}/2", {"a": changed}, form=form, chunk_bytes=1 << 14, base=f"{url}/1")
    fetched.clear()
    found = ucp.diff(f"{url}/1", f"{url}/2")
    assert found.differences[0].tensor is not None
    assert found.differences[0].tensor.ranges == ((9, 10),)
    assert sum(nbytes for path, nbytes in fetched if "/packs/" in path or "/c/" in path) <= 2 * (
        (1 << 14) + 100
    )
    assert found.differences == ucp.diff(f"{url}/1", f"{url}/2", by="bytes").differences


def test_layers_that_were_copied_are_told_by_their_rows_and_checksums(fetched: list[tuple[str, int]]) -> None:
    """Of the older one is read what the rows that were written over hide, and of the newer one these rows."""
    rng = np.random.default_rng(0)
    url = f"memory://{uuid4().hex}"
    table = rng.integers(1, 1 << 30, (1 << 15, 64), np.int32)  # 8 MiB, of rows of 256 bytes
    save(f"{url}/0", {"t": table}, chunk_bytes=1 << 24)
    for step, rows in enumerate(([5, 6, 9000], [6, 16000], [7]), 1):
        table = table.copy()
        table[rows] += step
        save(f"{url}/{step}", {"t": table}, chunk_bytes=1 << 24, base=f"{url}/{step - 1}")
    fetched.clear()
    for first, changed in ((0, ((5, 8), (9000, 9001), (16000, 16001))), (1, ((6, 8), (16000, 16001)))):
        found = ucp.diff(f"{url}/{first}", f"{url}/3")
        assert found.differences[0].tensor is not None
        assert found.differences[0].tensor.ranges == changed
        assert found.fetched < 7 << 20, "blocks of 1 MiB around rows"
        assert found.differences == ucp.diff(f"{url}/{first}", f"{url}/3", by="bytes").differences


@pytest.mark.parametrize(("columns", "blocks"), [(64, 3), (100, 7)])
def test_two_that_share_nothing_are_compared_block_by_block(
    tmp_path: Path, columns: int, blocks: int
) -> None:
    """Of rows that lie across blocks, more blocks are read than differ."""
    rng = np.random.default_rng(0)
    array = rng.integers(1, 1 << 30, (1 << 13, 4, columns), np.int32)  # 8 MiB and more, in one chunk
    changed = array.copy()
    changed[[0, 2000, 8191], 1, 7] += 1
    changed[655, 0, 7] += 1  # of 100 columns, in a row that lies across the first two blocks, in the first
    for name, one in (("1", array), ("2", changed)):
        save(tmp_path / name, {"a": one}, chunk_bytes=1 << 24)
    found = ucp.diff(tmp_path / "1", tmp_path / "2")
    assert found.differences[0].tensor is not None
    assert found.differences[0].tensor.ranges == ((0, 1), (655, 656), (2000, 2001), (8191, 8192))
    assert found.differences == ucp.diff(tmp_path / "1", tmp_path / "2", by="bytes").differences
    assert found.fetched <= 2 * (blocks << 20)


def test_two_runs(tmp_path: Path, read: dict[str, int]) -> None:
    """Two runs that went on from one checkpoint share its packs; two that never met share nothing."""
    rng = np.random.default_rng(0)
    frozen, trained = rng.random((256, 256)), rng.random(10)
    with ucp.CheckpointManager(tmp_path / "a", incremental=True) as manager:
        manager.save(1, {"frozen": frozen, "trained": trained})
        manager.save(2, {"frozen": frozen, "trained": trained + 1})
    ucp.save(
        tmp_path / "b" / "step-2.ucp",
        {"frozen": frozen, "trained": trained + 2},
        base=tmp_path / "a" / "step-1.ucp",
    )
    shutil.rmtree(tmp_path / "a" / "step-1.ucp")
    found = ucp.diff(tmp_path / "a" / "step-2.ucp", tmp_path / "b" / "step-2.ucp")
    assert [one.what for one in found.differences] == ["atoms/trained/value"]
    assert (found.slots_by_sharing, found.slots_by_bytes) == (1, 1)
    shutil.copytree(tmp_path / "b", tmp_path / "c")  # which makes files of its own
    again = ucp.diff(tmp_path / "a" / "step-2.ucp", tmp_path / "c" / "step-2.ucp")
    assert (again.slots_by_sharing, again.slots_by_digest, again.slots_by_bytes) == (0, 1, 1)
    assert again.differences == found.differences


@given(
    st.data(),
    st.sampled_from(FORMS),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 1), st.integers(0, 1)),
)
def test_every_difference_is_found_as_by_reading_all(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    form: str,
    ranks: tuple[int, int],
    dims: tuple[int, int],
) -> None:
    """Whatever cut each of both, and however often rows were written over."""
    folder = tmp_path_factory.mktemp("versions")
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    array = rng.integers(1, 1 << 30, (90, 1, 12), np.int32)
    chunk_bytes = data.draw(st.sampled_from([64, 1600, 1 << 20]))
    paths: list[Path] = []
    for step in range(4):
        rows = data.draw(st.lists(st.integers(0, 89), max_size=4))
        array = array.copy()
        array[rows] = rng.integers(1, 1 << 30, (len(rows), 1, 12))
        base = data.draw(st.sampled_from([None, *paths])) if paths else None
        path = folder / str(step)
        options: dict[str, Any] = {"form": form, "ranks": ranks[step % 2], "dim": dims[step % 2]}
        save(path, {"t": array}, base=base, chunk_bytes=chunk_bytes, **options)
        paths.append(path)
    for first in paths:
        for second in paths:
            quick, sure = (ucp.diff(first, second, by=by) for by in ("digests", "bytes"))
            assert quick.differences == sure.differences
    shutil.rmtree(folder)


def test_a_missing_file_is_nobody_elses(tmp_path: Path) -> None:
    save(tmp_path / "1", {"a": np.ones(4, np.int32)})
    save(tmp_path / "2", {"a": np.ones(4, np.int32)}, base=tmp_path / "1")
    for step in ("1", "2"):
        next((tmp_path / step / "packs").iterdir()).unlink()
    assert ucp.diff(tmp_path / "1", tmp_path / "2") == Comparison((), 1, 0)
