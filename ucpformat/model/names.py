"""Atom names and store keys (SPEC sections 9 and 11.1): what may be called what, and which key a name gets.

A *name* is any Unicode text of 1 to 1024 bytes of UTF-8 without control characters; names are never
normalised, and their order is that of their UTF-8 bytes, which is also Python's order of `str`. A *key* is a
path in a store: components joined by ``/``. Keys are recorded beside the names, never derived by a reader;
`assign_keys` is merely the choice that this library makes when it writes.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from ucpformat.errors import Problem, UcpError, error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = [
    "CLAIM_KEY",
    "MAX_COMPONENT_BYTES",
    "MAX_NAME_BYTES",
    "RESERVED_COMPONENTS",
    "are_components",
    "are_names",
    "assign_keys",
    "case_problems",
    "check_component",
    "check_key",
    "check_name",
    "component_problems",
    "fits_glob",
    "is_component",
    "key_problems",
    "name_problems",
    "path_problems",
]

MAX_COMPONENT_BYTES: Final = 200
MAX_NAME_BYTES: Final = 1024

# The object by which a writer claims a place in an object store.
CLAIM_KEY: Final = "index/claim"

# Zarr metadata lie beside the keys of arrays and groups.
RESERVED_COMPONENTS: Final = frozenset({"zarr.json"})

_COMPONENT: Final = re.compile(r"(?!\.|__)[A-Za-z0-9._-]{1,200}(?<!\.)")
_OTHER: Final = re.compile(r"[^A-Za-z0-9._-]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

# How many hexadecimal digits of the name's sha256 its key may end in: none, readable, beyond doubt.
_SUFFIX_DIGITS: Final = (0, 12, 64)
# Devices that Windows opens whatever the extension: such a file could not be copied there.
_DEVICE: Final = r"(?i:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?"
_DEVICES: Final = re.compile(_DEVICE)
_OWN_KEY: Final = re.compile(rf"(?!(?:{_DEVICE}|(?i:zarr\.json))\Z){_COMPONENT.pattern}")


def is_component(text: str) -> bool:
    """Return whether `check_component` would let ``text`` pass."""
    return _COMPONENT.fullmatch(text) is not None


def fits_glob(glob: str, name: str) -> bool:
    """Tell whether a glob matches a name, or the front of it that ends at a dot: ``model`` fits ``model.fc.weight``.

    ``*`` and ``?`` match dots as well; case counts.
    """
    return fnmatchcase(name, glob) or fnmatchcase(name, f"{glob}.*")


def are_components(texts: Iterable[str]) -> bool:
    """Return whether `check_component` would let all ``texts`` pass."""
    return None not in map(_COMPONENT.fullmatch, texts)


def check_component(text: str, at: str) -> None:
    """Refuse what is not a component of a store key.

    Raises UCP-E-KEY: not 1 to 200 of ``A-Z a-z 0-9 . _ -``, or starts with ``.`` or ``__``, or ends in ``.``.
    """
    if not _COMPONENT.fullmatch(text):
        raise error(
            "UCP-E-KEY",
            f"{text[:80]!r} is not a key component: 1 to {MAX_COMPONENT_BYTES} of A-Z a-z 0-9 . _ -, "
            "not starting with '.' or '__', not ending with '.'",
            at=at,
        )


def check_key(text: str, at: str) -> None:
    """Refuse what is not a whole store key: components joined by single slashes, none at the ends.

    Raises UCP-E-KEY: a component is not one.
    """
    components = text.split("/")
    if not are_components(components):
        for component in components:
            check_component(component, at)


def check_name(text: str, at: str) -> None:
    """Refuse what cannot be the name of an atom.

    Raises UCP-E-NAME: empty, over 1024 bytes of UTF-8, or with a control character or a lone surrogate.
    """
    if text.isascii() and text.isprintable() and 1 <= len(text) <= MAX_NAME_BYTES:
        return  # nearly all names
    if _SURROGATE.search(text):
        raise error(
            "UCP-E-NAME", f"the name {text[:80]!r} holds a lone surrogate, which is not Unicode text", at=at
        )
    if not 1 <= len(text.encode("utf-8")) <= MAX_NAME_BYTES:
        raise error(
            "UCP-E-NAME", f"the name {text[:80]!r} is empty or over {MAX_NAME_BYTES} bytes of UTF-8", at=at
        )
    if _CONTROL.search(text):
        raise error("UCP-E-NAME", f"the name {text[:80]!r} holds a control character", at=at)


def are_names(texts: Sequence[str]) -> bool:
    """Return whether `check_name` would let all ``texts`` pass."""
    if not texts:
        return True
    together = " ".join(texts)
    if together.isascii() and together.isprintable() and min(map(len, texts)) > 0:
        return max(map(len, texts)) <= MAX_NAME_BYTES  # as with most
    try:
        for text in texts:
            check_name(text, "")
    except UcpError:
        return False
    return True


def assign_keys(names: Iterable[str]) -> dict[str, str]:
    """Choose a key component for every name, sorted by name; the same set of names gives the same keys.

    A name that is a safe component and clashes with no other is its own key. Any other has each run of other
    characters replaced by ``-`` and ends in ``-`` and 12 hexadecimal digits of the name's sha256. Keys are
    unique when case is ignored.

    Raises UCP-E-NAME: a name is not one, or occurs twice.
    """
    ordered = sorted(names)
    if not are_names(ordered) or len({*ordered}) < len(ordered):
        for before, name in zip(["", *ordered], ordered, strict=False):
            check_name(name, "")
            if name == before:
                raise error("UCP-E-NAME", f"the name {name[:80]!r} occurs twice")
    if all(map(_OWN_KEY.fullmatch, ordered)) and len({*map(str.lower, ordered)}) == len(ordered):
        return dict(zip(ordered, ordered, strict=True))  # as with most models
    stems = {name: _stem(name) for name in ordered}
    levels = {name: int(stem != name) for name, stem in stems.items()}
    keys = {name: _key(stem, name, levels[name]) for name, stem in stems.items()}
    # A literal name may look like a suffixed key. All members of a clash step to the next level; full digests
    # of different names differ, so this ends.
    while clashing := _clashing(keys):
        for name in clashing:
            levels[name] = min(levels[name] + 1, len(_SUFFIX_DIGITS) - 1)
            keys[name] = _key(stems[name], name, levels[name])
    return keys


def _stem(name: str) -> str:
    """Return ``name`` itself where it may be a key, else something readable that is another text."""
    if _OWN_KEY.fullmatch(name):
        return name
    readable = _OTHER.sub("-", name).strip("-._") or "atom"
    if _DEVICES.fullmatch(readable):
        readable = f"-{readable}"
    return readable if readable != name else f"{readable}-"


def _key(stem: str, name: str, level: int) -> str:
    digits = _SUFFIX_DIGITS[level]
    if digits == 0:
        return stem
    suffix = hashlib.sha256(name.encode("utf-8")).hexdigest()[:digits]
    return f"{stem[: MAX_COMPONENT_BYTES - digits - 1].rstrip('-')}-{suffix}"


def _clashing(keys: dict[str, str]) -> list[str]:
    """Return the names whose keys are equal when case is ignored."""
    by_fold: defaultdict[str, list[str]] = defaultdict(list)
    for name, key in keys.items():
        by_fold[key.lower()].append(name)
    return [name for group in by_fold.values() if len(group) > 1 for name in group]


def _findings(check: Callable[[str, str], None], text: str, at: str) -> Iterator[Problem]:
    try:
        check(text, at)
    except UcpError as refusal:
        yield refusal.problem()


def component_problems(text: str, at: str) -> Iterator[Problem]:
    """Yield ``UCP-E-KEY`` where ``text`` cannot be an atom's key or a slot's name (UCP-D-010, UCP-D-016)."""
    if not is_component(text):
        yield from _findings(check_component, text, at)
    if text.lower() in RESERVED_COMPONENTS:
        yield Problem("UCP-E-KEY", at, f"{text!r} is the name of Zarr's metadata documents; choose another")


def name_problems(text: str, at: str) -> Iterator[Problem]:
    """Return ``UCP-E-NAME`` where ``text`` cannot name an atom (UCP-D-023)."""
    return _findings(check_name, text, at)


def key_problems(key: str, room: str, at: str) -> Iterator[Problem]:
    """Yield ``UCP-E-KEY`` if ``key`` is no key in ``room``, such as ``index/`` (UCP-D-010, UCP-D-014, UCP-D-013)."""
    yield from _findings(check_key, key, at)
    if not key.startswith(room):
        yield Problem("UCP-E-KEY", at, f"the key {key[:80]!r} must begin with {room!r}")
    if key.lower() == CLAIM_KEY:
        yield Problem("UCP-E-KEY", at, f"{key!r} is the key of a writer's claim; choose another")


def path_problems(path: str, at: str) -> Iterator[Problem]:
    """Yield ``UCP-E-KEY`` if the path of a file, relative to a directory, has not the form of a key (UCP-D-148)."""
    return _findings(check_key, path, at)


def case_problems(keys: Iterable[tuple[str, str]]) -> Iterator[Problem]:
    """Yield ``UCP-E-KEY`` for ``(key, at)`` whose key is an earlier one, if in other case (UCP-D-011, UCP-D-012)."""
    seen: dict[str, str] = {}
    for key, at in keys:
        other = seen.setdefault(key.lower(), at)
        if other != at:
            yield Problem("UCP-E-KEY", at, f"{key[:80]!r} is used at {other} already, if in other case")
