"""Files that a framework wrote, changed in one place: what an importer must refuse or read, and never trip over."""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import torch

from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.errors import UcpError

GONE = object()

replacements = st.sampled_from(
    [
        GONE,
        None,
        True,
        0,
        -1,
        3,
        1 << 70,
        1.5,
        "",
        "odd",
        b"odd",
        [],
        [None],
        (),
        {},
        {"odd": 1},
        {0: {}},
        {"odd": torch.ones(2)},
        torch.ones(0),
        torch.ones(3),
        torch.ones(2, 2, dtype=torch.int64),
        torch.tensor(5.0),
        torch.Size([2, 3]),
        torch.float32,
        torch.qint8,
        1 << 4000,
        "9" * 5000,
        "model" + "9" * 5000,
        torch.ones(2, 6)[:, 1],
    ]
)


def places(tree: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Containers of a tree, and the keys under which something is in them."""
    if depth < 8:
        items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
        for key, value in items:
            yield tree, key
            yield from places(vars(value) if isinstance(value, Namespace) else value, depth + 1)


def mutated(path: Path, draw: st.DataObject) -> None:
    """Change a file that ``torch.save`` wrote: one value of its tree, or one byte of the file."""
    if draw.draw(st.integers(0, 3), label="byte or value") == 0:
        data = bytearray(path.read_bytes())
        place = draw.draw(st.integers(0, len(data) - 1), label="byte")
        data[place] ^= draw.draw(st.integers(1, 255), label="flip")
        path.write_bytes(data)
        return
    tree = torch.load(path, weights_only=False)
    found = list(places(tree))
    container, key = found[draw.draw(st.integers(0, len(found) - 1), label="place")]
    value = draw.draw(replacements, label=f"instead of {key!r:.60}")
    if value is GONE:
        del container[key]
    elif draw.draw(st.booleans(), label="as a key") and isinstance(container, dict):
        container[value if isinstance(value, str | int | bytes | torch.dtype) else "odd"] = container.pop(key)
    else:
        container[key] = value
    torch.save(tree, path)


def is_read_or_refused(
    source: Path,
    source_format: str,
    scratch: Path,
    draw: st.DataObject,
    settings: Mapping[str, str] | None = None,
) -> bool:
    """Convert a copy of ``source`` of which one file was changed; whether it was refused. Anything else raises."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(source, scratch / "copy")
    files = sorted(path for path in (scratch / "copy").rglob("*.pt"))
    mutated(draw.draw(st.sampled_from(files), label="file"), draw)
    try:
        convert_checkpoint(
            scratch / "copy",
            scratch / "out.ucp",
            source_format=source_format,
            destination_format="ucp",
            source_settings=settings or {},
        )
    except UcpError:
        return True
    return False
