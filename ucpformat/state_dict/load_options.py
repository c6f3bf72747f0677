"""Options of a load that name entries of the state: parts, other names, layouts, rules.

A name or glob that fits nothing is an error: a typo must not pass for a wish. As ranks may hold different parts of a
model, it has to fit something on one rank of the job at least.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error
from ucpformat.model.names import fits_glob
from ucpformat.state_dict.per_rank import require_rule

if TYPE_CHECKING:
    from ucpformat.errors import UcpError
    from ucpformat.state_dict.per_rank import Ask, AskEach
    from ucpformat.state_dict.tensors.local_tensors import TensorLayout

__all__ = ["Fits", "LoadOptions", "Named", "Only", "Rename", "fits", "fronts", "near", "without_effect"]

_MAX_COMPARED: Final = 5000
_ALIKE: Final = 0.6

Fits = dict[str, dict[str, str | None]]
"""By option, every name that was given for it: None where it fits something, else what was probably meant, or ''."""


class Only:
    """Says which entries are wanted: those that match one of some globs, those of which a function says so, or all.

    A glob fits an entry, or a whole part of the state with everything below it.
    """

    def __init__(self, only: str | Iterable[str] | Callable[[str], bool] | None) -> None:
        self._globs: tuple[str, ...] = ()
        self._ask: Callable[[str], bool] | None = None
        self.is_given = only is not None
        if callable(only):
            self._ask = only
        elif only is not None:
            self._globs = (only,) if isinstance(only, str) else tuple(only)

    def __call__(self, name: str) -> bool:
        """Return whether an entry is wanted."""
        if self._ask is not None:
            return bool(self._ask(name))
        return not self.is_given or any(fits_glob(glob, name) for glob in self._globs)

    def fits(self, names: Sequence[str], stored: Collection[str] = ()) -> dict[str, str | None]:
        """Return for every glob whether it fits one of ``names``; ``stored`` are names that may have been meant."""
        found: dict[str, str | None] = {}
        for glob in self._globs:
            is_used = any(fits_glob(glob, name) for name in names)
            found[glob] = None if is_used else _glob_meant(glob, [*names, *stored])
        return found


def _glob_meant(glob: str, names: Sequence[str]) -> str:
    """Return the nearest glob, or this with its missing front (``ucp inspect`` prints names without ``model.``)."""
    for name in names:
        steps = name.split(".")
        for first in range(1, len(steps)):
            if fits_glob(glob, ".".join(steps[first:])):
                return ".".join([*steps[:first], glob])
    below = dict.fromkeys(f"{front}.*" for front in fronts(names))
    return near(glob, [*names, *below])


def fronts(names: Iterable[str]) -> Iterator[str]:
    """Yield whole components at the front of names, each once."""
    found: dict[str, None] = {}
    for name in names:
        end = name.rfind(".")
        while end > 0 and name[:end] not in found:
            found[name[:end]] = None
            end = name.rfind(".", 0, end)
    yield from found


def near(name: str, names: Sequence[str], *, alike: float = _ALIKE) -> str:
    """Return the name that is most like another, or an empty text."""
    close = difflib.get_close_matches(name, names[:_MAX_COMPARED], 1, alike)
    return close[0] if close else ""


class Rename:
    """Gives the name that the checkpoint has for an entry: by a function, or by a mapping of names or of their fronts.

    A front is whole components: ``{"model.head": "model.lm_head"}`` renames ``model.head`` and all that begins with
    ``model.head.``. The longest one that fits counts.
    """

    def __init__(self, rename: Mapping[str, str] | Callable[[str], str] | None) -> None:
        self._ask = rename if callable(rename) else None
        self._names: dict[str, str] = {} if rename is None or callable(rename) else dict(rename)

    def __call__(self, name: str) -> str:
        """Return the name in the checkpoint."""
        if self._ask is not None:
            return self._ask(name)
        key = self._key(name)
        return name if key is None else self._names[key] + name[len(key) :]

    def _key(self, name: str) -> str | None:
        end = len(name) if self._names else 0
        while end > 0:
            if name[:end] in self._names:
                return name[:end]
            end = name.rfind(".", 0, end)
        return None

    def fits(self, names: Sequence[str]) -> dict[str, str | None]:
        """Return every key, and whether it renames one of ``names``."""
        used = {self._key(name) for name in names}
        others = [*names, *fronts(names)] if self._names else []
        return {key: None if key in used else near(key, others) for key in self._names}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What is asked for beyond filling a state with what has its names, shapes and data types; see `load`."""

    only: Only
    rename: Rename
    layouts: Mapping[str, TensorLayout]
    per_rank: AskEach
    cast: bool
    strict: bool
    read_once: bool = False
    position: tuple[int, int] = (0, 1)
    """This process's position in the group, and the size of that."""

    def __post_init__(self) -> None:
        for name, rule in self._rules().items():
            require_rule(rule, at=name)

    def rule(self, name: str) -> Ask | None:
        """Return what is asked of a value of each rank's own."""
        return self.per_rank.get(name) if isinstance(self.per_rank, Mapping) else self.per_rank

    def _rules(self) -> Mapping[str, Ask | None]:
        return self.per_rank if isinstance(self.per_rank, Mapping) else {"per_rank": self.per_rank}

    @property
    def ruled(self) -> Sequence[str]:
        """The names for which `per_rank` has a rule."""
        return list(self.per_rank) if isinstance(self.per_rank, Mapping) else []


@dataclass(slots=True)
class Named:
    """Names of one rank's state: all entries, its tensors with their parts, and values of each rank's own."""

    entries: list[str] = field(default_factory=list)
    tensors: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)


def fits(options: LoadOptions, named: Named, stored: Collection[str]) -> Fits:
    """Return what this rank gave by name, and what of it fits its state; ``stored`` are the checkpoint's names."""
    return {
        "only": options.only.fits(named.entries, stored),
        "rename": options.rename.fits(named.entries),
        "layouts": _among(options.layouts, named.tensors),
        "per_rank": _among(options.ruled, named.own),
    }


def _among(given: Iterable[str], names: Sequence[str]) -> dict[str, str | None]:
    """Return whether each is one of some names, or lies below one, as parts of tensor subclasses do."""
    known = set(names)
    return {
        name: None if known.intersection((name, *fronts([name]))) else near(name, names) for name in given
    }


_FITS_NOTHING: Final = {
    "only": "fits no entry",
    "rename": "renames no entry of the state",
    "layouts": "names no tensor of the state",
    "per_rank": "names no value of each rank's own (ucp.PerRank)",
}


def without_effect(said: Sequence[Fits]) -> UcpError | None:
    """Return the error for names that fit nothing on any rank that gave them, or None; ``said`` is of all ranks."""
    problems: list[str] = []
    for option, what in _FITS_NOTHING.items():
        given: dict[str, str | None] = {}
        for one in said:
            for name, meant in one.get(option, {}).items():
                # What fits on one rank is good; else the first rank that has a suggestion.
                given[name] = (
                    None if meant is None or given.get(name, "") is None else given.get(name) or meant
                )
        for name, meant in given.items():
            if meant is not None:
                hint = f"; did you mean {meant!r}?" if meant else ""
                problems.append(f"{option}= {what}: {name!r}{hint}")
    return error("UCP-E-MISMATCH", f"nothing was loaded: {'; '.join(problems)}") if problems else None
