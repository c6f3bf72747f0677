"""Choose the format that a conversion writes: by the destination's suffix or ``--to``, never against either."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

from ucpformat.conversion.contract.registry import UCP, registry
from ucpformat.errors import error
from ucpformat.storage.stores.urls import local_path, name_of

__all__ = ["format_to_write", "require_local"]

_OWN_SUFFIX = ".ucp"


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
