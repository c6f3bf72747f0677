"""Checkpoints of either storage in xarray and dask, through the view of `zarr_store`, without a warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import STORAGES, Tensor, bits, save
from ucpformat.model.dtype import DTYPES
from ucpformat.model.root import Storage
from ucpformat.reader import open_checkpoint
from ucpformat.zarr_view import zarr_store

STATE = {
    ("fc.weight", "value"): Tensor(bits(1, (70, 50), DTYPES["float32"]), "float32"),
    ("fc.weight", "exp_avg"): Tensor(bits(2, (70, 50), DTYPES["float32"]), "float32"),
    ("fc.weight", "factor"): Tensor(bits(3, (7,), DTYPES["float64"]), "float64"),
    ("fc.weight", "step"): Tensor(np.array(7, np.int64), "int64"),
    ("norm", "value"): Tensor(bits(4, (50,), DTYPES["bfloat16"]), "bfloat16"),
    ("zeros", "value"): Tensor(np.zeros((30, 40), np.float32), "float32"),
}


@pytest.fixture(params=STORAGES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    storage: Storage = request.param
    save(tmp_path / "c", STATE, storage=storage, chunk_bytes=2048)
    return tmp_path / "c"


def same(found: Any, tensor: Tensor) -> bool:
    """Whether the bits are those of the tensor: random ones are NaN now and then."""
    return bool(np.asarray(found).tobytes() == tensor.data.tobytes())


def test_an_atom_is_a_dataset(path: Path) -> None:
    import xarray

    with zarr_store(path) as store:
        found = [
            xarray.open_zarr(store, group="fc.weight"),
            xarray.open_zarr(store, group="fc.weight", consolidated=False),
            xarray.open_dataset(store, engine="zarr", group="fc.weight"),
        ]
        for dataset in found:
            assert set(dataset.variables) == {"value", "exp_avg", "factor", "step"}
            assert dict(dataset.sizes) == {
                "exp_avg_dim_0": 70, "factor_dim_0": 7, "value_dim_0": 70, "dim_1": 50
            }  # fmt: skip
            for name in dataset.variables:
                assert same(dataset[name].values, STATE["fc.weight", str(name)])
        assert same(
            found[0]["value"][3:9, ::2].values, Tensor(STATE["fc.weight", "value"].data[3:9, ::2], "")
        )
        zeros = xarray.open_zarr(store, group="zeros")["value"]
        assert same(zeros.values, STATE["zeros", "value"])
        assert float(zeros.sum()) == 0


def test_a_checkpoint_is_a_tree(path: Path) -> None:
    import xarray

    with zarr_store(path) as store:
        tree = xarray.open_datatree(store, engine="zarr")
        assert set(tree.children) == {"fc.weight", "norm", "zeros"}
        for (atom, slot), tensor in STATE.items():
            assert same(tree[atom][slot].values, tensor)


def test_a_slot_is_an_array_of_dask(path: Path) -> None:
    import dask.array

    with zarr_store(path) as store, open_checkpoint(path) as checkpoint:
        for atom, slot in STATE:
            array = dask.array.from_zarr(store, component=f"{atom}/{slot}")
            assert same(array.compute(scheduler="threads"), STATE[atom, slot])
            view = checkpoint[atom][slot]
            assert same(dask.array.from_array(view).compute(scheduler="threads"), STATE[atom, slot])
