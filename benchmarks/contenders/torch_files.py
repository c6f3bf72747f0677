"""PyTorch's distributed checkpoint, ``torch.save``, and safetensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.contenders.base import sync_directories, sync_files

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.state import TrainingState
    from ucpformat.storage.stores.store import Durability

__all__ = ["Safetensors", "TorchDcp", "TorchSave"]


@dataclass(frozen=True, slots=True)
class TorchDcp:
    """One process, two threads, two files."""

    name: str = "torch-dcp"
    note: str = "dcp.save and dcp.load, no_dist, thread_count=2; nothing is checked"

    def save(self, state: TrainingState, directory: Path, durability: Durability) -> None:
        """Write the state."""
        from torch.distributed.checkpoint import state_dict_saver
        from torch.distributed.checkpoint.filesystem import FileSystemWriter

        writer = FileSystemWriter(directory, thread_count=2, sync_files=durability == "fsync")
        state_dict_saver.save(dict(state.tensors), storage_writer=writer, no_dist=True)
        if durability == "fsync":
            sync_directories(directory)

    def load(self, directory: Path, into: TrainingState) -> None:
        """Fill the arrays."""
        from torch.distributed.checkpoint import state_dict_loader
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        state_dict_loader.load(dict(into.tensors), storage_reader=FileSystemReader(directory), no_dist=True)


@dataclass(frozen=True, slots=True)
class TorchSave:
    """One zip file; loaded by mapping it and copying."""

    name: str = "torch-save"
    note: str = "torch.save; torch.load with mmap and weights_only, copied into place; nothing is checked"

    def save(self, state: TrainingState, directory: Path, durability: Durability) -> None:
        """Write the state."""
        import torch

        torch.save(state.tensors, directory / "state.pt")
        if durability == "fsync":
            sync_files(directory)

    def load(self, directory: Path, into: TrainingState) -> None:
        """Fill the arrays."""
        import torch

        _copy(torch.load(directory / "state.pt", mmap=True, weights_only=True), into)


@dataclass(frozen=True, slots=True)
class Safetensors:
    """One file; mapped by the library and copied."""

    name: str = "safetensors"
    note: str = "safetensors.torch.save_file and load_file, copied into place; nothing is checked"

    def save(self, state: TrainingState, directory: Path, durability: Durability) -> None:
        """Write the state."""
        from safetensors.torch import save_file

        save_file(state.tensors, directory / "state.safetensors")
        if durability == "fsync":
            sync_files(directory)

    def load(self, directory: Path, into: TrainingState) -> None:
        """Fill the arrays."""
        from safetensors.torch import load_file

        _copy(load_file(directory / "state.safetensors"), into)


def _copy(loaded: dict[str, Any], into: TrainingState) -> None:
    for name, tensor in into.tensors.items():
        tensor.copy_(loaded[name])
