"""The tiny checkpoint of SPEC.md, Appendix B: its objects out of the text, and the text out of its objects."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path
from typing import Final

from tests.spec.document import ROOT

sys.path.insert(0, str(ROOT / "conformance"))

from ucp_conformance.drafting import AtomDraft, Draft, SlotDraft

__all__ = ["appendix", "made", "shown"]

VALUES: Final = (1.0, -2.0, 0.5)
_BEGIN: Final = "The objects, in the order in which a reader meets them:\n"
_END: Final = "\nA table of this checkpoint"
_OBJECT: Final = re.compile(r"`([^`]+)`, (\d+) bytes([^:\n]*):\n\n```text\n(.*?)```\n", re.DOTALL)
_WIDTH: Final = 100


def made() -> dict[str, bytes]:
    """The objects as the format has them: one tensor, in one chunk of one pack."""
    slot = SlotDraft("float32", (3,), struct.pack("<3f", *VALUES))
    files = Draft([AtomDraft("w", {"value": slot})], chunk_bytes=16).files()
    order = ("ucp.json", "index/a1-packs.json", "index/a1-0.json", "index/a1-0.bin", "packs/a1-0-0.pack")
    if set(order) != set(files):
        raise AssertionError(sorted(files))
    return {key: files[key] for key in order}


def _section() -> tuple[str, int, int]:
    text = (ROOT / "SPEC.md").read_text(encoding="utf-8")
    start = text.index(_BEGIN) + len(_BEGIN)
    return text, start, text.index(_END, start)


def shown() -> dict[str, bytes]:
    """The objects as the appendix shows them."""
    text, start, end = _section()
    found = {}
    for key, length, how, block in _OBJECT.findall(text[start:end]):
        if "hexadecimal" in how:
            data = bytes.fromhex("".join(line.partition("  ")[2] for line in block.splitlines()))
        else:
            data = block.replace("\n", "").encode()
        if len(data) != int(length):
            raise AssertionError(f"{key} is said to have {length} bytes and has {len(data)}")
        found[key] = data
    return found


def appendix() -> str:
    """The text that shows `made`."""
    parts = []
    for key, data in made().items():
        if key.endswith(".json"):
            text = data.decode()
            how = ", on one line, cut here"
            lines = [text[at : at + _WIDTH] for at in range(0, len(text), _WIDTH)]
        else:
            how = ", in hexadecimal"
            lines = [f"{at:04x}  {data[at : at + 16].hex(' ')}" for at in range(0, len(data), 16)]
        parts.append(f"\n`{key}`, {len(data)} bytes{how}:\n\n```text\n" + "\n".join(lines) + "\n```\n")
    return "".join(parts)


def rewrite() -> None:
    """Put `appendix` into SPEC.md."""
    text, start, end = _section()
    Path(ROOT / "SPEC.md").write_text(text[:start] + appendix() + text[end:], encoding="utf-8")
