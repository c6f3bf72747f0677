"""ucpformat: the open format for distributed training checkpoints.

`open` reads a checkpoint lazily, `save` and `load` keep a state dict, of one process or of all ranks of a job,
`async_save` does so in the background, `CheckpointManager` looks after those of a run, `redistribute` moves one
between ranks, `validate` finds every problem, `CheckpointWriter` writes piece by piece, `zarr_store` shows a
checkpoint to Zarr.
SPEC.md is the format.
"""

from importlib.metadata import version

from ucpformat.errors import Problem, UcpError
from ucpformat.frameworks.live.async_save import AsyncReport, AsyncSave, AsyncSaver, async_save
from ucpformat.frameworks.live.local_tensors import Held
from ucpformat.frameworks.live.per_rank import PerRank
from ucpformat.frameworks.live.redistribution import redistribute
from ucpformat.frameworks.live.state_dict import load, save
from ucpformat.geometry import Blocks, Flatten, Layout, Mesh, MeshAxis, Only, Shard
from ucpformat.manager import CheckpointManager
from ucpformat.model.compressor import Compressor
from ucpformat.model.values import NewSeed, PerRankValues
from ucpformat.reader import Checkpoint
from ucpformat.reader import open_checkpoint as open  # noqa: A004 - as `tarfile.open` and `zarr.open`
from ucpformat.validate import validate
from ucpformat.views import AtomView, SlotView
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec
from ucpformat.zarr_view import zarr_store

__version__ = version("ucpformat")

__all__ = [
    "AsyncReport",
    "AsyncSave",
    "AsyncSaver",
    "AtomSpec",
    "AtomView",
    "Blocks",
    "Checkpoint",
    "CheckpointManager",
    "CheckpointWriter",
    "Compressor",
    "Flatten",
    "Held",
    "Layout",
    "Mesh",
    "MeshAxis",
    "NewSeed",
    "Only",
    "PerRank",
    "PerRankValues",
    "Problem",
    "Shard",
    "SlotSpec",
    "SlotView",
    "UcpError",
    "async_save",
    "load",
    "open",
    "redistribute",
    "save",
    "validate",
    "zarr_store",
]
