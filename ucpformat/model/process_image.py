"""Process images: what software that saves whole processes wrote, carried as it is (SPEC 15.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ucpformat.errors import Problem
from ucpformat.jsonio import pointer
from ucpformat.model.fields import array, boolean, integer, members, object_, string, wrong_type
from ucpformat.model.names import case_problems, path_problems
from ucpformat.model.references import DocumentRef
from ucpformat.model.root import Producer

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["ImageFile", "ProcessImage"]

_IMAGE_MEMBERS: Final = frozenset({"media_type", "producer", "host", "portable", "required", "files"})
_IMAGE_OPTIONAL: Final = frozenset({"rank"})
_FILE_MEMBERS: Final = frozenset({"path", "object"})
_FILE_OPTIONAL: Final = frozenset({"executable"})


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file of a process image: its path in the image's directory, and the object that has its bytes."""

    path: str
    object: DocumentRef
    is_executable: bool = False

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> ImageFile:
        """Read a file's entry; raises ``UCP-E-SCHEMA``."""
        found = members(value, _FILE_MEMBERS, _FILE_OPTIONAL, at)
        return cls(
            string(found["path"], pointer(at, "path")),
            DocumentRef.from_json(found["object"], at=pointer(at, "object")),
            _constant(found, "executable", at, is_true=True),
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        value: dict[str, JsonValue] = {"path": self.path, "object": self.object.to_json()}
        if self.is_executable:
            value["executable"] = True
        return value


@dataclass(frozen=True, slots=True)
class ProcessImage:
    """The image of a process, as the software that saved it wrote it. Nothing in it is ever executed.

    Attributes:
        media_type: what its files are.
        producer: the software that wrote them.
        files: its files; paths are relative to the image's directory.
        host: what a host must have for the image to be restored there, in the producer's terms.
        is_required: whether the training state is incomplete without the process.
        rank: the number of the process in the job that was saved; None where it has none.

    >>> ckpt.images
    {}
    """

    media_type: str
    producer: Producer
    files: tuple[ImageFile, ...]
    host: Mapping[str, str] = field(default_factory=dict)
    is_required: bool = False
    rank: int | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of all its files.

        >>> sum(image.nbytes for image in ckpt.images.values())
        0
        """
        return sum(file.object.length for file in self.files)

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> ProcessImage:
        """Read an image's entry; raises ``UCP-E-SCHEMA``.

        >>> ucp.ProcessImage.from_json({}, at="")
        Traceback (most recent call last):
        ucpformat.errors.InvalidCheckpointError: UCP-E-SCHEMA: ...
        """
        found = members(value, _IMAGE_MEMBERS, _IMAGE_OPTIONAL, at)
        files, host = pointer(at, "files"), pointer(at, "host")
        _constant(found, "portable", at, is_true=False)
        return cls(
            string(found["media_type"], pointer(at, "media_type")),
            Producer.from_json(found["producer"], at=pointer(at, "producer")),
            tuple(
                ImageFile.from_json(one, at=pointer(files, number))
                for number, one in enumerate(array(found["files"], files, least=1))
            ),
            {name: string(text, pointer(host, name)) for name, text in object_(found["host"], host).items()},
            boolean(found["required"], pointer(at, "required")),
            integer(found["rank"], pointer(at, "rank")) if "rank" in found else None,
        )

    def problems(self, *, at: str) -> Iterator[Problem]:
        """Yield ``UCP-E-KEY`` for paths that are no keys, or that are not those of files beside one another.

        >>> from ucpformat.model.process_image import ImageFile
        >>> from ucpformat.model.references import DocumentRef
        >>> from ucpformat.model.root import Producer
        >>> file = ImageFile("../passwd", DocumentRef.to("blobs/0", b""))
        >>> image = ucp.ProcessImage("", Producer("", ""), (file,))
        >>> [problem.code for problem in image.problems(at="")]
        ['UCP-E-KEY']
        """
        places = [pointer(at, "files", number, "path") for number in range(len(self.files))]
        for file, place in zip(self.files, places, strict=True):
            yield from path_problems(file.path, place)
        yield from case_problems((file.path, place) for file, place in zip(self.files, places, strict=True))
        folded = {file.path.lower() for file in self.files}
        for file, place in zip(self.files, places, strict=True):
            parts = file.path.lower().split("/")
            above = next(
                (one for end in range(1, len(parts)) if (one := "/".join(parts[:end])) in folded), None
            )
            if above is not None:
                yield Problem("UCP-E-KEY", place, f"{above[:80]!r} is a file of the image already")

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads.

        >>> from ucpformat.model.root import Producer
        >>> ucp.ProcessImage("application/x-criu", Producer("criu", "4.0"), ()).to_json()["required"]
        False
        """
        value: dict[str, JsonValue] = {
            "media_type": self.media_type,
            "producer": self.producer.to_json(),
            "host": dict(self.host),
            "portable": False,
            "required": self.is_required,
            "files": [file.to_json() for file in self.files],
        }
        if self.rank is not None:
            value["rank"] = self.rank
        return value


def _constant(found: Mapping[str, JsonValue], name: str, at: str, *, is_true: bool) -> bool:
    """Return a truth value that is ``is_true`` wherever it is given."""
    if name not in found:
        return not is_true
    value = boolean(found[name], pointer(at, name))
    if value is not is_true:
        raise wrong_type(value, "true" if is_true else "false", pointer(at, name))
    return value
