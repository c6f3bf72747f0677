"""Attaching process images to a checkpoint, and extracting them: streamed, verified, never executed (SPEC 15.4)."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ucpformat.copying import Copied, copy_with
from ucpformat.errors import error, naming
from ucpformat.jsonio import dumps_canonical, loads
from ucpformat.model.envelope import STATE_FEATURES
from ucpformat.model.references import DocumentRef, PackList
from ucpformat.model.root import MAX_DOCUMENT_BYTES, ROOT_KEY
from ucpformat.model.state import StateDocument
from ucpformat.reader import open_checkpoint
from ucpformat.storage.reading.documents import verified_pieces
from ucpformat.storage.stores.local_io import DIRECTORY_FLAGS, opened, rename_exclusively, translated
from ucpformat.storage.writing.streamed_object import write_object

if TYPE_CHECKING:
    from ucpformat.image_files import ImageSource
    from ucpformat.model.process_image import ImageFile, ProcessImage
    from ucpformat.reader import Checkpoint
    from ucpformat.storage.stores.store import Durability, Store

__all__ = ["attach", "extract"]

_FOR_OWNER: Final = 0o600
_FOR_OWNER_TO_EXECUTE: Final = 0o700


def attach(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    images: Mapping[str, ImageSource],
    *,
    durability: Durability = "fsync",
    progress: Callable[[int], None] = lambda _: None,
    expect: Callable[[int], None] = lambda _: None,
) -> Copied:
    """Write a checkpoint at ``target`` that has what the one at ``source`` has, and process images by name.

    On one file system the packs, or objects of chunks, are hard links, as in an increment (SPEC 8.5); else they are
    copied. Everything is read back before the commit. ``source`` stays as it is.

    Raises:
        UcpError: as `ucpformat.copying.copy_checkpoint`; ``UCP-E-NAME`` where an image has that name already;
            ``UCP-E-FEATURE`` for a write feature that this software does not know; ``UCP-E-KEY`` for paths that no
            image can have. Nothing is visible at ``target`` then.

    >>> from pathlib import Path
    >>> Path("trainer.dmtcp").write_bytes(b"memory of a process")
    19
    >>> image = ucp.image_source("trainer.dmtcp", producer=("dmtcp", "3.0.0"))
    >>> report = ucp.save("run.ucp", {"w": np.ones(4, np.float32)})
    >>> copied = ucp.attach("run.ucp", "resumable.ucp", {"trainer": image})
    >>> ucp.open("resumable.ucp").images["trainer"].nbytes
    19
    """

    def finish(store: Store, linked: frozenset[str]) -> bytes:
        root = checkpoint.root
        if root.envelope.write_features:
            names = ", ".join(root.envelope.write_features)
            message = f"attaching takes features that this software lacks: {names}"
            raise error("UCP-E-FEATURE", message, at=ROOT_KEY)
        state = StateDocument() if root.state is None else checkpoint.state
        attempt, numbers = secrets.token_hex(4), count()

        def written(pieces: Iterator[bytes]) -> DocumentRef:
            return write_object(store, f"blobs/{attempt}-{next(numbers)}", pieces)

        def document(name: str, data: bytes) -> DocumentRef:
            key = f"index/{attempt}-{name}.json"
            loads(data, at=key, limit=MAX_DOCUMENT_BYTES)
            store.create(key, [memoryview(data)])
            return DocumentRef.to(key, data)

        added = {name: image.written(name, written) for name, image in images.items()}
        state = replace(state, images={**state.images, **added})
        features = {*root.envelope.read_features} - STATE_FEATURES | state.features()
        packs = None
        if checkpoint.packs is not None:
            found = tuple(replace(one, shared=one.shared or one.key in linked) for one in checkpoint.packs)
            packs = document("packs", dumps_canonical(PackList(found).to_json()))
            if any(one.shared for one in found):
                features.add("incremental")
        return replace(
            root,
            envelope=replace(root.envelope, read_features=tuple(sorted(features))),
            packs=packs,
            state=document("state", dumps_canonical(state.to_json())),
        ).seal()[0]

    with open_checkpoint(source) as checkpoint:
        with naming(source):
            known = checkpoint.images
        for name in images:
            if name in known:
                raise error("UCP-E-NAME", "the checkpoint has an image of this name: choose another", at=name)
        replaced = {one.key for one in (checkpoint.root.state, checkpoint.root.packs) if one is not None}
        return copy_with(
            checkpoint,
            target,
            finish,
            without=replaced,
            may_link=True,
            durability=durability,
            progress=progress,
            expect=expect,
        )


def extract(source: str | os.PathLike[str], name: str, target: str | os.PathLike[str]) -> int:
    """Write the files of an image of a checkpoint into the directory ``target``, which must not exist.

    Returns how many bytes they have.

    The directory appears when all files are there and verified. Whoever else can log in here cannot read them.

    Raises:
        UcpError: ``UCP-E-NOT-FOUND`` for an image that is not there; ``UCP-E-EXISTS`` where something lies at
            ``target``; ``UCP-E-MISSING``, ``UCP-E-LENGTH`` or ``UCP-E-DIGEST`` for a damaged file; ``UCP-E-STORE``
            for what the operating system refuses.

    >>> from pathlib import Path
    >>> Path("trainer.dmtcp").write_bytes(b"memory of a process")
    19
    >>> with ucp.CheckpointWriter("new.ucp", []) as writer:
    ...     writer.add_image("trainer", ucp.image_source("trainer.dmtcp", producer=("dmtcp", "3.0.0")))
    >>> ucp.extract("new.ucp", "trainer", "restored")
    19
    >>> Path("restored/trainer.dmtcp").read_bytes()
    b'memory of a process'
    """
    directory = Path(target).expanduser()
    with open_checkpoint(source) as checkpoint:
        with naming(source):
            images = checkpoint.images
            if name not in images:
                known = ", ".join(sorted(images)) or "none"
                message = f"the checkpoint has no image of this name; it has {known}"
                raise error("UCP-E-NOT-FOUND", message, at=name)
        if os.path.lexists(directory):
            raise error("UCP-E-EXISTS", "something lies here: choose another directory", at=str(target))
        with translated(str(target)):
            return _extract(checkpoint, images[name], directory)


def _extract(checkpoint: Checkpoint, image: ProcessImage, directory: Path) -> int:
    directory.parent.mkdir(parents=True, exist_ok=True)
    room = directory.parent / f".{directory.name}.{secrets.token_hex(4)}"
    room.mkdir(0o700)
    try:
        for file in image.files:
            with naming(checkpoint.path):
                _extract_file(checkpoint, file, room)
        _put_in_place(room, directory)
    except FileExistsError:
        raise error(
            "UCP-E-EXISTS", "something lies here by now: choose another directory", at=str(directory)
        ) from None
    finally:
        with suppress(OSError):
            shutil.rmtree(room)
    return image.nbytes


def _put_in_place(room: Path, directory: Path) -> None:
    """Rename a directory, unless something lies at its new name; raises FileExistsError then."""
    parent = opened(directory.parent, DIRECTORY_FLAGS)
    try:
        rename_exclusively(room.name, directory.name, parent)
    except OSError as reason:
        if reason.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        directory.mkdir(0o700)  # nobody else's, and empty: so that it may be replaced
        try:
            room.rename(directory)
        except BaseException:
            with suppress(OSError):  # a rename that was done, and is said to have failed
                directory.rmdir()
            raise
    finally:
        os.close(parent)


def _extract_file(checkpoint: Checkpoint, file: ImageFile, room: Path) -> None:
    path = room / file.path
    for above in reversed(path.relative_to(room).parents[:-1]):
        (room / above).mkdir(0o700, exist_ok=True)
    mode = _FOR_OWNER_TO_EXECUTE if file.is_executable else _FOR_OWNER

    def create(name: str, flags: int) -> int:
        return opened(name, flags | os.O_NOFOLLOW, mode)

    with open(path, "xb", buffering=0, opener=create) as out:
        for piece in verified_pieces(checkpoint.store, file.object):
            view = memoryview(piece)
            while view:
                view = view[out.write(view) or 0 :]
        os.fsync(out.fileno())
