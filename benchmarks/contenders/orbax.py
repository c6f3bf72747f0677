"""Orbax, as it comes: OCDBT, its own threads, arrays of numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.contenders.base import sync_files

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.state import TrainingState
    from ucpformat.storage.stores.store import Durability

__all__ = ["Orbax"]


@dataclass(frozen=True, slots=True)
class Orbax:
    """A tree of arrays, saved and waited for; restored into new arrays, which are copied into place."""

    name: str = "orbax"
    note: str = "StandardCheckpointer as it comes, which compresses, waited for; restored arrays are copied into place"

    def save(self, state: TrainingState, directory: Path, durability: Durability) -> None:
        """Write the state."""
        from orbax.checkpoint import StandardCheckpointer

        with StandardCheckpointer() as checkpointer:
            checkpointer.save((directory / "state").absolute(), state.atoms)
            checkpointer.wait_until_finished()
        if durability == "fsync":
            for path in [directory, *(path for path in directory.rglob("*") if path.is_dir())]:
                sync_files(path)

    def load(self, directory: Path, into: TrainingState) -> None:
        """Fill the arrays."""
        from orbax.checkpoint import StandardCheckpointer

        with StandardCheckpointer() as checkpointer:
            found = checkpointer.restore((directory / "state").absolute(), into.atoms)
        for atom, slots in into.atoms.items():
            for slot, array in slots.items():
                np.copyto(array, np.asarray(found[atom][slot]))
