"""Reading what ``torch.save`` wrote before PyTorch 1.6, and writes still on request, without torch: as `torch_zip`.

Five pickles stand one behind the other: a magic number, the version 1001, the sizes of C's types, the object, whose
persistent ids name storages, and the names of the storages in order. Then each storage: its number of elements in 8
bytes, and the elements, little-endian. There are no checksums. Source: ``_legacy_save`` and ``_legacy_load`` in
torch/serialization.py of PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ucpformat.errors import UcpError, error
from ucpformat.tensor_files.allowed_globals import OBJECT_GLOBALS, StorageKind
from ucpformat.tensor_files.byte_source import ByteSource
from ucpformat.tensor_files.object_tree import Limits, refused
from ucpformat.tensor_files.stand_ins import TensorValue, item_size
from ucpformat.tensor_files.torch_zip import Storage, TorchArchive, rebuilders
from ucpformat.tensor_files.unpickle import Globals, unpickle_first
from ucpformat.tensor_files.zip_records import ZipRecord

__all__ = ["LEGACY", "LegacyFile", "open_archive"]

LEGACY: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The pickled magic number that such files start with."""

_VERSION: Final = 1001
_FIRST: Final = 1 << 20
_PLAIN: Final = Limits(pickle_bytes=1 << 31, nodes=1 << 16)


def open_archive(source: ByteSource) -> TorchArchive:
    """Return what ``torch.save`` wrote into ``source``, in either form. Raises ``UCP-E-SOURCE`` where it is none."""
    if source.read(0, min(len(LEGACY), source.size)) == LEGACY:
        return LegacyFile(source)
    return TorchArchive(source)


class LegacyFile(TorchArchive):
    """One file of the old form. Raises ``UCP-E-SOURCE`` and ``UCP-E-PICKLE`` where its head is none."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self.byteorder = "little"  # of all storages, whatever machine wrote them
        self.has_checksums = False
        self.name = ""  # which this form does not keep
        self._storages: dict[str, Storage] = {}
        self._pickle_bytes = 0
        version, position = self._plain(len(LEGACY))
        _, self._start = self._plain(position)
        if version != _VERSION:
            raise error("UCP-E-SOURCE", f"torch.save's old format of version {version!r:.20}", at=source.at)

    def _plain(self, start: int) -> tuple[object, int]:
        """Return a pickle that names nothing, and where it ends."""
        return self._unpickle(start, {}, None, _PLAIN)

    def _unpickle(
        self, start: int, allowed: Globals, persistent: Callable[[object], object] | None, limits: Limits
    ) -> tuple[object, int]:
        """Return a pickle whose length nothing says: of a file with large storages, no more than needed is read."""
        limit = min(self._source.size, start + limits.pickle_bytes)
        length = min(limit, start + _FIRST)
        while True:
            data = self._source.read(start, length - start)
            try:
                found, end = unpickle_first(
                    data, allowed, at=self._source.at, persistent=persistent, limits=limits
                )
            except UcpError as refusal:
                if length == limit or "truncated" not in refusal.message:
                    raise
                length = min(limit, start + 4 * (length - start))
            else:
                return found, start + end

    def _load(
        self, rebuild: Callable[..., object], limits: Limits, also_allowed: Globals | None = None
    ) -> object:
        allowed = {**OBJECT_GLOBALS, **rebuilders(rebuild), **(also_allowed or {})}
        # Twice: where storages lie stands behind the object, and how long each is stands in it.
        named: dict[str, tuple[StorageKind, int]] = {}
        nowhere = {**allowed, **rebuilders(lambda *_: self._nothing())}
        _, end = self._unpickle(self._start, nowhere, lambda item: self._note(item, named), limits)
        self._storages = self._located(end, named)
        self._pickle_bytes = end - self._start
        found, _ = self._unpickle(self._start, allowed, self._storage, limits)
        return found

    @staticmethod
    def _nothing() -> object:
        return _NOTHING

    def _note(self, identifier: object, named: dict[str, tuple[StorageKind, int]]) -> object:
        # ("storage", class, key, location, number of elements, view of another storage)
        if not isinstance(identifier, tuple) or len(identifier) != 6 or identifier[0] != "storage":
            raise refused("the pickle refers to something that is not a storage", self._source.at)
        _, kind, key, _, count, view = identifier
        if not isinstance(kind, StorageKind) or type(key) is not str or type(count) is not int or count < 0:
            raise refused("the pickle refers to a storage that is none of torch's", self._source.at)
        if view is not None:
            raise error(
                "UCP-E-SOURCE", "a storage that is a view: load and save the file again", at=self._source.at
            )
        if named.setdefault(key, (kind, count)) != (kind, count):
            raise error("UCP-E-SOURCE", f"storage {key!r:.50} has two lengths", at=self._source.at)
        return key

    def _located(self, start: int, named: dict[str, tuple[StorageKind, int]]) -> dict[str, Storage]:
        keys, position = self._plain(start)
        if not isinstance(keys, list) or sorted(map(str, keys)) != sorted(named):
            raise error(
                "UCP-E-SOURCE", "the file does not list the storages that it names", at=self._source.at
            )
        found = {}
        for key in keys:
            kind, count = named[key]
            length = count * (item_size(kind) if kind else 1)
            if position + 8 + length > self._source.size:
                raise error(
                    "UCP-E-SOURCE", f"the file is truncated in storage {key!r:.50}", at=self._source.at
                )
            if int.from_bytes(self._source.read(position, 8), "little") != count:
                raise error(
                    "UCP-E-SOURCE",
                    f"storage {key!r:.50} has another length than recorded",
                    at=self._source.at,
                )
            found[key] = Storage(ZipRecord(key, position + 8, length, 0), str(kind))
            position += 8 + length
        if position != self._source.size:
            raise error("UCP-E-SOURCE", "the file goes on behind its last storage", at=self._source.at)
        return found

    def _storage(self, identifier: object) -> object:
        self._note(identifier, {})
        return self._storages[identifier[2]]  # type: ignore[index] # it is a tuple of six

    def _start_of(self, record: ZipRecord) -> int:
        return record.header


_NOTHING: Final = TensorValue("uint8", (0,), b"")
