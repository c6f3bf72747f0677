"""What an export consists of: files of their own, which may be written in any order, and those that close it.

An exporter describes files; `exporting` writes them, in parallel, resumable, and none visible before it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["OutFile", "OutFiles", "text_file"]


@dataclass(frozen=True, slots=True)
class OutFile:
    """A file to write.

    ``name`` is its path below the destination, with ``/``; ``nbytes`` about how long it will be, for progress and for
    the division of work. ``write`` is given a new file, which it may seek in, and holds a bounded part of it; what it
    returns is a note for the files that close the export. It may be called again, in another process too.
    """

    name: str
    nbytes: int
    write: Callable[[IO[bytes]], JsonValue]


@dataclass(frozen=True, slots=True)
class OutFiles:
    """The files of an export: ``parts`` in any order, then what ``closing`` gives, one after another.

    ``closing`` is called with the notes of the parts, by name; the last file is what makes the others a checkpoint.
    ``is_single``: the destination itself is the one part, whose name does not count.
    """

    parts: Sequence[OutFile]
    closing: Callable[[Mapping[str, JsonValue]], Sequence[OutFile]] = lambda notes: ()
    is_single: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the parts together."""
        return sum(file.nbytes for file in self.parts)


def text_file(name: str, data: str | bytes) -> OutFile:
    """Return a small file whose content is known."""
    content = data.encode() if isinstance(data, str) else data
    return OutFile(name, len(content), partial(_write_content, content))


def _write_content(content: bytes, stream: IO[bytes]) -> None:
    stream.write(content)
