"""Rows that are written over those of a base (SPEC section 16.4)."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ucpformat as ucp
from tests.test_increments import check, save
from ucpformat.copying import copy_checkpoint
from ucpformat.errors import UcpError
from ucpformat.geometry import Box
from ucpformat.storage.stores.store import Calls


def test_few_rows_of_many_are_written_alone(tmp_path: Path) -> None:
    """Rows under layers, layers that give no row any more, merged ones, and then all rows at once."""
    rng = np.random.default_rng(0)
    arrays = {"table": rng.integers(1, 1 << 30, (1024, 16), np.int32)}
    full = save(tmp_path / "0", arrays, chunk_bytes=1 << 15).stored.data
    layers = []
    for step in range(1, 60):
        rows = rng.choice(1024, 40, p=(weights := 1 / np.arange(1, 1025)) / weights.sum(), replace=False)
        arrays["table"][rows] += step
        report = save(tmp_path / str(step), arrays, base=tmp_path / str(step - 1), chunk_bytes=1 << 15)
        assert report.stored.data <= full
        layers.append(report.stored.data / (40 * 64))
        check(tmp_path / str(step), arrays)
        with ucp.open(tmp_path / str(step)) as ckpt:
            assert max(ckpt.part(0).table.counts) <= 25
            assert report.stored.data + report.stored.shared <= 2.1 * full
            with pytest.raises(UcpError, match="UCP-E-STORE"):
                ckpt["table"]["value"].mapped()
        shutil.rmtree(tmp_path / str(step - 1))
    assert np.mean(layers) < 2
    arrays["table"] += 1
    assert save(tmp_path / "60", arrays, base=tmp_path / "59", chunk_bytes=1 << 15).stored.data == full
    with ucp.open(tmp_path / "60") as ckpt:
        assert ckpt.root.envelope.read_features == ()
        ckpt["table"]["value"].mapped()


def test_a_damaged_layer_is_not_shared(tmp_path: Path) -> None:
    """Not even where the damage lies in a row that another layer gives."""
    arrays = {"table": np.arange(1, 16385, dtype=np.int32).reshape(1024, 16)}
    save(tmp_path / "0", arrays, chunk_bytes=1 << 16)
    arrays["table"][5] = 7
    save(tmp_path / "1", arrays, base=tmp_path / "0", chunk_bytes=1 << 16)
    shutil.rmtree(tmp_path / "0")
    for pack in (tmp_path / "1" / "packs").iterdir():
        if pack.stat().st_size > 1 << 15:
            with pack.open("r+b") as file:
                file.seek(5 * 64)
                file.write(b"damage")
    assert list(ucp.validate(tmp_path / "1"))
    arrays["table"][9] = 7
    save(tmp_path / "2", arrays, base=tmp_path / "1", chunk_bytes=1 << 16)
    check(tmp_path / "2", arrays)


def test_a_conversion_flattens_and_a_copy_keeps_what_is_shared(tmp_path: Path) -> None:
    arrays = {"table": np.arange(1, 16385, dtype=np.int32).reshape(1024, 16)}
    save(tmp_path / "0", arrays, chunk_bytes=1 << 16)
    arrays["table"][5] = 7
    save(tmp_path / "1", arrays, base=tmp_path / "0", chunk_bytes=1 << 16)
    ucp.convert(tmp_path / "1", tmp_path / "flat.ucp")
    with ucp.open(tmp_path / "flat.ucp") as ckpt:
        assert ckpt.root.envelope.read_features == ()
    copy_checkpoint(tmp_path / "1", tmp_path / "copy")
    shutil.rmtree(tmp_path / "0")
    shutil.rmtree(tmp_path / "1")
    check(tmp_path / "flat.ucp", arrays)
    check(tmp_path / "copy", arrays)


@given(data=st.data(), window=st.sampled_from([4, 12, 36, 100, 1 << 20]), dense=st.booleans())
def test_rows_are_the_same_however_little_is_read_at_a_time(
    data: st.DataObject, window: int, dense: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rows lie across what is read at a time, or many in it; some of their columns may be wanted alone."""
    room = tmp_path_factory.mktemp("rows")
    table = np.arange(1, 1 + 24 * 12, dtype=np.int32).reshape(24, 3, 4)
    save(room / "0", {"table": table}, chunk_bytes=1 << 15)
    last = 0
    for rows in data.draw(
        st.lists(st.sets(st.integers(0, 23), min_size=1, max_size=6), min_size=1, max_size=5)
    ):
        table[[*rows]] += 1000
        save(room / str(last + 1), {"table": table}, base=room / str(last), chunk_bytes=1 << 15)
        last += 1
    corners = [sorted(data.draw(st.tuples(*(st.integers(0, extent),) * 2))) for extent in table.shape]
    box = Box(tuple(low for low, _ in corners), tuple(high - low for low, high in corners))
    wide = np.zeros(box.shape if dense else [2 * extent for extent in box.shape], np.int32)
    out = wide if dense else wide[::2, ::2, ::2]
    with ucp.open(room / str(last), verify=False) as ckpt:
        ckpt.store.calls = Calls(at_once=None, window=window, gap=16)
        ckpt.read_box(ckpt["table"]["value"].stored, box, out)
    np.testing.assert_array_equal(out, table[tuple(slice(low, high) for low, high in corners)])
    assert np.count_nonzero(wide) == out.size
    shutil.rmtree(room)
