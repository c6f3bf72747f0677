"""Increments of which the changes are known: by the snapshot of a saver, or declared (docs/increments.md)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ucpformat as ucp
from tests.distributed.thread_group import run_threads
from ucpformat.distributed.save_options import SaveOptions
from ucpformat.errors import UcpError
from ucpformat.geometry import Box, Layout, Mesh, MeshAxis, Shard
from ucpformat.storage.increments.changes import DeclaredRows
from ucpformat.storage.stores.linking import LinkSource
from ucpformat.storage.stores.store import Store

Arrays = dict[str, np.ndarray[Any, Any]]

SHAPES: Final[dict[str, tuple[int, ...]]] = {
    "table": (200, 16), "experts": (3, 40, 12), "one": (1, 64, 8), "vector": (300,), "scalar": (), "none": (0, 4),
}  # fmt: skip
FORMS: Final[dict[str, dict[str, Any]]] = {
    "packed": {},
    "plain": {"storage": "plain"},
    "gzip": {"compressor": ucp.Compressor("gzip", {"level": 1})},
    "plain, gzip": {"storage": "plain", "compressor": ucp.Compressor("gzip", {"level": 1})},
}


def fresh() -> Arrays:
    rng = np.random.default_rng(3)
    return {name: rng.random(shape, np.float32) + 1 for name, shape in SHAPES.items()}


def big() -> Arrays:
    return {"table": fresh()["table"].repeat(20, 0), "frozen": np.arange(1, 100_001, dtype=np.float32)}


def check(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    assert list(ucp.validate(path)) == []
    found = ucp.load(path)
    for name, array in arrays.items():
        assert found[name].tobytes() == array.tobytes(), name


@contextmanager
def unread() -> Iterator[None]:
    """Fail a save that looks at bytes of its base; those that links are made of are only opened."""

    def refuse(*_: object) -> None:
        raise AssertionError("the base was read")

    with mock.patch.object(LinkSource, "has", refuse), mock.patch.object(LinkSource, "read", refuse):
        yield


changes_of_arrays = st.lists(
    st.tuples(
        st.sampled_from(sorted(SHAPES)),
        st.lists(st.integers(0, 1 << 16), max_size=12),
        st.sampled_from([0.0, -0.0, np.nan, 7.5]),
    ),
    max_size=4,
)


@given(
    steps=st.lists(changes_of_arrays, min_size=1, max_size=4),
    form=st.sampled_from(sorted(FORMS)),
    chunk_bytes=st.sampled_from([512, 4096]),
    is_turned=st.booleans(),
    arena=st.sampled_from([None, 1 << 14]),
)
def test_what_a_saver_compares_is_what_changed(
    steps: list[list[tuple[str, list[int], float]]],
    form: str,
    chunk_bytes: int,
    is_turned: bool,
    arena: int | None,
) -> None:
    arrays = fresh()
    if is_turned:  # memory in another order than that of the elements
        arrays["table"] = np.asfortranarray(arrays["table"])
    with (
        tempfile.TemporaryDirectory() as room,
        mock.patch("os.fsync"),
        ucp.AsyncSaver(arena_bytes=arena) as saver,
    ):
        saver.save(Path(room) / "0.ucp", arrays, chunk_bytes=chunk_bytes, **FORMS[form]).wait()
        for number, step in enumerate(steps, 1):
            for name, where, value in step:
                if arrays[name].size:
                    arrays[name].flat[[index % arrays[name].size for index in where]] = value
            path = Path(room) / f"{number}.ucp"
            saver.save(path, arrays, base=Path(room) / f"{number - 1}.ucp", **FORMS[form]).wait()
            check(path, arrays)


@pytest.mark.parametrize("form", FORMS)
def test_a_saver_that_has_its_snapshot_does_not_read_the_base(tmp_path: Path, form: str) -> None:
    arrays = big()
    with ucp.AsyncSaver() as saver:
        saver.save(tmp_path / "0.ucp", arrays, chunk_bytes=1 << 14, **FORMS[form]).wait()
        for number in (1, 2, 3):
            arrays["table"][number::211] += 1
            with unread():
                saving = saver.save(
                    tmp_path / f"{number}.ucp", arrays, base=tmp_path / f"{number - 1}.ucp", **FORMS[form]
                )
                report = saving.wait()
            assert report.stored.shared >= arrays["frozen"].nbytes / (8 if "gzip" in form else 1)
            check(tmp_path / f"{number}.ucp", arrays)
    if form == "packed":
        assert report.stored.data <= 20 * 64 * 4


def test_torch_tensors_are_compared_too(tmp_path: Path) -> None:
    state = {
        "w": torch.randn(500, 32),
        "half": torch.randn(64, 64).to(torch.bfloat16),
        "flag": torch.tensor(True),
    }
    with ucp.AsyncSaver() as saver:
        saver.save(tmp_path / "0.ucp", state).wait()
        state["w"][17] = float("nan")
        state["w"].t()[3] += 0  # nothing changes
        with unread():
            report = saver.save(tmp_path / "1.ucp", state, base=tmp_path / "0.ucp").wait()
    assert report.stored.data == 32 * 4
    loaded = ucp.load(tmp_path / "1.ucp", tensors="torch")
    assert all(torch.equal(loaded[name].nan_to_num(), state[name].nan_to_num()) for name in state)
    assert list(ucp.validate(tmp_path / "1.ucp")) == []


def other_base(room: Path, saver: ucp.AsyncSaver, arrays: Arrays) -> Path:
    """A base that the saver has not written."""
    ucp.save(room / "other.ucp", {**arrays, "table": arrays["table"] + 1})
    return room / "other.ucp"


def replaced(room: Path, saver: ucp.AsyncSaver, arrays: Arrays) -> Path:
    """The place of the last checkpoint, where another one stands by now."""
    shutil.rmtree(room / "0.ucp")
    ucp.save(room / "0.ucp", {**arrays, "table": arrays["table"] + 1})
    return room / "0.ucp"


def older(room: Path, saver: ucp.AsyncSaver, arrays: Arrays) -> Path:
    """The checkpoint before the last one."""
    saver.save(room / "newer.ucp", {**arrays, "table": arrays["table"] + 1}).wait()
    return room / "0.ucp"


def after_a_failure(room: Path, saver: ucp.AsyncSaver, arrays: Arrays) -> Path:
    """The last checkpoint, after a save that has copied other values and failed."""
    with mock.patch("os.link", side_effect=OSError(5, "lost")), pytest.raises(UcpError):
        saver.save(room / "failed.ucp", {**arrays, "table": arrays["table"] + 1}).wait()
    return room / "0.ucp"


@pytest.mark.parametrize("make", [other_base, replaced, older, after_a_failure])
def test_a_snapshot_of_another_checkpoint_is_not_compared_with(tmp_path: Path, make: Any) -> None:
    arrays = big()
    with ucp.AsyncSaver() as saver:
        saver.save(tmp_path / "0.ucp", arrays).wait()
        base = make(tmp_path, saver, arrays)
        saver.save(tmp_path / "1.ucp", arrays, base=base).wait()
    check(tmp_path / "1.ucp", arrays)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_was_cut_off_is_not_shared(tmp_path: Path, form: str) -> None:
    arrays = big()
    with ucp.AsyncSaver() as saver:
        saver.save(tmp_path / "0.ucp", arrays, **FORMS[form]).wait()
        for path in [*tmp_path.glob("0.ucp/packs/*"), *tmp_path.glob("0.ucp/atoms/*/value/c/**/*")]:
            if path.is_dir():
                continue
            os.truncate(path, path.stat().st_size - 4)
        arrays["table"][0] += 1
        saver.save(tmp_path / "1.ucp", arrays, base=tmp_path / "0.ucp", **FORMS[form]).wait()
    check(tmp_path / "1.ucp", arrays)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, "mask"])
def test_declared_rows_are_written_and_nothing_is_read(tmp_path: Path, form: str, kind: Any) -> None:
    arrays = big()
    ucp.save(tmp_path / "0.ucp", arrays, chunk_bytes=1 << 14, **FORMS[form])
    rows = [3, 700, 3999]
    arrays["table"][rows] += 1
    said = np.isin(np.arange(4000), rows) if kind == "mask" else kind(rows)
    with unread():
        report = ucp.save(
            tmp_path / "1.ucp",
            arrays,
            base=tmp_path / "0.ucp",
            changed={"t*": said, "frozen": []},
            **FORMS[form],
        )
    check(tmp_path / "1.ucp", arrays)
    if form == "packed":
        assert report.stored.data == 3 * 64


def test_rows_that_were_forgotten_are_those_of_the_base_and_the_validator_says_so(tmp_path: Path) -> None:
    arrays = big()
    ucp.save(tmp_path / "0.ucp", arrays)
    before = arrays["table"][9].copy()
    arrays["table"][[5, 9]] += 1
    ucp.save(tmp_path / "1.ucp", arrays, base=tmp_path / "0.ucp", changed={"table": [5]})
    assert {problem.code for problem in ucp.validate(tmp_path / "1.ucp")} == {"UCP-E-CONTENT"}
    with ucp.open(tmp_path / "1.ucp") as ckpt:
        assert np.array_equal(ckpt["table"]["value"][9], before)


@pytest.mark.parametrize(
    ("changed", "code", "what"),
    [
        ({"tabel": [1]}, "UCP-E-NAME", "did you mean 'table'"),
        ({"table": [4000]}, "UCP-E-MISMATCH", "0 to 3999 of the first dimension.* from 4000 to 4000"),
        ({"table": [-1]}, "UCP-E-MISMATCH", "0 to 3999"),
        ({"table": [0.5]}, "UCP-E-MISMATCH", "not float64"),
        ({"table": [[1, 2]]}, "UCP-E-MISMATCH", r"shape \[1, 2\]"),
        ({"table": [True]}, "UCP-E-MISMATCH", "4000 truth values"),
    ],
)
def test_rows_that_are_none_of_the_tensor_are_refused(
    tmp_path: Path, changed: dict[str, Any], code: str, what: str
) -> None:
    arrays = big()
    ucp.save(tmp_path / "0.ucp", arrays)
    with pytest.raises(UcpError, match=what) as refusal:
        ucp.save(tmp_path / "1.ucp", arrays, base=tmp_path / "0.ucp", changed=changed)
    assert refusal.value.code == code
    assert not (tmp_path / "1.ucp").exists()


@pytest.mark.parametrize("save", [ucp.save, ucp.async_save])
def test_declared_rows_need_a_base(tmp_path: Path, save: Any) -> None:
    with pytest.raises(UcpError, match="give base= as well"):
        save(tmp_path / "1.ucp", big(), changed={"table": [1]})


def test_every_rank_declares_rows_of_the_whole_tensor(tmp_path: Path) -> None:
    arrays = big()
    ucp.save(tmp_path / "0.ucp", arrays)
    arrays["table"][[5, 3000]] += 1
    layout = ucp.TensorLayout(Layout(Mesh((MeshAxis("dp", 2),)), (Shard("dp", 0, "ceil"),)), (4000, 16))

    def rank(group: Any) -> None:
        mine = {**arrays, "table": np.ascontiguousarray(arrays["table"][2000 * group.rank :][:2000])}
        ucp.save(
            tmp_path / "1.ucp", mine, group=group, layouts={"table": layout}, base=tmp_path / "0.ucp",
            changed={"table": [5, 3000], "frozen": []},
        )  # fmt: skip

    assert [one for one in run_threads(2, rank) if one is not None] == []
    check(tmp_path / "1.ucp", arrays)


def test_rows_of_boxes_that_lie_in_one_index_change_together() -> None:
    known = DeclaredRows("", {("w", "value"): np.array([True, False])})
    assert known.rows(("w", "value"), Box((0, 2, 0), (1, 3, 4))) is not None
    found = [known.rows(("w", "value"), Box((index, 2, 0), (1, 3, 4))) for index in (0, 1)]
    assert [rows.tolist() for rows in found if rows is not None] == [[True] * 3, [False] * 3]
    assert known.rows(("other", "value"), Box((0,), (1,))) is None


def test_rows_are_not_declared_of_a_base_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    arrays = big()
    ucp.save(tmp_path / "0.ucp", arrays)
    look = SaveOptions.based

    def replacing(options: SaveOptions, base: str, target: Store) -> SaveOptions:
        found = look(options, base, target)
        shutil.rmtree(tmp_path / "0.ucp")
        ucp.save(tmp_path / "0.ucp", {**arrays, "table": arrays["table"] + 1})
        return found

    with mock.patch.object(SaveOptions, "based", replacing):
        ucp.save(tmp_path / "1.ucp", arrays, base=tmp_path / "0.ucp", changed={"table": [], "frozen": []})
    check(tmp_path / "1.ucp", arrays)
