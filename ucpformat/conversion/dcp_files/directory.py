"""A torch Distributed Checkpoint directory, opened without torch."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ucpformat.conversion.dcp_files.fragment_reader import FragmentReader
from ucpformat.conversion.dcp_files.hugging_face import SHARDING_INFO, is_shard, is_whole, read_hugging_face
from ucpformat.conversion.dcp_files.items import Catalogue, DcpObject, DcpTensor, check_covers
from ucpformat.conversion.dcp_files.metadata import METADATA_LIMITS, read_metadata
from ucpformat.conversion.dcp_files.ranks import is_data, rank_files, read_ranks
from ucpformat.errors import UcpError, error
from ucpformat.geometry import Box
from ucpformat.storage.host_memory import selection
from ucpformat.tensor_files.byte_source import Location, element_view
from ucpformat.tensor_files.object_tree import Limits
from ucpformat.tensor_files.safetensors_file import read_header
from ucpformat.tensor_files.shared_check import SharedChecks, Step
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.stand_ins import item_size
from ucpformat.tensor_files.torch_zip import StoredTensor
from ucpformat.tensor_files.unpickle import Globals

__all__ = ["DcpDirectory", "detect"]

_METADATA = ".metadata"


def detect(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` looks like a directory that torch DCP wrote; runs nothing and never raises."""
    files = SourceFiles(Path(path))
    names = files.names()
    if _METADATA in names or rank_files(names) or any(map(is_shard, [*names, *files.names("sharded")])):
        return True
    if any(map(is_data, names)):
        return True  # what is left of one: it is refused by the name of what is missing
    try:
        whole = next((name for name in names if is_whole(name)), None)
        return whole is not None and SHARDING_INFO in read_header(files, whole).metadata
    except UcpError:
        return False


class DcpDirectory:
    """The items of a DCP directory, read in part and in bounded memory. Made by `open`; threads may share it.

    ``tensors`` and ``objects`` map DCP's keys to `DcpTensor` and `DcpObject`; ``kind`` is ``dcp``,
    ``dcp-per-rank`` (``use_collectives=False``) or ``hugging-face``.
    """

    def __init__(self, path: Path, catalogue: Catalogue, reader: FragmentReader) -> None:
        self.path = path
        self.kind: Literal["dcp", "dcp-per-rank", "hugging-face"] = catalogue.kind
        self.tensors: dict[str, DcpTensor] = dict(catalogue.tensors)
        self.objects: dict[str, DcpObject] = dict(catalogue.objects)
        self.flattened: dict[str, tuple[int, ...]] = dict(catalogue.flattened)
        self._reader = reader
        self._checks = SharedChecks(self._check_steps)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        shard_count: int | None = None,
        flattened: Literal["refuse", "list"] = "refuse",
    ) -> DcpDirectory:
        """Open the directory ``path``: metadata are read and checked, tensors are not read.

        Every tensor is covered exactly by its fragments, every file is there and long enough. ``shard_count``
        is the number of ranks that saved a Hugging Face directory of shards, which does not record it.
        ``flattened`` lists tensors that Megatron-core stored in flattened pieces with their own shapes, in the member
        of that name; as tensors they have the shapes under which they are stored.
        Raises ``UCP-E-SOURCE``, ``UCP-E-PICKLE``, ``UCP-E-LIMIT``, ``UCP-E-DTYPE``, ``UCP-E-KEY``,
        ``UCP-E-LINK``; nothing foreign is run.
        """
        root = Path(path)
        if not root.is_dir():
            raise error("UCP-E-SOURCE", "not a directory", at=str(root))
        files = SourceFiles(root)
        reader = FragmentReader(files)
        catalogue = _catalogue(files, reader, shard_count)
        if catalogue.flattened and flattened == "refuse":
            raise error(
                "UCP-E-SOURCE",
                f"{min(catalogue.flattened)!r:.200} is stored in flattened pieces (fully_sharded_model_space), which "
                "is Megatron-core's: read the directory as format megatron",
                at=_METADATA,
            )
        for location in catalogue.locations:
            files.check(location)
        return cls(root, catalogue, reader)

    def read_box(
        self, key: str, offset: Sequence[int], shape: Sequence[int], out: npt.NDArray[np.uint8]
    ) -> None:
        """Fill ``out`` with the little-endian elements of a box of tensor ``key`` in C order.

        ``out`` is a contiguous array of bytes, as many as the box has. Only the parts of the fragments that
        the box meets are read, 32 MiB at a time at most beside ``out``; a compressed item is decompressed in
        full. Raises ``UCP-E-MISMATCH`` for an unknown key or a box that does not fit, ``UCP-E-SOURCE``.
        """
        tensor = self.tensors.get(key)
        if tensor is None:
            raise error("UCP-E-MISMATCH", f"there is no tensor {key!r}", at=str(self.path))
        size = item_size(tensor.dtype)
        try:
            box = Box(tuple(offset), tuple(shape))
            fits = Box.whole(tensor.shape).contains(box)
        except UcpError:
            fits = False
        if not fits:
            message = (
                f"the box at {list(offset)} of {list(shape)} does not fit {key!r} of shape {tensor.shape}"
            )
            raise error("UCP-E-MISMATCH", message)
        if out.dtype != np.uint8 or out.size != math.prod(shape) * size or not out.flags.c_contiguous:
            raise error(
                "UCP-E-MISMATCH", f"the box of {key!r} needs {math.prod(shape) * size} contiguous bytes"
            )
        target = element_view(out, size, box.shape)
        for fragment in tensor.fragments:
            part = box.intersect(Box(fragment.offset, fragment.shape))
            if part is None:
                continue
            within = tuple(a - b for a, b in zip(part.offset, fragment.offset, strict=True))
            self._reader.read(fragment, tensor.dtype, within, target[selection(part, box)])

    def read_object(
        self,
        key: str,
        *,
        rank: int = 0,
        limits: Limits | None = None,
        also_allowed: Globals | None = None,
    ) -> object:
        """Return object ``key`` as plain data (see `objects`); ``rank`` matters where the ranks' differ.

        ``also_allowed`` is what its pickle may name beyond plain data and tensors.
        Raises ``UCP-E-PICKLE`` where it asks for code, ``UCP-E-LIMIT``, ``UCP-E-SOURCE``, ``UCP-E-MISMATCH``.
        """
        item = self.objects.get(key)
        if item is None:
            raise error("UCP-E-MISMATCH", f"there is no object {key!r}", at=str(self.path))
        locations = item.locations
        location = locations[rank if len(locations) > 1 else 0]
        return self._reader.read_object(location, limits or Limits(), also_allowed)

    def read_tree(self, key: str, *, limits: Limits | None = None) -> object:
        """Return object ``key`` as `read_object` does, its tensors as `StoredTensor`, for `read_elements`."""
        return self._reader.read_tree(self._plain_location(key), limits or Limits())

    def read_elements(self, key: str, stored: StoredTensor, offset: int, target: npt.NDArray[Any]) -> None:
        """Fill ``target`` (1-D, of `element_view`) with consecutive elements of a contiguous tensor in object ``key``.

        ``stored`` is what `read_tree` found. Raises ``UCP-E-SOURCE``.
        """
        self._reader.read_elements(self._plain_location(key), stored, offset, target)

    def _plain_location(self, key: str) -> Location:
        item = self.objects.get(key)
        if item is None or len(item.locations) != 1 or item.locations[0].transforms:
            raise error("UCP-E-SOURCE", f"{key!r} is compressed, or not one object", at=str(self.path))
        return item.locations[0]

    def read_object_bytes(self, key: str, *, limits: Limits | None = None) -> bytes:
        """Return object ``key`` as the bytes that were stored, without a look at them.

        Raises ``UCP-E-SOURCE``, ``UCP-E-MISMATCH``.
        """
        item = self.objects.get(key)
        if item is None:
            raise error("UCP-E-MISMATCH", f"there is no object {key!r}", at=str(self.path))
        return self._reader.read_stored(item.locations[0], limits or Limits())

    def verify(self, key: str) -> None:
        """Compare the stored bytes of ``key`` with their CRC-32, which torch writes and never checks.

        Once: threads that come meanwhile help, and later ones return. Does nothing where there are none
        (Hugging Face files). Raises ``UCP-E-SOURCE`` in all threads.
        """
        self._checks.run(key)

    def _check_steps(self, key: str) -> list[Step]:
        if key in self.objects:
            limit = Limits().nodes * 16
            return [partial(self._reader.check, location, limit) for location in self.objects[key].locations]
        tensor = self.tensors[key]
        return [
            partial(self._reader.check, part.location, math.prod(part.shape) * item_size(tensor.dtype))
            for part in tensor.fragments
            if part.encoding == "torch"
        ]


def _catalogue(files: SourceFiles, reader: FragmentReader, shard_count: int | None) -> Catalogue:
    names = files.names()
    ranks = rank_files(names)
    has_shards = any(map(is_shard, [*names, *files.names("sharded")]))
    if shard_count is not None and (_METADATA in names or ranks or not has_shards):
        raise error(
            "UCP-E-MISMATCH",
            "--shards (shard_count=) would be without effect: this is no Hugging Face directory of shards",
            at=str(files.root),
        )
    if _METADATA in names:
        if ranks:
            raise error(
                "UCP-E-SOURCE",
                "metadata of all ranks and of single ranks lie side by side, from two saves: keep one",
                at=_METADATA,
            )
        catalogue = read_metadata(files.read(_METADATA, METADATA_LIMITS.pickle_bytes), _METADATA)
        check_covers(catalogue.tensors, _METADATA)
        return catalogue
    if ranks:
        return read_ranks(files, names, reader)
    if has_shards or any(map(is_whole, names)):
        return read_hugging_face(files, shard_count)
    raise error(
        "UCP-E-SOURCE",
        f"there is no {_METADATA} in {files.root}: not a DCP directory, its save never finished, or the file is lost",
        at=_METADATA,
    )
