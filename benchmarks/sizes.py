"""Sizes as they are given on the command line."""

from __future__ import annotations

from typing import Final

import click

__all__ = ["UNITS", "in_bytes"]

UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def in_bytes(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """The callback of an option such as ``64MiB``."""
    number, unit = value[:-3], value[-3:]
    if not number.isdecimal() or unit not in UNITS:
        raise click.BadParameter(f"a size is a number and one of {', '.join(UNITS)}, such as 64MiB")
    return int(number) * UNITS[unit]
