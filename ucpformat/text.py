"""Names and sizes for people: on one line, without anything that speaks to a terminal, and short."""

from __future__ import annotations

from typing import Final

__all__ = ["counted", "human_bytes", "printable", "shortened"]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def printable(text: str) -> str:
    """Return ``text`` on one line, with what speaks to a terminal instead of a reader written as an escape."""
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode()
        for sign in text
    )


def counted(count: int, what: str) -> str:
    """Return a count with what is counted, whose plural has an s: ``1 step``, ``2,000 steps``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def human_bytes(count: int) -> str:
    """Return a number of bytes with a binary unit, three digits or so: ``1.50 GiB``."""
    size, unit = float(count), 0
    while size >= 1024 and unit + 1 < len(_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.2f} {_UNITS[unit]}"


def shortened(text: str, width: int) -> str:
    """Return a text of at most ``width`` characters, with what is left out in its middle marked.

    >>> shortened("layers.0.self_attn.q_proj.weight", 16)
    'layers.…j.weight'
    """
    if len(text) <= width:
        return text
    tail = width // 2
    return f"{text[: width - tail - 1]}…{text[len(text) - tail :]}" if width > 2 else text[:width]
