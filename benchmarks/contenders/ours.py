"""The library itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ucpformat.model.dtype import dtype_of
from ucpformat.reader import open_checkpoint
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.state import TrainingState
    from ucpformat.model.root import Storage
    from ucpformat.storage.stores.store import Durability

__all__ = ["NAME", "Ours", "OursSlotBySlot", "OursUnverified", "load_state", "save_state"]

NAME: Final = "state.ucp"


@dataclass(frozen=True, slots=True)
class Ours:
    """Whole slots are submitted, and loaded into place; every byte is checked on the way in."""

    storage: Storage

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"ucp-{self.storage}"

    @property
    def note(self) -> str:
        """How it is used."""
        return (
            f"CheckpointWriter.submit and Checkpoint.load, storage {self.storage}, CRC-32C made and verified"
        )

    def save(self, state: TrainingState, directory: Path, durability: Durability) -> None:
        """Write the state."""
        save_state(directory, state, self.storage, durability)

    def load(self, directory: Path, into: TrainingState) -> None:
        """Fill the arrays."""
        load_state(directory, into, verify=True)


@dataclass(frozen=True, slots=True)
class OursSlotBySlot(Ours):
    """The same, read one slot after the other."""

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"ucp-{self.storage}-by-slot"

    @property
    def note(self) -> str:
        """How it is used."""
        return f"the same, storage {self.storage}, each slot read by SlotView.read, CRC-32C verified"

    def load(self, directory: Path, into: TrainingState) -> None:
        """Fill the arrays."""
        with open_checkpoint(_within(directory)) as checkpoint:
            for atom, slots in into.atoms.items():
                view = checkpoint[atom]
                for slot, array in slots.items():
                    view[slot].read(out=array)


@dataclass(frozen=True, slots=True)
class OursUnverified(Ours):
    """The same, with the checksums left alone on the way in."""

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"ucp-{self.storage}-unverified"

    @property
    def note(self) -> str:
        """How it is used."""
        return f"the same, storage {self.storage}, checksums made but not verified"

    def load(self, directory: Path, into: TrainingState) -> None:
        """Fill the arrays."""
        load_state(directory, into, verify=False)


def save_state(
    directory: Path | str, state: TrainingState, storage: Storage = "packed", durability: Durability = "fsync"
) -> None:
    """Submit every slot, to a checkpoint in a directory or below a URL."""
    specs = [
        AtomSpec(
            atom,
            {slot: SlotSpec(dtype_of(array.dtype).name, array.shape) for slot, array in slots.items()},
        )
        for atom, slots in state.atoms.items()
    ]
    with CheckpointWriter(_within(directory), specs, storage=storage, durability=durability) as writer:
        for atom, slots in state.atoms.items():
            for slot, array in slots.items():
                writer.submit(atom, slot, array)


def load_state(directory: Path | str, into: TrainingState, *, verify: bool) -> None:
    """Fill the arrays from what `save_state` has written there."""
    with open_checkpoint(_within(directory), verify=verify) as checkpoint:
        checkpoint.load(
            {(atom, slot): array for atom, slots in into.atoms.items() for slot, array in slots.items()}
        )


def _within(directory: Path | str) -> str:
    return f"{directory}/{NAME}"
