"""Exports a small checkpoint and a large one to every format, and prints how much more memory the large one took.

``python -m tests.conversion.engine.export_memory SMALL LARGE OUT``: a process of its own, whose peak is its own.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.engine.options import EngineOptions

WAYS: dict[str, dict[str, Any]] = {
    "deepspeed": {"settings": {"stage": "3", "world_size": "2"}},
    "ds-universal": {},
    "dcp": {},
    "megatron": {},
    "torch-save": {},
    "safetensors": {"drop": ["*/exp_avg*", "*/step", "*/master", "optimizers/*", "values/*"]},
    "orbax": {},
}


def peak() -> int:
    """The most bytes of memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def export(source: Path, format_name: str, out: Path, memory: int) -> None:
    convert_checkpoint(
        source,
        out,
        source_format="ucp",
        destination_format=format_name,
        engine=EngineOptions(durability="none", memory=memory, workers=8),
        **WAYS[format_name],
    )
    if out.is_dir():
        shutil.rmtree(out)
    else:
        out.unlink()


def main(small: Path, large: Path, out: Path, memory: int) -> None:
    for format_name in WAYS:
        export(small, format_name, out, memory)
    grown = {}
    for format_name in WAYS:
        before = peak()
        export(large, format_name, out, memory)
        grown[format_name] = peak() - before
    print(json.dumps(grown))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
