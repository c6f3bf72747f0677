"""Look up checkpoint formats by name: those that come with ucpformat, and those of other distributions.

A format is an entry point of the group ``ucpformat.formats``: its name is the format's, its value a `ForeignFormat`.
One that cannot be loaded is kept with the reason; the others work all the same. A destination's suffix, or its user,
says which format is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ucpformat.conversion.contract.foreign import ForeignFormat, Setting
from ucpformat.errors import error
from ucpformat.storage.stores.urls import local_path, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BUILT_IN",
    "GROUP",
    "UCP",
    "Registered",
    "Registry",
    "check_settings",
    "format_to_write",
    "late",
    "named_document",
    "named_integers",
    "registry",
    "require_local",
]

GROUP: Final = "ucpformat.formats"
"""The entry point group."""

UCP: Final = "ucp"
"""The format of universal checkpoints, which is no plug-in."""

_OURS: Final = "ucpformat"

# As in pyproject.toml (a test compares them): a source tree has its formats without being installed again.
BUILT_IN: Final[Mapping[str, str]] = {
    "accelerate": "ucpformat.conversion.formats.file_formats:ACCELERATE",
    "dcp": "ucpformat.conversion.formats.training_formats:DCP",
    "deepspeed": "ucpformat.conversion.formats.training_formats:DEEPSPEED",
    "ds-universal": "ucpformat.conversion.formats.training_formats:DEEPSPEED_UNIVERSAL",
    "megatron": "ucpformat.conversion.formats.training_formats:MEGATRON",
    "megatron-classic": "ucpformat.conversion.formats.training_formats:MEGATRON_CLASSIC",
    "orbax": "ucpformat.conversion.formats.file_formats:ORBAX",
    "safetensors": "ucpformat.conversion.formats.file_formats:SAFETENSORS",
    "torch-ranks": "ucpformat.conversion.formats.file_formats:TORCH_RANKS",
    "torch-save": "ucpformat.conversion.formats.file_formats:TORCH_SAVE",
}


@dataclass(frozen=True, slots=True)
class Registered:
    """An entry point and the distribution that it came with; ``broken`` says why it cannot be used."""

    entry: EntryPoint
    distribution: str
    format: ForeignFormat | None
    broken: str = ""

    @property
    def name(self) -> str:
        """Return the format's name."""
        return self.entry.name


class Registry:
    """Formats by name. Those of other distributions cannot take the name of one that comes with ucpformat."""

    def __init__(self, declared: Mapping[str, tuple[str, EntryPoint]], taken: tuple[Registered, ...]) -> None:
        self._found = dict(sorted(declared.items()))
        self._taken = taken
        self._loaded: dict[str, Registered] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """List all names, broken ones too, ``ucp`` first, without loading any format."""
        return (UCP, *self._found)

    def entry(self, name: str) -> Registered:
        """Return the entry of a name, loaded on first use; raise KeyError where there is none."""
        if name not in self._loaded:
            distribution, entry = self._found[name]
            self._loaded[name] = _load(entry, distribution)
        return self._loaded[name]

    def entries(self) -> list[Registered]:
        """List all entries in order of name, then those whose name another one has taken."""
        return [*(self.entry(name) for name in self._found), *self._taken]

    def broken(self) -> list[Registered]:
        """List the entries that cannot be used."""
        return [entry for entry in self.entries() if entry.broken]

    def format(self, name: str) -> ForeignFormat:
        """Return the format of a name.

        Raises:
            UcpError: ``UCP-E-SOURCE`` if there is none, or it cannot be loaded.
        """
        if name not in self._found:
            raise error("UCP-E-SOURCE", f"the format {name!r} is none of {', '.join(self.names)}")
        entry = self.entry(name)
        if entry.format is None:
            raise error(
                "UCP-E-SOURCE",
                f"the format {name!r} of the distribution {entry.distribution!r} cannot be used: {entry.broken}; "
                "repair or remove that distribution",
            )
        return entry.format

    def in_order(self) -> list[ForeignFormat]:
        """List the formats that work, in the order in which they are asked whether a path holds one of theirs."""
        left = {entry.name: entry.format for entry in self.entries() if entry.format is not None}
        ordered: list[ForeignFormat] = []
        while left:
            free = [
                name
                for name in left
                if not any(name in foreign.before for other, foreign in left.items() if other != name)
            ]
            # Plug-ins that each want to come before the other do so in order of name.
            ordered.append(left.pop(min(free or left)))
        return ordered


def _load(entry: EntryPoint, distribution: str) -> Registered:
    try:
        foreign = entry.load()
    except BaseException as problem:
        if isinstance(problem, KeyboardInterrupt):
            raise
        return Registered(entry, distribution, None, f"{type(problem).__name__}: {problem}")
    if not isinstance(foreign, ForeignFormat):
        return Registered(entry, distribution, None, f"{entry.value} is no ForeignFormat")
    if foreign.name != entry.name:
        return Registered(entry, distribution, None, f"{entry.value} is named {foreign.name!r}")
    return Registered(entry, distribution, foreign)


@cache
def registry() -> Registry:
    """Return the formats of this environment."""
    declared = {name: (_OURS, EntryPoint(name, value, GROUP)) for name, value in BUILT_IN.items()}
    taken: list[Registered] = []
    others = sorted(
        (entry.dist.name if entry.dist is not None else "", entry.name, entry)
        for entry in entry_points(group=GROUP)
        if entry.dist is None or entry.dist.name != _OURS
    )
    for distribution, name, entry in others:
        if name == UCP or name in declared:
            owner = _OURS if name == UCP else declared[name][0]
            taken.append(Registered(entry, distribution, None, f"{owner!r} has the name already"))
        else:
            declared[name] = (distribution, entry)
    return Registry(declared, tuple(taken))


def late(name: str, *wanted: str) -> Callable[..., Any]:
    """Return the function ``module:function`` of `ucpformat.conversion`, which is imported each time that it is called.

    Of the options, its last argument, it gets what is ``wanted`` by name: attributes of them, and settings, which are
    empty where they are not given. A function that wants nothing has no options.
    """

    def call(*arguments: Any) -> Any:
        module, _, function = name.partition(":")
        found = getattr(import_module(f"ucpformat.conversion.{module}"), function)
        if not wanted:
            return found(*arguments)
        *others, options = arguments
        return found(
            *others,
            **{
                one: getattr(options, one) if hasattr(options, one) else options.settings.get(one, "")
                for one in wanted
            },
        )

    return call


_OWN_SUFFIX: Final = ".ucp"


def format_to_write(destination: str | os.PathLike[str], wanted: str | None, source_format: str) -> str:
    """Choose the format to write: ``wanted`` where that is given, else what the destination's suffix says.

    A destination whose suffix says nothing becomes a universal checkpoint, unless the source is one.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` where ``wanted`` and the suffix contradict each other, and where nothing says
            what is wanted.
    """
    name = name_of(destination)
    suffix = PurePosixPath(name).suffix.lower()
    told = _formats_of(suffix)
    if wanted is not None:
        if told and wanted not in told:
            raise error(
                "UCP-E-MISMATCH",
                f"the suffix {suffix} is that of {' or '.join(told)}, and --to says {wanted}; leave --to out, or name "
                "the destination otherwise",
                at=os.fspath(destination),
            )
        return wanted
    if told:
        return told[0]
    if source_format != UCP:
        return UCP
    suffixes = ", ".join(f"{suffix} ({name})" for suffix, name in _all_suffixes())
    raise error(
        "UCP-E-MISMATCH",
        f"nothing says what to write: give the destination a suffix, such as {suffixes}, or say --to FORMAT; "
        "`ucp cp` copies a universal checkpoint as it is",
        at=os.fspath(destination),
    )


def require_local(path: str | os.PathLike[str], name: str, *, is_source: bool) -> str:
    """Return the local path of a checkpoint that is not universal.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for a URL, which only universal checkpoints have.
    """
    local = local_path(path)
    if local is not None:
        return local
    how = "read from local paths alone; copy it first" if is_source else "written to local paths alone"
    raise error("UCP-E-MISMATCH", f"{name} is {how}; only ucp lies behind URLs", at=os.fspath(path))


def _formats_of(suffix: str) -> list[str]:
    """List the formats whose destinations have this suffix."""
    if suffix == _OWN_SUFFIX:
        return [UCP]
    return [foreign.name for foreign in registry().in_order() if suffix and suffix in foreign.suffixes]


def _all_suffixes() -> list[tuple[str, str]]:
    """List the first suffix of each format that has any, and of universal checkpoints."""
    suffixes = [(foreign.suffixes[0], foreign.name) for foreign in registry().in_order() if foreign.suffixes]
    return [*sorted(suffixes), (_OWN_SUFFIX, UCP)]


def check_settings(
    format_name: str, declared: tuple[Setting, ...], given: Mapping[str, str], side: str
) -> None:
    """Refuse a setting that a format does not have; ``side`` is ``read`` or ``written``.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``, naming those that there are.
    """
    known = [setting.name for setting in declared]
    for name in given:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "it has none"
            raise error(
                "UCP-E-MISMATCH",
                f"there is no setting {name!r} of {format_name} where that is {side}; {there}",
            )


_SUFFIX: Final = ".json"
_Document = TypeVar("_Document")
_Parsed = TypeVar("_Parsed", covariant=True)


def named_integers(text: str, *, at: str) -> dict[str, int]:
    """Return ``a=1,b=2`` as a dict. Raises ``UCP-E-PATTERN`` for anything else."""
    integers = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if not value.isdecimal() or not value.isascii() or len(value) > 15:
            raise error("UCP-E-PATTERN", f"{part!r} is not NAME=INTEGER", at=at)
        integers[name.strip()] = int(value)
    return integers


class _Parse(Protocol[_Parsed]):
    """Parses a document of one kind. `named_document` calls it once, with all bytes of the file that a user named.

    It raises `UcpError` for what is no such document, with locations that begin with ``at``, the file's name.
    """

    def __call__(self, data: bytes, *, at: str) -> _Parsed: ...


def named_document(
    name: str, what: str, names: Sequence[str], load: Callable[[str], _Document], parse: _Parse[_Document]
) -> _Document:
    """Return a ready-made document by its name, or that of a file ``*.json``; ``what``, "the patterns", is said of it.

    Raises:
        UcpError: ``UCP-E-PATTERN`` for a file that cannot be read, what ``load`` and ``parse`` raise.
    """
    if not name.endswith(_SUFFIX):
        return load(name)
    try:
        data = Path(name).read_bytes()
    except OSError as problem:
        raise error(
            "UCP-E-PATTERN",
            f"{what} cannot be read ({problem.strerror}); ready-made are {', '.join(names)}",
            at=name,
        ) from None
    return parse(data, at=name)
