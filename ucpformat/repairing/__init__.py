"""Repairing a committed checkpoint from others that have the same bytes (SPEC section 8.4, docs/integrity.md).

What is damaged is found as the validator finds it; each lost block, object and document is looked for in the others,
compared with the digest or checksum that this checkpoint records of it, and put in its place. An object appears whole
and at once, or stays what it was.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

from ucpformat.errors import Problem, UcpError, error, naming
from ucpformat.jsonio import loads
from ucpformat.model.envelope import READ_FEATURES
from ucpformat.model.root import MAX_DOCUMENT_BYTES, MAX_TABLE_BYTES, ROOT_KEY, Root, parse_root, root_digest
from ucpformat.model.table import OWN_OBJECT
from ucpformat.model.zarr_document import GROUP_DOCUMENT, slot_document
from ucpformat.repairing.objects import ChunkObject, PackObject
from ucpformat.repairing.overlay import Overlay
from ucpformat.repairing.sources import Source
from ucpformat.storage.reading.documents import read_document, read_root
from ucpformat.storage.stores.restoring import restorer
from ucpformat.storage.stores.urls import open_store
from ucpformat.validation import Examination, Survey, examine_store
from ucpformat.validation.survey import surveyed

if TYPE_CHECKING:
    from ucpformat.model.references import DocumentRef
    from ucpformat.storage.stores.restoring import Pieces, Restorer
    from ucpformat.storage.stores.store import Objects
    from ucpformat.validation.findings import Damage, SegmentDamage
    from ucpformat.validation.semantics import CheckedCheckpoint

__all__ = ["Repair", "Restored", "repair"]

_DIGEST: Final = re.compile(rb'"digest"\s*:\s*"(sha256:[0-9a-f]{64})"')
_EVERYTHING: Final = 1 << 53
"""Bytes that may be checked: a checkpoint to repair is trusted not to expand without end."""
_STILL_MISSING: Final = "what it lacks is in none of the others"


@dataclass(frozen=True, slots=True)
class Restored:
    """An object that was brought back, or would be.

    ``nbytes`` of it came from ``sources``, or from none where what it has to be follows from the other documents.
    ``is_whole`` says whether all of it is as recorded now.

    >>> ucp.Restored("packs/0.pack", 1048576, ("copy.ucp",), is_whole=True).nbytes
    1048576
    """

    key: str
    nbytes: int
    sources: tuple[str, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Repair:
    """What came of a repair: what was ``restored``, and the ``problems`` that stay, which are errors.

    ``survey`` says what is still lost by them, and ``before`` what was when documents were back; None where that is not
    known.

    >>> report = ucp.save("run.ucp", {"w": np.ones(4)})
    >>> ucp.repair("run.ucp", [], dry_run=True).is_whole
    True
    """

    digest: str
    restored: tuple[Restored, ...]
    problems: tuple[Problem, ...]
    before: Survey | None
    survey: Survey | None

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong any more.

        >>> ucp.repair("example.ucp", [], dry_run=True).is_whole
        True
        """
        return not self.problems


def _ignore(_: int) -> None:
    """Ignore progress."""


def repair(
    path: str | os.PathLike[str],
    others: Iterable[str | os.PathLike[str]],
    *,
    dry_run: bool = False,
    digest: str | None = None,
    progress: Callable[[int], None] = _ignore,
) -> Repair:
    """Bring back what is damaged of the checkpoint at ``path`` from ``others``: copies, or other steps of the same run.

    Bytes are found by the digests and checksums that the checkpoint records, first under their own keys, then by the
    names of atoms and slots, whatever the storage, chunks and packs of the other are. What is good stays as it is, byte
    for byte. ``dry_run`` says what would be done. ``digest`` is the root digest that a root document is to have which
    is so damaged that it does not tell.

    Raises:
        UcpError: ``UCP-E-NOT-FOUND`` where there is no root document, so that nothing is committed; ``UCP-E-DIGEST``
            where that is damaged and no other has it; ``UCP-E-STORE`` where the store fails or cannot replace objects.

    >>> report = ucp.save("run.ucp", {"w": np.ones(4)})
    >>> import shutil
    >>> from pathlib import Path
    >>> copied = shutil.copytree("run.ucp", "copy.ucp")
    >>> next(Path("run.ucp/packs").iterdir()).unlink()
    >>> repaired = ucp.repair("run.ucp", ["copy.ucp"])
    >>> repaired.is_whole, [one.nbytes for one in repaired.restored]
    (True, [32])
    """
    with ExitStack() as stack:
        with naming(path):
            store = open_store(path)
            stack.callback(store.close)
        sources = []
        for other in others:
            with naming(other):
                sources.append(Source(os.fspath(other)))
                stack.callback(sources[-1].close)
        with naming(path):
            return _Repairing(os.fspath(path), store, sources, dry_run=dry_run, progress=progress).run(digest)


class _Repairing:
    """One repair under way."""

    def __init__(
        self,
        path: str,
        store: Objects,
        sources: Sequence[Source],
        *,
        dry_run: bool,
        progress: Callable[[int], None],
    ) -> None:
        self._path = path
        self._store = store
        self._sources = sources
        self._dry_run = dry_run
        self._progress = progress
        self._overlay = Overlay(store)
        self._restored: list[Restored] = []

    def run(self, digest: str | None) -> Repair:
        damaged_root = self._find_root(digest)
        root = parse_root(self._overlay.root, features=READ_FEATURES, extensions=frozenset())
        documents = [*self._find_documents(root)]
        examined, checked, damage = examine_store(
            cast("Objects", self._overlay), expand=_EVERYTHING, progress=self._progress
        )
        if self._dry_run or not (damaged_root is not None or documents or damage.is_any):
            return self._finish(root, examined, checked, damage, None, documents)
        present = self._overlay.root if damaged_root is None else damaged_root
        with restorer(self._path, self._store, present) as putting:
            if damaged_root is not None:
                putting.put_root(self._overlay.root)
            return self._finish(root, examined, checked, damage, putting, documents)

    def _find_root(self, digest: str | None) -> bytes | None:
        """Find the root document; return the bytes of one that is damaged and was found elsewhere."""
        try:
            data = read_root(self._store)
        except UcpError as refusal:
            if refusal.code == "UCP-E-NOT-FOUND" and any(source.root is not None for source in self._sources):
                remedy = "a repair does not commit; `ucp cp` copies a good checkpoint to a new path"
                raise error(refusal.code, f"{refusal.message}; {remedy}", at=refusal.at) from None
            raise
        if not _is_sealed(data):
            source = self._copy_of(data, digest)
            assert source.root is not None  # noqa: S101
            self._overlay.add(ROOT_KEY, source.root)
            self._note(ROOT_KEY, len(source.root), [source])
            return data
        found = parse_root(data, features=READ_FEATURES, extensions=frozenset()).digest
        if digest is not None and found != digest:
            message = f"the checkpoint has the root digest {found}, not {digest}; check the path"
            raise error("UCP-E-DIGEST", message, at=ROOT_KEY)
        self._overlay.add(ROOT_KEY, data)
        return None

    def _copy_of(self, damaged: bytes, digest: str | None) -> Source:
        """Return the source that has the root document which ``damaged`` was."""
        for source in self._sources:
            if source.root is None or source.digest is None:
                continue
            if source.digest == digest or (digest is None and _is_like(damaged, source.root, source.digest)):
                return source
        found = ", ".join(f"{source.path} has {source.digest or 'none'}" for source in self._sources)
        raise error(
            "UCP-E-DIGEST",
            f"the root document is damaged, and none of the others is known to have the same one ({found}); where you "
            "know that one is a copy, name its root digest by --digest",
            at=ROOT_KEY,
        )

    def _find_documents(self, root: Root) -> Iterator[str]:
        """Yield the keys of documents and tables that are damaged and found elsewhere."""
        for place, reference in root.references():
            limit = MAX_TABLE_BYTES if place.endswith("/table") else MAX_DOCUMENT_BYTES
            try:
                read_document(self._store, reference, limit=limit)
            except UcpError as refusal:
                if refusal.code == "UCP-E-LIMIT":
                    continue
                for source in self._sources:
                    data = source.document(reference)
                    if data is not None:
                        self._overlay.add(reference.key, data)
                        self._note(reference.key, len(data), [source])
                        yield reference.key
                        break

    def _note(self, key: str, nbytes: int, sources: Iterable[Source], *, is_whole: bool = True) -> None:
        self._restored.append(Restored(key, nbytes, tuple(source.path for source in sources), is_whole))

    def _finish(
        self,
        root: Root,
        examined: Examination,
        checked: CheckedCheckpoint | None,
        damage: Damage,
        putting: Restorer | None,
        documents: Sequence[str],
    ) -> Repair:
        """Put everything in its place, documents first, and say what stays."""
        for key in documents:
            if putting is not None:
                putting.put(key, [memoryview(self._overlay.added(key))])
        left = copy(damage)
        survey = examined.survey
        if checked is not None and survey is not None:
            self._metadata(checked, left, putting)
            self._blobs(checked, left, putting)
            left.segments = [*self._segments(checked, left, putting)]
            survey = surveyed(checked, left)
        return Repair(
            root.digest, tuple(self._restored), self._staying(examined, left), examined.survey, survey
        )

    def _staying(self, examined: Examination, left: Damage) -> tuple[Problem, ...]:
        """Return the errors that stay: of an object that is still damaged, one."""
        lacking = {
            one.stored.object_key(one.chunk, one.stored.segments(one.chunk)[one.number])
            for one in left.segments
        }
        whole = {one.key for one in self._restored if one.is_whole}
        told: set[str] = set()
        found: list[Problem] = []
        for problem in examined.problems:
            if problem.severity != "error" or problem.at in whole or problem.at in told:
                continue
            if problem.at in lacking:
                told.add(problem.at)
                problem = replace(problem, message=_STILL_MISSING)
            found.append(problem)
        return tuple(found)

    def _place(self, putting: Restorer | None, key: str, pieces: Pieces) -> None:
        if putting is not None:
            putting.put(key, pieces)

    def _metadata(self, checked: CheckedCheckpoint, left: Damage, putting: Restorer | None) -> None:
        """Put back Zarr's documents, which follow from the index."""
        if left.metadata:
            derived = {
                f"{stored.prefix}/zarr.json": slot_document(stored.slot, stored.grid.chunk_shape)
                for stored in checked.slots()
            }
            for key in left.metadata:
                data = derived.get(key, GROUP_DOCUMENT)
                self._place(putting, key, [memoryview(data)])
                self._note(key, len(data), ())
            left.metadata = {}

    def _blobs(self, checked: CheckedCheckpoint, left: Damage, putting: Restorer | None) -> None:
        left.blobs = [one for one in left.blobs if not self._has_blob(one[1], putting)]

    def _has_blob(self, reference: DocumentRef, putting: Restorer | None) -> bool:
        for source in self._sources:
            key = source.object_key(reference)
            if key is None:
                continue
            copied = hashlib.sha256()
            if putting is None or putting.put(
                reference.key,
                _hashed(source.store.pieces(key), copied.update),
                lambda copied=copied: f"sha256:{copied.hexdigest()}" == reference.digest,  # type: ignore[misc]
            ):
                self._note(reference.key, reference.length, [source])
                return True
        return False

    def _segments(
        self, checked: CheckedCheckpoint, left: Damage, putting: Restorer | None
    ) -> Iterator[SegmentDamage]:
        """Bring back packs and chunks' own objects; yield what damage stays."""
        packs: dict[int, list[SegmentDamage]] = defaultdict(list)
        packs.update((number, []) for number in left.packs)
        for one in left.segments:
            container = one.stored.segments(one.chunk)[one.number].container
            if container == OWN_OBJECT:
                yield from self._rebuild(ChunkObject(one, self._store, self._sources), putting)
            else:
                packs[container].append(one)
        for number, damage in packs.items():
            pack = PackObject(checked, number, damage, self._store, self._sources)
            yield from self._rebuild(pack, putting)

    def _rebuild(
        self, rebuilt: ChunkObject | PackObject, putting: Restorer | None
    ) -> Iterator[SegmentDamage]:
        if putting is not None:
            putting.put(rebuilt.key, rebuilt.pieces(), lambda: rebuilt.is_wanted)
        else:
            rebuilt.look()
        if rebuilt.is_wanted:
            sources = [self._sources[number] for number in sorted(rebuilt.taken)]
            self._note(rebuilt.key, sum(rebuilt.taken.values()), sources, is_whole=not rebuilt.left)
        yield from rebuilt.left


def _hashed(pieces: Iterable[bytes], update: Callable[[bytes], None]) -> Iterator[memoryview]:
    """Yield pieces as they are hashed: what was right when it was looked for may have changed."""
    for piece in pieces:
        update(piece)
        yield memoryview(piece)


def _is_sealed(data: bytes) -> bool:
    """Return whether a root document has the digest that it says: then it is what was written, whatever else it is."""
    try:
        found = loads(data, at=ROOT_KEY)
    except UcpError:
        return False
    digest = found.get("digest") if isinstance(found, dict) else None
    try:
        return isinstance(digest, str) and root_digest(data, digest) == digest
    except UcpError:
        return False


def _is_like(damaged: bytes, root: bytes, digest: str) -> bool:
    """Return whether a damaged root document names a digest, and has most of its bytes in common with its owner's.

    The digest alone could be that of a checkpoint which an annotation speaks of.
    """
    if digest.encode() not in _DIGEST.findall(damaged):
        return False
    common = sum(map(int.__eq__, damaged, root))
    return 2 * common > max(len(damaged), len(root))
