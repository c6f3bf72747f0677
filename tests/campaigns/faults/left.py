"""What lies where a scenario has ended."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

import ucpformat as ucp
from tests.campaigns.faults.state import IMAGE, IMAGE_DATA, state
from ucpformat.conversion.contract.registry import UCP
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.errors import UcpError
from ucpformat.model.root import ROOT_KEY

__all__ = ["harm_of", "harm_of_export", "is_committed"]


def is_committed(path: Path) -> bool:
    """Whether a root document lies there."""
    return (path / ROOT_KEY).exists()


def harm_of(path: Path, number: int, *, only_weights: bool = False) -> str | None:
    """What is wrong with a committed checkpoint."""
    problems = [problem for problem in ucp.validate(path, workers=1) if problem.severity == "error"]
    if problems:
        return f"{problems[0].code} at {problems[0].at}"
    found, expected = ucp.load(path), state(number)
    model = found.get("model", found)
    if any(not np.array_equal(model[name], array) for name, array in expected["model"].items()):
        return "it holds something else"
    if not only_weights and found["step"] != number:
        return "it is of another step"
    return None


def harm_of_export(path: Path, format_name: str, number: int) -> str:
    """``absent``, ``refused`` by the reader of its format, ``whole``, or what is wrong with it."""
    if not path.exists():
        return "absent"
    if format_name == "image":
        files = {file.name: file.read_bytes() for file in path.iterdir()}
        return "whole" if files == {IMAGE: IMAGE_DATA} else f"not whole: it has {sorted(files)}"
    read = path.with_name("read.ucp")
    try:
        convert_checkpoint(
            path,
            read,
            source_format=detect_format(path),
            destination_format=UCP,
            engine=EngineOptions(durability="none", workers=1, pool="threads"),
        )
    except UcpError:
        return "refused"
    try:
        return harm_of(read, number, only_weights=format_name == "safetensors") or "whole"
    finally:
        shutil.rmtree(read)
