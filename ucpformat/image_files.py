"""Process images to be written into a checkpoint: where their files are, and what is said of them (SPEC 15.4)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from ucpformat.errors import error
from ucpformat.model.fields import raise_first
from ucpformat.model.process_image import ImageFile, ProcessImage
from ucpformat.model.references import DocumentRef
from ucpformat.model.root import Producer
from ucpformat.storage.stores.local_io import in_words, opened

__all__ = ["ImageSource", "SourceFile", "image_source"]

_PIECE_BYTES: Final = 1 << 22


class SourceFile(NamedTuple):
    """A file of an image: its path in the image's directory, and what yields its bytes, each time from the first."""

    path: str
    pieces: Callable[[], Iterator[bytes]]
    is_executable: bool = False


@dataclass(frozen=True, slots=True)
class ImageSource:
    """A process image that is to be written; `image_source` finds one on the disk.

    Attributes:
        media_type: what its files are.
        producer: name and version of the software that wrote them.
        files: at least one.
        host: what a host must have for the image to be restored there, in the producer's terms.
        is_required: whether the training state is incomplete without the process.
        rank: the number of the process in the job that was saved; None where it has none.

    >>> from pathlib import Path
    >>> Path("core.img").write_bytes(b"memory")
    6
    >>> ucp.image_source("core.img", producer=("criu", "4.0")).files[0].path
    'core.img'
    """

    media_type: str
    producer: tuple[str, str]
    files: Sequence[SourceFile]
    host: Mapping[str, str] = field(default_factory=dict)
    is_required: bool = False
    rank: int | None = None

    def written(self, name: str, write: Callable[[Iterator[bytes]], DocumentRef]) -> ProcessImage:
        """Have ``write`` write each file, and return what the state document says of the image called ``name``.

        Raises:
            UcpError: ``UCP-E-KEY`` for paths that no image can have, before anything is written; what ``write`` raises.

        >>> from ucpformat.model.references import DocumentRef
        >>> from ucpformat.image_files import SourceFile
        >>> file = SourceFile("core.img", lambda: iter([b"memory"]))
        >>> source = ucp.ImageSource("application/x-criu", ("criu", "4.0"), [file])
        >>> image = source.written("trainer", lambda pieces: DocumentRef.to("blobs/0", b"".join(pieces)))
        >>> image.nbytes
        6
        """
        nothing = DocumentRef.to("", b"")
        files = tuple(ImageFile(file.path, nothing, file.is_executable) for file in self.files)
        image = ProcessImage(
            self.media_type, Producer(*self.producer), files, dict(self.host), self.is_required, self.rank
        )
        if not files:
            raise error("UCP-E-SOURCE", "an image has one file at least", at=name)
        raise_first(image.problems(at=name))
        found = (ImageFile(file.path, write(file.pieces()), file.is_executable) for file in self.files)
        return ProcessImage(
            image.media_type, image.producer, tuple(found), image.host, image.is_required, image.rank
        )


def image_source(
    path: str | os.PathLike[str],
    *,
    producer: tuple[str, str],
    media_type: str = "application/octet-stream",
    host: Mapping[str, str] | None = None,
    is_required: bool = False,
    rank: int | None = None,
) -> ImageSource:
    """Return the image that a file is, or a directory with everything below it.

    Files are read when the image is written. ``host`` is what a host must have for the image to be restored there;
    without it, the machine, system and release of this one.

    Raises:
        UcpError: ``UCP-E-NOT-FOUND`` where nothing lies; ``UCP-E-SOURCE`` for an empty directory, and for links,
            devices and sockets in it: an image has regular files alone, and for what cannot be read.

    >>> from pathlib import Path
    >>> Path("image").mkdir()
    >>> Path("image/pages-1.img").write_bytes(b"memory")
    6
    >>> source = ucp.image_source("image", producer=("criu", "4.0"), is_required=True, rank=0)
    >>> [file.path for file in source.files]
    ['pages-1.img']
    """
    top = Path(path).expanduser()
    if not os.path.lexists(top):
        raise error(
            "UCP-E-NOT-FOUND",
            "nothing lies here: give the file or directory that the software wrote",
            at=str(path),
        )
    above = top if top.is_dir() else top.parent
    with _told(path):
        files = [
            SourceFile(found.relative_to(above).as_posix(), partial(_pieces, found), is_executable)
            for found, is_executable in _regular(top)
        ]
    if not files:
        raise error("UCP-E-SOURCE", "the directory has no files", at=str(path))
    if host is None:
        own = os.uname()
        host = {"machine": own.machine, "system": own.sysname, "release": own.release}
    return ImageSource(media_type, producer, files, host, is_required, rank)


def _regular(path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield a file, or those below a directory in the order of their names, and whether its owner may execute it."""
    mode = path.lstat().st_mode
    if stat.S_ISDIR(mode):
        for below in sorted(path.iterdir()):
            yield from _regular(below)
    elif stat.S_ISREG(mode):
        yield path, bool(mode & stat.S_IXUSR)
    else:
        message = (
            "this is no regular file: put what it leads to in its place, or pack the image into one file"
        )
        raise error("UCP-E-SOURCE", message, at=str(path))


def _pieces(path: Path) -> Iterator[bytes]:
    with _told(path), open(path, "rb", buffering=0, opener=_no_link) as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _no_link(path: str, flags: int) -> int:
    return opened(path, flags | os.O_NOFOLLOW)


@contextmanager
def _told(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise operating system errors as ``UCP-E-SOURCE``."""
    try:
        yield
    except OSError as reason:
        raise error("UCP-E-SOURCE", in_words(reason), at=str(path)) from reason
