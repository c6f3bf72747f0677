"""Checkpoints that the real DeepSpeed writes, once per session: every case under 2, 3 and 4 data-parallel ranks."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.frameworks_live.deepspeed.cases import CASES
from tests.frameworks_live.deepspeed.jobs import made_by
from tests.frameworks_live.deepspeed.make_pipe import MADE
from tests.processes import launch

# The CPU accelerator; at its first use DeepSpeed compiles a small kernel for it. Environments that share the place of
# the result would compile it anew in turns, and a build that was stopped keeps all others waiting.
os.environ["DS_ACCELERATOR"] = "cpu"
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))


@pytest.fixture(scope="session", autouse=True)
def kernel() -> None:
    """Compile the kernel where nothing else runs against time."""
    launch("tests.frameworks_live.deepspeed.kernel", [], 1, timeout=560)


@dataclass(frozen=True)
class Saved:
    """A checkpoint, the buffers of its ranks as they lay in memory, and what DeepSpeed's own API gathered."""

    name: str
    degree: int
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "ckpt"

    @property
    def reference(self) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(self.folder / "reference.pt", weights_only=True)
        return found

    def buffers(self, rank: int, when: str = "buffers") -> list[torch.Tensor]:
        found: list[torch.Tensor] = torch.load(self.folder / f"{when}-{rank}.pt", weights_only=True)
        return found


class Library:
    """Makes what is asked for, all cases of a degree at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: set[int] = set()

    def get(self, name: str, degree: int) -> Saved:
        if degree not in self.made:
            names = [name for name, case in CASES.items() if degree in case.degrees]
            launch("tests.frameworks_live.deepspeed.make", [str(self.root), *names], degree, timeout=560)
            self.made.add(degree)
        return Saved(name, degree, self.root / f"{name}-dp{degree}")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(tmp_path_factory.mktemp("deepspeed"))


@pytest.fixture(scope="session")
def pipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pipeline of each kind that four ranks saved."""
    return made_by("make_pipe", MADE, tmp_path_factory)


@pytest.fixture(params=[f"{name}-dp{degree}" for name in CASES for degree in CASES[name].degrees])
def saved(request: pytest.FixtureRequest, library: Library) -> Saved:
    name, _, degree = request.param.rpartition("-dp")
    return library.get(name, int(degree))
