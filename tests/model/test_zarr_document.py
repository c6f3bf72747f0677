"""The derived Zarr documents (SPEC 16.3): as the text has them, and as Zarr libraries read them."""

from __future__ import annotations

from pathlib import Path

import pytest
import zarr

from ucpformat.model.atom import Slot
from ucpformat.model.compressor import Compressor
from ucpformat.model.dtype import DTYPES
from ucpformat.model.zarr_document import GROUP_DOCUMENT, slot_document
from ucpformat.storage import zarr_dtypes

zarr_dtypes.register()

COMPRESSORS = [
    None,
    Compressor("gzip", {"level": 9}),
    Compressor("zstd", {"level": -131072, "checksum": True}),
    Compressor("zstd", {"level": 22, "checksum": False}),
    *(
        Compressor(
            "blosc", {"cname": cname, "clevel": 9, "shuffle": shuffle, "typesize": 255, "blocksize": 0}
        )
        for cname, shuffle in (
            ("blosclz", "noshuffle"),
            ("lz4", "shuffle"),
            ("lz4hc", "bitshuffle"),
            ("zlib", "shuffle"),
            ("zstd", "bitshuffle"),
        )
    ),
]


def test_a_group_is_written_as_the_specification_says() -> None:
    assert GROUP_DOCUMENT == b'{"zarr_format":3,"node_type":"group","attributes":{}}'


def test_an_array_is_written_as_the_specification_says() -> None:
    """UCP-D-094."""
    slot = Slot(
        "value", "float32", (4097, 512), compressor=Compressor("zstd", {"level": 3, "checksum": False})
    )
    assert slot_document(slot, (2049, 512)) == (
        b'{"zarr_format":3,"node_type":"array","shape":[4097,512],"data_type":"float32",'
        b'"chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2049,512]}},'
        b'"chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},'
        b'"fill_value":0,"codecs":[{"name":"bytes","configuration":{"endian":"little"}},'
        b'{"name":"zstd","configuration":{"checksum":false,"level":3}},{"name":"crc32c"}],"attributes":{}}'
    )


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_zarr_reads_and_writes_an_array_with_every_compressor(
    tmp_path: Path, compressor: Compressor | None
) -> None:
    slot = Slot("value", "int16", (5, 2), compressor=compressor)
    (tmp_path / "zarr.json").write_bytes(slot_document(slot, (3, 2)))
    array = zarr.open_array(tmp_path, mode="r+")
    assert (array.shape, array.chunks, str(array.dtype)) == ((5, 2), (3, 2), "int16")
    array[...] = 7
    assert zarr.open_array(tmp_path, mode="r")[4, 1] == 7


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_zarr_reads_missing_chunks_of_every_data_type_as_zero(tmp_path: Path, dtype: str) -> None:
    """UCP-D-094."""
    (tmp_path / "zarr.json").write_bytes(slot_document(Slot("value", dtype, (3,)), (2,)))
    data = zarr.open_array(tmp_path, mode="r")[...]
    assert data.tobytes() == bytes(3 * DTYPES[dtype].item_bytes)  # type: ignore[union-attr]
