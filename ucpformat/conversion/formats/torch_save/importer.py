"""Files of ``torch.save``: plain state dicts, training states, Lightning's ``.ckpt``.

Lightning's files are such files, with the model under ``state_dict``; every entry keeps its own path, so that the
way back restores them all (lightning/pytorch/trainer/connectors/checkpoint_connector.py, ``dump_checkpoint``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ucpformat.conversion.formats.torch_save.leaves import Leaves
from ucpformat.errors import UcpError
from ucpformat.tensor_files.byte_source import open_range
from ucpformat.tensor_files.deepspeed_globals import DEEPSPEED_GLOBALS
from ucpformat.tensor_files.legacy_archive import LEGACY
from ucpformat.tensor_files.object_tree import Instance
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.stand_ins import CONFIGURATIONS, INERT, ConfigurationDraft
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.unpickle import Constructor, Globals

if TYPE_CHECKING:
    from ucpformat.conversion.contract.job import Job

__all__ = ["FORMAT", "TORCH_SAVE_GLOBALS", "detect", "import_torch_save", "models_in"]

FORMAT: Final = "torch-save"
_LIGHTNING: Final = "pytorch-lightning_version"
_DIRECTORY: Final = 1 << 20
_STEPS: Final = ("global_step", "step", "iteration", "global_steps")

# A dict whose members are attributes too, in which Lightning keeps hyper-parameters: it comes in as a dict.
_DICTS: Final = (
    ("lightning.fabric.utilities.data", "AttributeDict"),
    ("lightning_fabric.utilities.data", "AttributeDict"),
    ("pytorch_lightning.utilities.parsing", "AttributeDict"),
    ("lightning.pytorch.utilities.parsing", "AttributeDict"),
)


def _configuration(name: str, member: str) -> Constructor:
    def call(arguments: tuple[Any, ...]) -> object:
        if arguments:
            raise ValueError(f"{name} is filled, not called")
        return ConfigurationDraft(member)

    return Constructor(name, call)


def _inert(name: str) -> Constructor:
    def call(arguments: tuple[Any, ...]) -> object:
        if arguments:
            raise ValueError(f"{name} takes no arguments")
        return Instance(name)

    return Constructor(name, call)


def _named_only(arguments: tuple[Any, ...]) -> object:
    raise ValueError("this may be named but not called")


def _dict(arguments: tuple[Any, ...]) -> object:
    if arguments:
        raise ValueError("AttributeDict is filled, not called")
    return {}


TORCH_SAVE_GLOBALS: Final[Globals] = {
    **DEEPSPEED_GLOBALS,
    **{name: Constructor("AttributeDict", _dict) for name in _DICTS},
    **{name: _configuration(name[1], member) for name, member in CONFIGURATIONS.items()},
    **{name: _inert(name[1]) for name in INERT},
    ("typing", "Any"): Constructor("Any", _named_only),
}
"""What a file may name beyond plain data and torch's tensors; all of it inert."""


def detect(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is one file that ``torch.save`` wrote, in its present form or the old one; runs nothing.

    Of ``torch.jit.save``, too: what that wrote is refused by its name.
    """
    file = Path(path)
    try:
        if not file.is_file():
            return False
        with open_range(file, 0, file.stat().st_size, file.name) as source:
            head = source.read(0, min(len(LEGACY), source.size))
            if not head.startswith(b"PK"):
                return head == LEGACY
            # As in the directory at the end, which an archive of torch.jit has, too: that is refused by its name.
            end = min(source.size, _DIRECTORY)
            return b"/data.pkl" in source.read(source.size - end, end)
    except (OSError, ValueError, UcpError):
        return False


def import_torch_save(path: str | os.PathLike[str], *, order: str = "") -> Job:
    """Plan the conversion of a file; nothing in it is run, no tensor is read yet. ``order`` is that of `Leaves.job`.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for what is damaged, of the old format or no state dict, ``UCP-E-PICKLE``
            and ``UCP-E-OBJECT`` for what is not plain data; each names the file.
    """
    files, name = SourceFiles.beside(Path(path))
    file = TorchFile(files, name, TORCH_SAVE_GLOBALS)
    leaves = Leaves()
    leaves.add_file(file, file.tree)
    leaves.models.update(dict.fromkeys(models_in(file.tree)))
    return leaves.job(FORMAT, step=_step(file.tree), order=order)


def models_in(tree: object) -> list[tuple[str, ...]]:
    """Return where a file has a model's state dict that is not called ``model``."""
    if isinstance(tree, Mapping) and "model" not in tree and isinstance(tree.get("state_dict"), Mapping):
        return [("state_dict",)]
    return []


def _step(tree: object) -> int | None:
    steps = [tree.get(name) for name in _STEPS] if isinstance(tree, Mapping) else []
    return next((step for step in steps if type(step) is int and 0 <= step < 2**53), None)
