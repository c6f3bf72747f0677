"""Reading parts of fragments and whole objects from the files of a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy.typing as npt

from ucpformat.conversion.dcp_files.items import Fragment
from ucpformat.errors import error
from ucpformat.tensor_files.byte_source import (
    ByteSource,
    Location,
    contiguous_strides,
    decompressed,
    read_strided,
)
from ucpformat.tensor_files.object_tree import Limits
from ucpformat.tensor_files.shared_check import Step
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.stand_ins import item_size
from ucpformat.tensor_files.torch_zip import StoredTensor, TorchArchive, swap_bytes
from ucpformat.tensor_files.unpickle import Globals

__all__ = ["FragmentReader"]

_ARCHIVE_OVERHEAD = 1 << 20  # bytes that torch.save may add to a tensor


class FragmentReader:
    """Reads fragments; remembers where each archive keeps its tensor, and the last item it decompressed."""

    def __init__(self, files: SourceFiles) -> None:
        self._files = files
        self._stored: dict[Location, StoredTensor] = {}
        self._last: tuple[Location, ByteSource] | None = None

    def read(self, fragment: Fragment, dtype: str, offset: tuple[int, ...], target: npt.NDArray[Any]) -> None:
        """Fill ``target`` (a view from `element_view`) from ``offset`` of the fragment on.

        Raises ``UCP-E-SOURCE``, ``UCP-E-PICKLE``, ``UCP-E-LIMIT``.
        """
        size = item_size(dtype)
        limit = math.prod(fragment.shape) * size + _ARCHIVE_OVERHEAD
        with self._source(fragment.location, limit) as source:
            if fragment.encoding == "raw":
                start, strides, order = 0, contiguous_strides(fragment.shape), "little"
            else:
                stored = self._locate(source, fragment, dtype)
                start, strides, order = stored.start, stored.strides, stored.byteorder
            start += sum(index * step for index, step in zip(offset, strides, strict=True)) * size
            read_strided(source, start, strides, target)
        if order == "big":
            data = target.copy().reshape(-1).view("u1")
            swap_bytes(data, dtype)
            target[...] = data.view(target.dtype).reshape(target.shape)

    def read_object(self, location: Location, limits: Limits, also_allowed: Globals | None = None) -> object:
        """Return the object as plain data (see `objects`). Raises as `TorchArchive.read_object` does."""
        with self._source(location, limits.nodes * 16) as source:
            return TorchArchive(source).read_object(limits, also_allowed)

    def read_tree(self, location: Location, limits: Limits) -> object:
        """Return the object with its tensors as `StoredTensor`, of whose data nothing is read; never decompressed."""
        with self._files.open(location) as source:
            return TorchArchive(source).read_tree({}, limits)

    def read_elements(
        self, location: Location, stored: StoredTensor, offset: int, target: npt.NDArray[Any]
    ) -> None:
        """Fill 1-D ``target`` (a view from `element_view`) with consecutive elements of what `read_tree` found."""
        with self._files.open(location) as source:
            read_strided(source, stored.start + offset * target.itemsize, (1,), target)

    def read_stored(self, location: Location, limits: Limits) -> bytes:
        """Return the item's bytes, decompressed and otherwise as they are. Raises ``UCP-E-SOURCE``."""
        with self._source(location, limits.nodes * 16) as source:
            return source.read(0, source.size)

    def check(self, location: Location, limit: int) -> Iterable[Step]:
        """Compare the archive at ``location`` with its checksums; what is large, the returned steps do.

        Raises ``UCP-E-SOURCE``.
        """
        with self._source(location, limit + _ARCHIVE_OVERHEAD) as source:
            archive = TorchArchive(source)
            if not location.transforms:
                return archive.check_steps(partial(self._files.open, location))
            archive.check()
            return ()

    def equal(self, first: Location, second: Location) -> bool:
        """Return whether two items consist of the same bytes."""
        if first.length != second.length or first.transforms != second.transforms:
            return False
        block = 4 << 20
        with self._files.open(first) as one, self._files.open(second) as other:
            return all(
                one.read(at, min(block, first.length - at)) == other.read(at, min(block, first.length - at))
                for at in range(0, first.length, block)
            )

    def _locate(self, source: ByteSource, fragment: Fragment, dtype: str) -> StoredTensor:
        stored = self._stored.get(fragment.location)
        if stored is None:
            stored = self._stored[fragment.location] = TorchArchive(source).tensor()
        if stored.dtype != dtype or stored.shape != fragment.shape:
            raise error(
                "UCP-E-SOURCE",
                f"the metadata say {dtype}{list(fragment.shape)},"
                f" the item is {stored.dtype}{list(stored.shape)}",
                at=source.at,
            )
        return stored

    @contextmanager
    def _source(self, location: Location, limit: int) -> Iterator[ByteSource]:
        last = self._last
        if last is not None and last[0] == location:
            yield last[1]
            return
        with self._files.open(location) as source:
            if not location.transforms:
                yield source
                return
            plain = decompressed(source, location.transforms, limit)
        self._last = (location, plain)
        yield plain
