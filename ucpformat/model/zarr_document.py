"""The derived Zarr v3 metadata documents of storage "plain" (SPEC 16.3): their bytes follow from the atom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ucpformat.jsonio import dumps_canonical
from ucpformat.model.dtype import bytes_codec, dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucpformat.jsonio import JsonValue
    from ucpformat.model.atom import Slot
    from ucpformat.model.compressor import Compressor
    from ucpformat.model.dtype import DType

__all__ = ["GROUP_DOCUMENT", "array_document", "raw_array_document", "slot_document"]

GROUP_DOCUMENT: Final = dumps_canonical({"zarr_format": 3, "node_type": "group", "attributes": {}})


def array_document(
    entry: DType, shape: Sequence[int], chunk_shape: Sequence[int], compressor: Compressor | None
) -> bytes:
    """Return the ``zarr.json`` of an array in storage plain; both shapes in elements."""
    codecs: list[JsonValue] = [bytes_codec(entry)]
    if compressor is not None:
        codecs.append(compressor.to_json())
    codecs.append({"name": "crc32c"})
    return _document(entry, shape, chunk_shape, codecs)


def raw_array_document(entry: DType, shape: Sequence[int], chunk_shape: Sequence[int]) -> bytes:
    """Return the ``zarr.json`` of an array whose chunks are raw bytes: what a view of a checkpoint serves."""
    return _document(entry, shape, chunk_shape, [bytes_codec(entry)])


def _document(
    entry: DType, shape: Sequence[int], chunk_shape: Sequence[int], codecs: list[JsonValue]
) -> bytes:
    return dumps_canonical(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(shape),
            "data_type": entry.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": entry.zarr_fill,
            "codecs": codecs,
            "attributes": {},
        }
    )


def slot_document(slot: Slot, chunk_shape: Sequence[int]) -> bytes:
    """Return the ``zarr.json`` of ``slot``; raises ``UCP-E-DTYPE``."""
    return array_document(dtype(slot.dtype), slot.shape, chunk_shape, slot.compressor)
