"""What a page carries of tensors: the first elements, and means of cells, within a size."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16

import ucpformat as ucp
from tests.builders import Tensor, save
from ucpformat.viewing import previews as module
from ucpformat.viewing.previews import previews


def cells_of(found: dict[str, Any]) -> np.ndarray:
    """Means as the page reads them: NaN where they are not finite or nothing was read."""
    codes = np.frombuffer(base64.b64decode(found["cells"]), np.uint8).astype(float)
    cells = np.where(codes < 2, np.nan, ((codes - 2) / 126.5 - 1) * found["most"])
    return cells.reshape(found["height"], found["width"])


def expected(data: np.ndarray, height: int, width: int, columns: int) -> np.ndarray:
    """Means element by element, by the rule of `js/view/matrix.mjs`."""
    flat = data.reshape(-1)
    rows = -(-flat.size // columns)
    sums, counts = np.zeros((height, width)), np.zeros((height, width))
    for i, value in enumerate(flat):
        row, column = divmod(i, columns)
        cell = (-(-(row + 1) * height // rows) - 1, column * width // columns)
        sums[cell] += value
        counts[cell] += 1
    with np.errstate(invalid="ignore"):
        return sums / counts


@given(st.lists(st.integers(1, 60), max_size=3), st.integers(0, 99), st.booleans())
def test_a_heat_map_has_means_of_cells(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], seed: int, has_nan: bool
) -> None:
    data = np.random.default_rng(seed).standard_normal(shape)
    if has_nan and data.size > 3:
        data.reshape(-1)[seed % data.size] = np.nan
    path = tmp_path_factory.mktemp("map") / "a.ucp"
    ucp.save(path, {"w": data})
    with ucp.open(path) as ckpt:
        found: Any = previews(ckpt, 1 << 20)["w"]["value"]
    drawn = found["map"]
    columns = shape[-1] if len(shape) > 1 else min(data.size, 1024)
    means = expected(data, drawn["height"], drawn["width"], columns)
    assert np.allclose(cells_of(drawn), means, atol=drawn["most"] / 250, equal_nan=True)
    extents = [*(1 for _ in shape[:-2]), *map(min, shape[-2:], module.WINDOW[-len(shape) :])]
    elements = np.frombuffer(base64.b64decode(found["elements"])).reshape(found["shape"])
    assert found["shape"] == extents
    assert np.array_equal(elements, data[tuple(slice(0, extent) for extent in extents)], equal_nan=True)


@pytest.mark.parametrize("shape", [(4096,), (64, 64), (4, 16, 64), (2, 2048)])
def test_of_a_large_tensor_some_of_each_band_is_read(
    shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WHOLE", 8 << 10)
    monkeypatch.setattr(module, "_BAND", 1 << 10)
    ucp.save(tmp_path / "a.ucp", {"w": np.full(shape, 3.0)})
    with ucp.open(tmp_path / "a.ucp") as ckpt:
        found: Any = previews(ckpt, 1 << 20)["w"]["value"]
    if shape == (2, 2048):
        assert "map" not in found  # a row is longer than what is read
        return
    assert found["map"]["isWhole"] is False
    assert np.allclose(cells_of(found["map"]), 3.0)


def test_the_largest_come_first_and_all_of_them_fit(tmp_path: Path) -> None:
    tensors = {f"w{count}": np.arange(float(count)) for count in (1, 500, 30, 4000)}
    ucp.save(tmp_path / "a.ucp", tensors)
    with ucp.open(tmp_path / "a.ucp") as ckpt:
        everything = previews(ckpt, 1 << 20)
        assert list(everything) == ["w4000", "w500", "w30", "w1"]
        some = previews(ckpt, 900)
        assert list(some) == list(everything)[: len(some)]
        assert 0 < len(some) < 4
        assert len(json.dumps(some)) < 1000
        assert previews(ckpt, 10) == {}


def test_every_data_type_and_no_elements(tmp_path: Path) -> None:
    save(
        tmp_path / "a.ucp",
        {
            ("half", "value"): Tensor(np.ones((2, 2), bfloat16), "bfloat16"),
            ("complex", "value"): Tensor(np.array([1 + 2j, 3]), "complex128"),
            ("bool", "value"): Tensor(np.array([True, False]), "bool"),
            ("none", "value"): Tensor(np.zeros((0, 3)), "float64"),
            ("scalar", "value"): Tensor(np.array(7, np.int64), "int64"),
        },
    )
    with ucp.open(tmp_path / "a.ucp") as ckpt:
        found: Any = previews(ckpt, 1 << 20)
    assert cells_of(found["complex"]["value"]["map"]) == pytest.approx(np.array([[1.0, 3.0]]), abs=0.03)
    assert found["none"]["value"] == {"shape": [0, 3], "elements": ""}
    assert base64.b64decode(found["half"]["value"]["elements"]) == b"\x80\x3f" * 4
    assert base64.b64decode(found["scalar"]["value"]["elements"]) == (7).to_bytes(8, "little")
