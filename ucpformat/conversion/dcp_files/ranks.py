"""Directories saved with ``use_collectives=False``: one ``__<rank>.metadata`` for each rank.

No rank knew of the others, nothing says how many there were, and loading one rank's file alone gives wrong
tensors without an error. They are merged only where the whole can be shown to be there: ranks without a gap,
the same keys on every rank, every tensor covered exactly, copies equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from ucpformat.conversion.dcp_files.fragment_reader import FragmentReader
from ucpformat.conversion.dcp_files.items import Catalogue, DcpObject, DcpTensor, Fragment, check_covers
from ucpformat.conversion.dcp_files.metadata import METADATA_LIMITS, read_metadata
from ucpformat.errors import UcpError, error
from ucpformat.tensor_files.byte_source import element_view, slabs
from ucpformat.tensor_files.object_tree import Limits, spelled
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.stand_ins import item_size

__all__ = ["is_data", "rank_files", "read_ranks"]

_METADATA: Final = re.compile(r"__(\d+)\.metadata")
_DATA: Final = re.compile(r"__(\d+)_\d+\.distcp")
_BLOCK: Final = 4 << 20


def rank_files(names: Sequence[str]) -> dict[int, str]:
    """Return the metadata files of single ranks among ``names``."""
    return {int(match[1]): name for name in names if (match := _METADATA.fullmatch(name))}


def is_data(name: str) -> bool:
    """Return whether ``name`` is that of a file in which a rank wrote its items."""
    return _DATA.fullmatch(name) is not None


def read_ranks(files: SourceFiles, names: Sequence[str], reader: FragmentReader) -> Catalogue:
    """Return all ranks' items as one checked catalogue. Raises ``UCP-E-SOURCE`` and as `read_metadata`."""
    metadata = rank_files(names)
    data = {int(match[1]) for name in names if (match := _DATA.fullmatch(name))}
    missing = set(range(max(data | metadata.keys()) + 1)) - metadata.keys()
    if missing:
        raise _refused(f"the metadata of rank {min(missing)} are missing", f"__{min(missing)}.metadata")
    ranks = [
        read_metadata(files.read(metadata[rank], METADATA_LIMITS.pickle_bytes), metadata[rank])
        for rank in range(len(metadata))
    ]
    for rank, catalogue in enumerate(ranks):
        for key, _ in sorted(_keys(catalogue) ^ _keys(ranks[0])):
            raise _refused(
                f"{key!r} is not listed by both {metadata[0]} and {metadata[rank]}, so ranks may be missing",
                metadata[rank],
            )
    tensors = {key: _merged_tensor(key, [rank.tensors[key] for rank in ranks]) for key in ranks[0].tensors}
    at = metadata[0]
    single = {key: tensor for key, (tensor, _) in tensors.items()}
    check_covers(single, at)
    for _, copies in tensors.values():
        for kept, other, dtype in copies:
            if not _same_tensor(reader, kept, other, dtype):
                raise _refused(
                    f"copies in {kept.location.file} and {other.location.file} differ", other.location.file
                )
    objects = {key: _merged_object([rank.objects[key] for rank in ranks], reader) for key in ranks[0].objects}
    locations = tuple(location for rank in ranks for location in rank.locations)
    return Catalogue("dcp-per-rank", single, objects, locations)


def _refused(message: str, at: str = "") -> UcpError:
    return error("UCP-E-SOURCE", f"saved with use_collectives=False, not provably complete: {message}", at=at)


def _keys(catalogue: Catalogue) -> set[tuple[str, bool]]:
    return {(key, True) for key in catalogue.tensors} | {(key, False) for key in catalogue.objects}


def _merged_tensor(
    key: str, parts: Sequence[DcpTensor]
) -> tuple[DcpTensor, list[tuple[Fragment, Fragment, str]]]:
    first = parts[0]
    fragments: dict[tuple[tuple[int, ...], tuple[int, ...]], Fragment] = {}
    copies: list[tuple[Fragment, Fragment, str]] = []
    for part in parts:
        if (part.dtype, part.shape, part.path) != (first.dtype, first.shape, first.path):
            raise _refused(f"the ranks disagree about the shape or data type of {key!r}")
        for fragment in part.fragments:
            kept = fragments.setdefault((fragment.offset, fragment.shape), fragment)
            if kept is not fragment:
                copies.append((kept, fragment, first.dtype))
    return DcpTensor(key, first.path, first.dtype, first.shape, tuple(fragments.values())), copies


def _same_tensor(reader: FragmentReader, first: Fragment, second: Fragment, dtype: str) -> bool:
    if reader.equal(first.location, second.location):
        return True
    size = item_size(dtype)
    for offset, shape in slabs(first.shape, size, _BLOCK):
        one, other = (np.zeros(math.prod(shape) * size, dtype=np.uint8) for _ in range(2))
        reader.read(first, dtype, offset, element_view(one, size, shape))
        reader.read(second, dtype, offset, element_view(other, size, shape))
        if not np.array_equal(one, other):
            return False
    return True


def _merged_object(parts: Sequence[DcpObject], reader: FragmentReader) -> DcpObject:
    locations = [part.locations[0] for part in parts]
    first = locations[0]

    def same(index: int) -> bool:
        if reader.equal(first, locations[index]):
            return True
        # Equal objects may be pickled differently: shared strings, and sets in the order of each rank's hashes.
        limits = Limits()
        one, other = (reader.read_object(location, limits) for location in (first, locations[index]))
        return spelled(one) == spelled(other)

    shared = all(same(index) for index in range(1, len(locations)))
    return DcpObject(parts[0].key, parts[0].path, (first,) if shared else tuple(locations))
