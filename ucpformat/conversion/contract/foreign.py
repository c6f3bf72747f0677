"""The interface of foreign checkpoint formats: how each is recognised, read and written (docs/plugins.md).

A format is found by an entry point of the group ``ucpformat.formats``, the built-in ones like any other (`registry`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from ucpformat.conversion.contract.content import Content
    from ucpformat.conversion.contract.job import Job
    from ucpformat.tensor_files.out_files import OutFiles

__all__ = [
    "PICKLE",
    "ExportOptions",
    "ExportPlan",
    "ForeignFormat",
    "ForeignObjects",
    "ImportOptions",
    "Lost",
    "Path",
    "Setting",
]

Path = str | os.PathLike[str]

PICKLE: Final = "application/x-pytorch-dcp-object"
"""Media type of blobs that hold an object's stored bytes."""

ForeignObjects = Literal["refuse", "opaque"]
"""What becomes of objects that tagged values cannot express."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a format, ``--set NAME=VALUE``: its name, and one line of help that says what values it takes."""

    name: str
    help: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Something of a source that does not reach the destination, and why.

    ``what`` is ``atom/slot``, ``values/NAME``, ``optimizers/NAME``, ``blobs/NAME``, or what the source calls it.
    What ``matters`` has to be allowed (``--drop``); the rest, which no job would miss, is reported alone.
    """

    what: str
    why: str
    matters: bool = True


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What a caller may say about a source. ``settings`` are those that the format declares, as text.

    ``expand`` is how many logical bytes the tensors may have together; left out, 64 times what the files of the source
    have, and at least 256 MiB.
    """

    foreign_objects: ForeignObjects = "refuse"
    shard_count: int | None = None
    expand: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What a caller may say about a destination; ``progress`` is told of logical bytes that are written.

    ``settings`` are those that the format declares, as the command line has them: ``{"stage": "3"}``.
    """

    progress: Callable[[int], None] = lambda _: None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """An export that was thought through, and of which nothing is written yet.

    Either ``files`` describes the files that it consists of, which are written in parallel and can be resumed, or
    ``write`` writes it all when it is called, once.
    ``objects`` counts what is written beside tensors. ``renamed`` has ``atom/slot`` and the name at the destination
    where that is another one. ``dropped`` names everything that the destination cannot hold: unless the caller
    allows each loss that matters (``--drop``), nothing is written. ``cast`` has ``atom/slot`` and the data
    type that its elements are rounded to, because a setting asks for that. ``warnings`` are sentences about what is
    written and the destination's own software will not take up.
    """

    objects: int
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: Sequence[Lost] = ()
    cast: Mapping[str, str] = field(default_factory=dict)
    files: OutFiles | None = None
    write: Callable[[], None] | None = None
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """One checkpoint format.

    ``detect`` says whether a path holds one; it reads little, and raises nothing for what is something else.
    ``plan`` reads one into a `Job`, no tensor yet; ``export`` plans writing one. None where it cannot.
    ``before`` names formats that would take this one for theirs: this one is asked first. ``suffixes``, such as
    ``.safetensors``, are those by which the name of a destination says that this format is to be written.
    """

    name: str
    detect: Callable[[Path], bool]
    plan: Callable[[Path, ImportOptions], Job] | None = None
    export: Callable[[Content, Path, ExportOptions], ExportPlan] | None = None
    title: str = ""
    import_settings: Sequence[Setting] = ()
    export_settings: Sequence[Setting] = ()
    before: Sequence[str] = ()
    suffixes: Sequence[str] = ()
