"""``compressor="auto"``: one compressor for each slot, that any Zarr library knows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given
from hypothesis import strategies as st

import ucpformat
from tests.geometry.strategies import shapes
from ucpformat.model.compressor import LEAST_BYTES, Compressor, compressor_of
from ucpformat.model.dtype import DTYPES, dtype
from ucpformat.model.root import Storage

ZSTD = Compressor("zstd", {"level": 1, "checksum": False})


@given(st.sampled_from(sorted(DTYPES)), shapes(max_ndim=3), st.integers(0, 1 << 20))
def test_what_is_chosen_is_of_the_format_and_fits_the_elements(
    name: str, shape: tuple[int, ...], more: int
) -> None:
    for extents in (shape, (*shape, more)):
        found = compressor_of("auto", name, extents)
        nbytes = math.prod(extents) * dtype(name).item_bytes
        if found is not None:
            assert nbytes >= LEAST_BYTES
            assert found.configuration["typesize"] == dtype(name).item_bytes
            assert Compressor.from_json(found.to_json(), at="") == found
        else:
            assert nbytes < LEAST_BYTES or name not in {"bfloat16", "float32"}
        assert compressor_of(None, name, extents) is None
        assert compressor_of(ZSTD, name, extents) is ZSTD


def state() -> dict[str, Any]:
    """Weights and moments as small as trained ones, in the types that training has; and what stays as it is."""
    random = np.random.default_rng(3)
    values = (0.02 * random.standard_normal((300, 256))).astype(np.float32)
    return {
        "model": {"w": values.astype(ml_dtypes.bfloat16), "half": values.astype(np.float16)},
        "optim": {
            "state": {"w": {"master": values, "exp_avg": 1e-3 * values, "exp_avg_sq": 1e-6 * values**2}}
        },
        "ids": np.arange(1 << 17, dtype=np.int64),
        "scale": values[0],
    }


@pytest.mark.parametrize("storage", ["plain", "packed"])
def test_both_zarr_libraries_read_it(tmp_path: Path, storage: Storage) -> None:
    path = tmp_path / "x.ucp"
    wanted = state()
    report = ucpformat.save(path, wanted, storage=storage, compressor="auto", chunk_bytes=1 << 17)
    assert list(ucpformat.validate(path)) == []
    found = ucpformat.load(path)
    chosen = {}
    with ucpformat.open(path) as checkpoint:
        for name, atom in checkpoint.items():
            for slot, view in atom.items():
                chosen[f"{name}/{slot}"] = view.stored.slot.compressor
    compressed = {name for name, one in chosen.items() if one is not None}
    assert compressed == {"w/value", "w/master", "w/exp_avg", "w/exp_avg_sq"}
    weights = (wanted["model"]["w"], *wanted["optim"]["state"]["w"].values())
    logical = sum(one.nbytes for one in weights)
    left = wanted["ids"].nbytes + wanted["scale"].nbytes + wanted["model"]["half"].nbytes
    assert report.stored.data - left < 0.95 * logical
    root = zarr.open_group(ucpformat.zarr_store(path), mode="r")
    for part, name in (("w", "value"), ("w", "master"), ("w", "exp_avg_sq")):
        value = wanted["model"][part] if name == "value" else wanted["optim"]["state"][part][name]
        array = root[f"{part}/{name}"]
        assert isinstance(array, zarr.Array)
        assert np.array_equal(np.asarray(array[...]), value)
        if storage == "plain":
            alone = zarr.open_array(str(path / "atoms" / part / name), mode="r")
            document: Any = alone.metadata.to_dict()
            assert [codec["name"] for codec in document["codecs"]] == ["bytes", "blosc", "crc32c"]
            assert np.array_equal(np.asarray(alone[...]), value)
            spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/atoms/{part}/{name}/"}}
            read = tensorstore.open(spec, read=True).result().read().result()
            assert np.array_equal(read, value)
    assert np.array_equal(found["ids"], wanted["ids"])
    assert np.array_equal(found["optim"]["state"]["w"]["exp_avg"], wanted["optim"]["state"]["w"]["exp_avg"])
