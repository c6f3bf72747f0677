"""The DCP checkpoints that tests read, with their references; see `make` for what each case is.

``dcp_case`` is a session fixture: ``dcp_case("fsdp_4")`` starts the processes of that world size once and
returns a `Case`. Import the fixture into a ``conftest.py`` to use it. ``UCP_DCP_CASES`` may name a directory that
`make` has already filled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.processes import launch

CASES = {
    4: (
        "fsdp_4",
        "fsdp_4_zstd",
        "fsdp_4_files",
        "fsdp_4_per_rank",
        "hf_shards_4",
        "hf_consolidated_4",
        "hf_whole",
        "fsdp_4_per_rank_rng",
        "hsdp_2x2",
        "hsdp_2x2_per_rank",
        "fsdp_tp_2x2",
        "fsdp_tp_2x2_flattened",
    ),
    2: ("fsdp_2", "tp_2", "fsdp_2_model"),
    1: ("single", "odd", "odd_zstd"),
}
ALL_CASES = tuple(name for names in CASES.values() for name in names)
SHARD_COUNTS = {"hf_shards_4": 4}


@dataclass(frozen=True)
class Reference:
    """A full tensor: torch's (and Zarr's) dtype name, shape, little-endian bytes in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Case:
    """``path`` is the DCP directory, ``reference`` every tensor by DCP key, ``objects`` everything else.

    ``shard_count`` is what `DcpDirectory.open` needs beside the path.
    """

    name: str
    path: Path
    reference: dict[str, Reference]
    objects: dict[str, Any]
    shard_count: int | None


DcpCase = Callable[[str], Case]


def load_case(folder: Path, name: str) -> Case:
    """Read the case that `make` left in ``folder``."""
    import torch

    table = json.loads((folder / name / "reference.json").read_text())
    data = (folder / name / "reference.bin").read_bytes()
    reference = {
        key: Reference(dtype, tuple(shape), data[start : start + length])
        for key, (dtype, shape, start, length) in table.items()
    }
    # Our own file, written a moment ago.
    objects = torch.load(folder / name / "objects.pt", weights_only=False)
    return Case(name, folder / name / "dcp", reference, objects, SHARD_COUNTS.get(name))


@pytest.fixture(scope="session")
def dcp_case(tmp_path_factory: pytest.TempPathFactory) -> DcpCase:
    """Return the function that makes (once) and loads a case by name."""
    given = os.environ.get("UCP_DCP_CASES")
    # Several conftest files import the fixture: each has its own, and they share what was made.
    folder = Path(given) if given else tmp_path_factory.getbasetemp() / "dcp_cases"
    folder.mkdir(exist_ok=True)
    loaded: dict[str, Case] = {}

    def case(name: str) -> Case:
        if name not in loaded:
            world = next(size for size, names in CASES.items() if name in names)
            if not (folder / CASES[world][-1] / "reference.json").exists():
                launch("tests.conversion.formats.dcp.make", [str(folder)], world)
            loaded[name] = load_case(folder, name)
        return loaded[name]

    return case
