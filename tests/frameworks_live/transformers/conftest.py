"""What the frameworks hold of each case, made once per session by 2 and by 4 ranks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.frameworks_live.transformers.cases import CASES, Case, model
from tests.frameworks_live.transformers.holdings import Array
from tests.frameworks_live.transformers.megatron_cases import MEGATRON_CASES, MegatronCase
from tests.processes import launch

ROOM = "tests.frameworks_live.transformers"


@dataclass(frozen=True)
class Holdings:
    """By family the whole model, and by case what each rank held, by the name of the parameter."""

    whole: Mapping[str, Mapping[str, Array]]
    folder: Path

    def parts(self, case: Case) -> dict[str, dict[int, Array]]:
        """What ranks hold of each parameter; those that have none of it are left out."""
        found: dict[str, dict[int, Array]] = {}
        for rank in range(case.world):
            held = torch.load(self.folder / case.name / f"{rank}.pt", weights_only=True)
            for name, tensor in held.items():
                found.setdefault(name, {})[rank] = tensor.numpy()
        return found


@pytest.fixture(scope="session")
def holdings(tmp_path_factory: pytest.TempPathFactory) -> Holdings:
    """Everything, from two launches."""
    folder = tmp_path_factory.mktemp("holdings")
    whole: dict[str, dict[str, Array]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for family in dict.fromkeys(case.family for case in CASES):
            found = model(family)
            found.save_pretrained(folder / "hub" / family)
            whole[family] = {name: value.detach().numpy() for name, value in found.named_parameters()}
    for world in sorted({case.world for case in CASES}):
        launch(f"{ROOM}.worker", [str(folder)], world)
    return Holdings(whole, folder)


@dataclass(frozen=True)
class MegatronHoldings:
    """By case what each rank of a Megatron-core model held, by the name of the parameter in the whole model."""

    folder: Path

    def parts(self, case: MegatronCase) -> dict[str, dict[int, Array]]:
        """What ranks hold of each parameter; those that have none of it are left out."""
        found: dict[str, dict[int, Array]] = {}
        for rank in range(case.world):
            for name, tensor in self._saved(case, rank)["held"].items():
                found.setdefault(name, {})[rank] = tensor.numpy()
        return found

    def shapes(self, case: MegatronCase) -> dict[str, tuple[int, ...]]:
        """The shapes of the whole parameters, as Megatron-core states them: with the padding of the vocabulary."""
        found: dict[str, tuple[int, ...]] = {}
        for rank in range(case.world):
            found |= self._saved(case, rank)["shapes"]
        return found

    def _saved(self, case: MegatronCase, rank: int) -> Any:
        return torch.load(self.folder / case.name / f"{rank}.pt", weights_only=True)


@pytest.fixture(scope="session")
def megatron(tmp_path_factory: pytest.TempPathFactory) -> MegatronHoldings:
    """Everything, from two launches."""
    folder = tmp_path_factory.mktemp("megatron")
    for world in sorted({case.world for case in MEGATRON_CASES}):
        launch(f"{ROOM}.megatron_worker", [str(folder)], world)
    return MegatronHoldings(folder)
