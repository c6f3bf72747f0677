"""The reader of examples/read_packed.py: the tiny checkpoint of the specification, and real ones."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import ucpformat as ucp
from tests.spec import tiny
from tests.spec.document import ROOT
from ucpformat.geometry import Layout, Mesh, MeshAxis, Shard

FILE = ROOT / "examples" / "read_packed.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("read_packed", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_short_and_needs_numpy_alone() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        name
        for node in nodes
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"numpy"}


def test_it_reads_the_checkpoint_of_the_appendix(tmp_path: Path, example: ModuleType) -> None:
    for key, data in tiny.shown().items():
        (tmp_path / "x" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / key).write_bytes(data)
    checkpoint = example.Checkpoint(tmp_path / "x")
    assert checkpoint.names == [("w", "value")]
    assert np.array_equal(checkpoint.read("w"), np.array(tiny.VALUES, np.float32))


def real(path: Path) -> dict[str, NDArray[Any]]:
    """A checkpoint of many chunks, of which some lie in boxes, some share a pack and some are zero."""
    random = np.random.default_rng(0)
    tensors: dict[str, NDArray[Any]] = {
        "scalar": np.array(7, np.int64),
        "empty": np.zeros((3, 0), np.float32),
        "matrix": random.standard_normal((37, 11)).astype(np.float32),
        "rows": random.integers(0, 255, (5, 4, 700), np.uint8),
        "zeros": np.zeros((40, 8), np.float64),
        "flags": random.random(100) < 0.5,
        "brain": random.standard_normal(33).astype(ml_dtypes.bfloat16),
        "complex": random.standard_normal((4, 2)).astype(np.complex64),
        "halves": random.standard_normal((6, 9)).astype(np.float32),
    }
    layout = Layout(Mesh((MeshAxis("tp", 2),)), (Shard("tp", 1, "ceil"),))
    specs = [
        ucp.AtomSpec(
            name, {"value": ucp.SlotSpec(data.dtype.name, data.shape, layout if name == "halves" else None)}
        )
        for name, data in tensors.items()
    ]
    with ucp.CheckpointWriter(path, specs, chunk_bytes=256) as writer:
        for name, data in tensors.items():
            if name != "halves":
                writer.write(name, "value", data)
                continue
            writer.write(name, "value", data[:, :5], (0, 0))
            writer.write(name, "value", data[:, 5:], (0, 5))
    return tensors


def test_it_reads_a_real_checkpoint(tmp_path: Path, example: ModuleType) -> None:
    tensors = real(tmp_path / "x")
    checkpoint = example.Checkpoint(tmp_path / "x")
    assert {name for name, _ in checkpoint.names} == tensors.keys()
    for name, data in tensors.items():
        found = checkpoint.read(name)
        assert found.shape == data.shape
        assert found.tobytes() == data.tobytes(), name


def test_it_finds_a_flipped_bit_of_any_object(tmp_path: Path, example: ModuleType) -> None:
    path = tmp_path / "x"
    ucp.save(path, {"w": np.arange(1, 9, dtype=np.float32)})
    # Values are not read, and so not checked.
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and "state" not in file.name]
    assert len(files) == 5
    for file in files:
        data = bytearray(file.read_bytes())
        data[5] ^= 1
        file.write_bytes(data)
        with pytest.raises((ValueError, KeyError)):
            example.Checkpoint(path).read("w")
        data[5] ^= 1
        file.write_bytes(data)
