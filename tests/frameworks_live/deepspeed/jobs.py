"""What several tests of DeepSpeed's files do: let a worker make its cases, and convert what it made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.processes import launch
from ucpformat.conversion.convert import convert_checkpoint, detect_format

__all__ = ["converted", "made_by"]


def made_by(worker: str, cases: Iterable[str], factory: pytest.TempPathFactory, job: str = "make:") -> Path:
    """A folder with one of each case, which four ranks of ``worker`` made in one launch."""
    folder = factory.mktemp(worker)
    jobs = []
    for name in cases:
        (folder / name).mkdir()
        jobs.append(f"{job}{name}:{folder / name}")
    launch(f"tests.frameworks_live.deepspeed.{worker}", jobs, 4, timeout=280)
    return folder


def converted(
    source: Path, out: Path, settings: Mapping[str, str] | None = None, drop: Sequence[str] = ()
) -> Path:
    """What DeepSpeed saved as a checkpoint of ours."""
    assert detect_format(source) == "deepspeed"
    convert_checkpoint(
        source,
        out,
        source_format="deepspeed",
        destination_format="ucp",
        source_settings=settings or {},
        drop=drop,
    )
    return out
