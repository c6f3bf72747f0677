"""Other libraries' memory as destinations of a read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.builders import (
    Array,
    Tensor,
    bits,
    save,
)
from ucpformat.errors import UcpError
from ucpformat.model.dtype import DTYPES
from ucpformat.reader import open_checkpoint


@pytest.mark.parametrize("name", [name for name in DTYPES if hasattr(torch, name)])
def test_torch_tensors_are_filled_in_place(tmp_path: Path, name: str) -> None:
    entry = DTYPES[name]
    data = bits(1, (5, 7), entry)
    save(tmp_path / "c", {("a", "value"): Tensor(data, name)}, chunk_bytes=64)
    out = torch.empty_strided((5, 7), (9, 1), dtype=getattr(torch, name))
    with open_checkpoint(tmp_path / "c") as checkpoint:
        checkpoint.read("a", out=out)
    # Torch has no kernels for its narrowest types.
    raw = out.view(torch.uint8) if entry.item_bytes == 1 else out.contiguous().view(torch.uint8)
    assert raw.contiguous().numpy().tobytes() == data.tobytes()


class _Wrapper:
    """Somebody else's array: shares memory, as jax or cupy on the CPU would."""

    def __init__(self, array: Array, copies: bool) -> None:
        self.array = array
        self.copies = copies

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Array:
        return self.array.copy() if self.copies else self.array


def read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


def test_foreign_arrays_are_filled_if_they_share_memory(tmp_path: Path) -> None:
    data = np.arange(6, dtype=np.float32)
    save(tmp_path / "c", {("a", "value"): Tensor(data, "float32")})
    target = np.zeros(6, np.float32)
    buffer = bytearray(24)
    with open_checkpoint(tmp_path / "c") as checkpoint:
        view = checkpoint["a"]["value"]
        view.read(_Wrapper(target, copies=False))
        view.read(memoryview(buffer).cast("f"))
        assert target.tolist() == data.tolist()
        assert bytes(buffer) == data.tobytes()


@pytest.mark.parametrize(
    "out",
    [
        pytest.param(np.zeros(5, np.float32), id="another shape"),
        pytest.param(np.zeros(6, np.int32), id="another type"),
        pytest.param(np.zeros(6, ">f4"), id="another byte order"),
        pytest.param([0.0] * 6, id="a list"),
        pytest.param(read_only(np.zeros(6, np.float32)), id="read-only"),
        pytest.param(_Wrapper(np.zeros(6, np.float32), copies=True), id="a copy"),
        pytest.param(torch.zeros(6, dtype=torch.float64), id="torch, another type"),
        pytest.param(torch.zeros(6, device="meta"), id="torch, elsewhere"),
    ],
)
def test_destinations_that_cannot_be_filled_are_refused(tmp_path: Path, out: object) -> None:
    """UCP-E-MISMATCH, before a byte is read."""
    save(tmp_path / "c", {("a", "value"): Tensor(np.arange(6, dtype=np.float32), "float32")})
    with open_checkpoint(tmp_path / "c") as checkpoint, pytest.raises(UcpError) as refusal:
        checkpoint.read("a", out=out)
    assert (refusal.value.code, refusal.value.at) == ("UCP-E-MISMATCH", "a/value")
