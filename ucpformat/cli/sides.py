"""The two sides of a plan, as a user names them on the command line."""

from __future__ import annotations

import os
from contextlib import ExitStack
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ucpformat.errors import error
from ucpformat.jsonio import pointer
from ucpformat.model.arrangement import KIND as ARRANGEMENT
from ucpformat.model.arrangement import Arrangement
from ucpformat.model.fields import choice, object_
from ucpformat.model.standalone import parse_standalone
from ucpformat.patterns import Patterns, Settings, load_patterns, pattern_names
from ucpformat.patterns.document import KIND as PATTERNS
from ucpformat.planning import Side, arrangement_side, checkpoint_side, patterns_side
from ucpformat.reader import open_checkpoint
from ucpformat.storage.stores.urls import local_path

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["open_side", "open_sides", "settings_option"]

_KINDS: Final = (ARRANGEMENT, PATTERNS)


def _settings(
    _: click.Context, __: click.Parameter, texts: tuple[str, ...]
) -> tuple[tuple[str, int | list[int]], ...]:
    settings: list[tuple[str, int | list[int]]] = []
    for text in texts:
        name, _equals, values = text.partition("=")
        try:
            numbers = [int(number) for number in values.split(",")]
        except ValueError:
            raise click.BadParameter(
                f"write {text!r} as NAME=INT or NAME=INT,INT,..., such as tp=8"
            ) from None
        settings.append((name, numbers if "," in values else numbers[0]))
    return tuple(settings)


settings_option = click.option(
    "--set",
    "settings",
    multiple=True,
    callback=_settings,
    metavar="NAME=INT[,INT...]",
    help="The value of a parameter of patterns.",
)


def open_sides(
    first: str, second: str, settings: Sequence[tuple[str, int | list[int]]], stack: ExitStack
) -> tuple[Side, Side]:
    """Read both sides; a checkpoint stays open as long as ``stack`` does.

    Patterns say how the slots of the other side are spread, which is then no patterns itself.
    Raises what reading them does, and UCP-E-MISMATCH where both are patterns.
    """
    sides = (_read(first, stack), _read(second, stack))
    values: Settings = dict(settings)
    match sides:
        case (Side() as source, Side() as target):
            if settings:
                raise click.UsageError("--set gives values to the parameters of patterns, and there are none")
            return source, target
        case (Patterns() as patterns, Side() as target):
            return patterns_side(first, patterns, target, values), target
        case (Side() as source, Patterns() as patterns):
            return source, patterns_side(second, patterns, source, values)
        case _:
            raise error(
                "UCP-E-MISMATCH",
                "patterns have no slots of their own: give a checkpoint or an arrangement too",
            )


def open_side(path: str, settings: Sequence[tuple[str, int | list[int]]], stack: ExitStack) -> Side:
    """Read one side that is looked at alone; raises as `open_sides`."""
    side = _read(path, stack)
    if isinstance(side, Patterns):
        raise error("UCP-E-MISMATCH", "patterns have no slots of their own: give --from and --to", at=path)
    if settings:
        raise click.UsageError("--set gives values to the parameters of patterns, and there are none")
    return side


def _read(path: str, stack: ExitStack) -> Side | Patterns:
    if path in pattern_names() and not Path(path).exists():
        return load_patterns(path)
    if "/" not in path and local_path(path) is not None and not os.path.lexists(path):
        near = get_close_matches(path, pattern_names(), n=1)
        hint = (
            f"did you mean the patterns {near[0]!r}?"
            if near
            else f"patterns are {', '.join(pattern_names())}"
        )
        raise error(
            "UCP-E-NOT-FOUND",
            f"nothing lies there, and no ready-made patterns are called so; {hint}",
            at=path,
        )
    if not Path(path).is_file():
        return checkpoint_side(path, stack.enter_context(open_checkpoint(path)))
    value = object_(parse_standalone(Path(path).read_bytes(), at=path), path)
    kind = value.get("kind")
    choice(kind, _KINDS, pointer(path, "kind"))
    if kind == ARRANGEMENT:
        return arrangement_side(path, Arrangement.from_json(value, at=path))
    return Patterns.from_json(value, at=path)
