"""Every data type, as zarr-python and as TensorStore see it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import crc32c
import ml_dtypes
import numpy as np
import pytest
import tensorstore
import zarr
from zarr.core.dtype import data_type_registry

from ucpformat.model.dtype import DTYPES, EXTENSION_DTYPES, DType, bytes_codec
from ucpformat.storage import zarr_dtypes

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ALL = pytest.mark.parametrize("entry", DTYPES.values(), ids=list(DTYPES))
EXTENSIONS = pytest.mark.parametrize(
    "entry", EXTENSION_DTYPES, ids=[entry.name for entry in EXTENSION_DTYPES]
)

ELEMENTS = 512


def _elements(entry: DType) -> bytes:
    """Every bit pattern of the small types, a selection of the large ones."""
    if entry.bits < 8:
        return bytes(index % (1 << entry.bits) for index in range(ELEMENTS))
    if entry.item_bytes == 1:
        return bytes(index % 256 for index in range(ELEMENTS))
    return np.random.default_rng(7).bytes(ELEMENTS * entry.item_bytes)


def _write_by_hand(path: Path, entry: DType, raw: bytes) -> None:
    """Two chunks, the second missing."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [2 * ELEMENTS],
        "data_type": entry.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [ELEMENTS]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": entry.zarr_fill,
        "codecs": [bytes_codec(entry), {"name": "crc32c"}],
    }
    (path / "c").mkdir(parents=True)
    (path / "zarr.json").write_text(json.dumps(document))
    (path / "c" / "0").write_bytes(raw + crc32c.crc32c(raw).to_bytes(4, "little"))


def _tensorstore(path: Path) -> NDArray[Any]:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
    array: NDArray[Any] = tensorstore.open(spec, open=True).result().read().result()
    return array


@ALL
def test_hand_written_arrays_open_in_both_libraries(entry: DType, tmp_path: Path) -> None:
    raw = _elements(entry)
    _write_by_hand(tmp_path / "a", entry, raw)
    expected = raw + bytes(len(raw))
    by_tensorstore = _tensorstore(tmp_path / "a")
    by_zarr = np.asarray(zarr.open_array(str(tmp_path / "a"), mode="r")[:])
    assert by_tensorstore.tobytes() == expected
    assert by_zarr.tobytes() == expected
    assert by_zarr.dtype == by_tensorstore.dtype == entry.numpy


# zarr compares what it writes with the fill value, and numpy 2.5 warns of signalling NaNs in complex numbers.
@pytest.mark.filterwarnings("ignore:invalid value encountered in equal:RuntimeWarning")
@ALL
def test_what_zarr_writes_opens_in_tensorstore(entry: DType, tmp_path: Path) -> None:
    raw = _elements(entry)
    values = np.frombuffer(raw, entry.numpy)
    array = zarr.create_array(
        str(tmp_path / "a"), shape=(2 * ELEMENTS,), chunks=(ELEMENTS,), dtype=entry.numpy, compressors=None
    )
    array[:ELEMENTS] = values
    document = json.loads((tmp_path / "a" / "zarr.json").read_text())
    assert document["data_type"] == entry.name
    assert document["codecs"] == [bytes_codec(entry)]
    assert _tensorstore(tmp_path / "a").tobytes() == raw + bytes(len(raw))
    assert np.asarray(zarr.open_array(str(tmp_path / "a"), mode="r")[:]).tobytes() == raw + bytes(len(raw))


@EXTENSIONS
def test_what_tensorstore_writes_opens_in_zarr(entry: DType, tmp_path: Path) -> None:
    raw = _elements(entry)
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{tmp_path}/a/"},
        "metadata": {"data_type": entry.name, "shape": [2 * ELEMENTS]},
    }
    store = tensorstore.open(spec, create=True).result()
    store[:ELEMENTS].write(np.frombuffer(raw, entry.numpy)).result()
    array = zarr.open_array(str(tmp_path / "a"), mode="r")
    assert np.asarray(array[:]).tobytes() == raw + bytes(len(raw))


@EXTENSIONS
def test_fill_values_keep_their_bits(entry: DType) -> None:
    wrapped = data_type_registry.get(entry.name)()
    for bits in range(1 << min(entry.bits, 8)):
        raw = bytes([0] * (entry.item_bytes - 1) + [bits])
        scalar = np.frombuffer(raw, entry.numpy)[0]
        written = wrapped.to_json_scalar(scalar, zarr_format=3)
        assert json.loads(json.dumps(written, allow_nan=False)) == written
        again = wrapped.from_json_scalar(written, zarr_format=3)
        assert np.asarray(again).tobytes() == np.asarray(scalar).tobytes()


@EXTENSIONS
def test_bad_fill_values_and_foreign_types_are_refused(entry: DType) -> None:
    cls = data_type_registry.get(entry.name)
    for bad in (True, None, "0x", "zero", [0], "0x" + "0" * 10):
        with pytest.raises(TypeError):
            cls().from_json_scalar(bad, zarr_format=3)
    with pytest.raises(TypeError):
        cls().cast_scalar("1")
    for foreign in (np.dtype("uint8"), np.dtype("uint16"), np.dtype("V1")):
        with pytest.raises(ValueError):
            cls.from_native_dtype(foreign)
    for data, version in (("uint8", 3), (entry.name, 2)):
        with pytest.raises(ValueError):
            cls.from_json(data, zarr_format=version)  # type: ignore[arg-type]


def test_special_fill_values_by_name() -> None:
    wrapped = zarr_dtypes.Float8E5M2()
    assert np.isposinf(np.float32(wrapped.from_json_scalar("Infinity", zarr_format=3)))
    assert np.isnan(np.float32(wrapped.from_json_scalar("NaN", zarr_format=3)))
    assert wrapped.from_json_scalar(1.5, zarr_format=3) == ml_dtypes.float8_e5m2(1.5)


def test_big_endian_bfloat16_reads_alike(tmp_path: Path) -> None:
    array = zarr.create_array(
        str(tmp_path / "a"), shape=(2,), dtype=np.dtype(ml_dtypes.bfloat16), compressors=None
    )
    array[:] = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    path = tmp_path / "a" / "zarr.json"
    path.write_text(path.read_text().replace('"little"', '"big"'))
    chunk = tmp_path / "a" / "c" / "0"
    chunk.write_bytes(np.frombuffer(chunk.read_bytes(), "<u2").byteswap().tobytes())
    assert np.asarray(zarr.open_array(str(tmp_path / "a"))[:]).astype(np.float32).tolist() == [1.5, -2.0]


def test_a_fresh_process_needs_one_import(tmp_path: Path) -> None:
    for entry in EXTENSION_DTYPES:
        _write_by_hand(tmp_path / entry.name, entry, _elements(entry))
    program = """
import sys, zarr
import ucpformat.storage.zarr_dtypes
for name in sys.argv[2:]:
    print(name, zarr.open_array(sys.argv[1] + "/" + name, mode="r")[:].tobytes().hex())
assert "torch" not in sys.modules and "tensorstore" not in sys.modules
"""
    names = [entry.name for entry in EXTENSION_DTYPES]
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(tmp_path), *names],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.splitlines() == [
        f"{entry.name} {_elements(entry).hex()}{'00' * ELEMENTS * entry.item_bytes}"
        for entry in EXTENSION_DTYPES
    ]


def test_entry_points_name_the_registered_classes() -> None:
    ours = [point for point in entry_points(group="zarr.data_type") if point.value.startswith("ucpformat.")]
    assert {point.name: point.load() for point in ours} == {
        entry.name: data_type_registry.get(entry.name) for entry in EXTENSION_DTYPES
    }
