"""ucpformat: the open format for distributed training checkpoints.

`open` reads a checkpoint lazily, `save` and `load` keep a state dict, of one process or of all ranks of a job,
`async_save` does so in the background, `CheckpointManager` looks after those of a run, `redistribute` moves one
between ranks, `convert` reads and writes other formats, `inspect`, `diff` and `validate` say what a checkpoint holds,
how two differ, and every problem, `CheckpointWriter` writes piece by piece, `zarr_store` shows a checkpoint to Zarr.
`layouts` has all that layouts are made of, `cadence` how often to save.
SPEC.md is the format.

Names are loaded when they are first used (PEP 562), so that a command waits for nothing that it does not need.
"""

import typing

from ucpformat.storage.reading import zarr_arrival

if typing.TYPE_CHECKING:
    from ucpformat import cadence as cadence
    from ucpformat import layouts as layouts
    from ucpformat.comparison import Comparison, Difference, TensorDifference, diff
    from ucpformat.conversion.convert import ConversionReport, convert
    from ucpformat.distributed.save_options import SaveReport
    from ucpformat.drawing.shards import Drawing, draw
    from ucpformat.errors import (
        ImportRefusedError,
        IntegrityError,
        InvalidCheckpointError,
        LayoutError,
        MismatchError,
        Problem,
        StoreError,
        UcpError,
        UnsupportedError,
    )
    from ucpformat.geometry import Blocks, Flatten, Layout, Mesh, MeshAxis, Only, Shard
    from ucpformat.image_files import ImageSource, image_source
    from ucpformat.inspection.description import inspect
    from ucpformat.integrations.torch_dcp import UcpStorageReader, UcpStorageWriter
    from ucpformat.manager import CheckpointManager
    from ucpformat.model.compressor import Compressor
    from ucpformat.model.pipeline import Pipeline, PipelineStage
    from ucpformat.model.process_image import ProcessImage
    from ucpformat.model.values import NewSeed, PerRankValues
    from ucpformat.process_images import attach, extract
    from ucpformat.reader import Checkpoint
    from ucpformat.reader import open_checkpoint as open  # noqa: A004 - as `tarfile.open` and `zarr.open`
    from ucpformat.repairing import Repair, Restored, repair
    from ucpformat.replay.compressors import TopK
    from ucpformat.replay.recovering import Recovery, recover
    from ucpformat.replay.replica.options import Replica
    from ucpformat.replay.update_log import UpdateLog
    from ucpformat.state_dict.async_save import AsyncSave, AsyncSaver, async_save
    from ucpformat.state_dict.per_rank import PerRank
    from ucpformat.state_dict.redistribution import redistribute
    from ucpformat.state_dict.save_load import load, save
    from ucpformat.state_dict.tensors.local_tensors import TensorLayout
    from ucpformat.validation import Examination, Loss, Survey, examine, validate
    from ucpformat.views import AtomView, SlotView
    from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec
    from ucpformat.zarr_view import zarr_store

    __version__: str

__all__ = [
    "AsyncSave",
    "AsyncSaver",
    "AtomSpec",
    "AtomView",
    "Blocks",
    "Checkpoint",
    "CheckpointManager",
    "CheckpointWriter",
    "Comparison",
    "Compressor",
    "ConversionReport",
    "Difference",
    "Drawing",
    "Examination",
    "Flatten",
    "ImageSource",
    "ImportRefusedError",
    "IntegrityError",
    "InvalidCheckpointError",
    "Layout",
    "LayoutError",
    "Loss",
    "Mesh",
    "MeshAxis",
    "MismatchError",
    "NewSeed",
    "Only",
    "PerRank",
    "PerRankValues",
    "Pipeline",
    "PipelineStage",
    "Problem",
    "ProcessImage",
    "Recovery",
    "Repair",
    "Replica",
    "Restored",
    "SaveReport",
    "Shard",
    "SlotSpec",
    "SlotView",
    "StoreError",
    "Survey",
    "TensorDifference",
    "TensorLayout",
    "TopK",
    "UcpError",
    "UcpStorageReader",
    "UcpStorageWriter",
    "UnsupportedError",
    "UpdateLog",
    "async_save",
    "attach",
    "convert",
    "diff",
    "draw",
    "examine",
    "extract",
    "image_source",
    "inspect",
    "load",
    "open",
    "recover",
    "redistribute",
    "repair",
    "save",
    "validate",
    "zarr_store",
]

# Where each name is; the imports above say the same to type checkers, and a test compares them.
_HOMES: typing.Final = {
    "AsyncSave": "state_dict.async_save",
    "AsyncSaver": "state_dict.async_save",
    "AtomSpec": "writer",
    "AtomView": "views",
    "Blocks": "geometry",
    "Checkpoint": "reader",
    "CheckpointManager": "manager",
    "CheckpointWriter": "writer",
    "Comparison": "comparison",
    "Compressor": "model.compressor",
    "ConversionReport": "conversion.convert",
    "Difference": "comparison",
    "Drawing": "drawing.shards",
    "Examination": "validation",
    "Flatten": "geometry",
    "ImageSource": "image_files",
    "ImportRefusedError": "errors",
    "IntegrityError": "errors",
    "InvalidCheckpointError": "errors",
    "Layout": "geometry",
    "LayoutError": "errors",
    "Loss": "validation",
    "Mesh": "geometry",
    "MeshAxis": "geometry",
    "MismatchError": "errors",
    "NewSeed": "model.values",
    "Only": "geometry",
    "PerRank": "state_dict.per_rank",
    "PerRankValues": "model.values",
    "Pipeline": "model.pipeline",
    "PipelineStage": "model.pipeline",
    "Problem": "errors",
    "ProcessImage": "model.process_image",
    "Recovery": "replay.recovering",
    "Repair": "repairing",
    "Replica": "replay.replica.options",
    "Restored": "repairing",
    "SaveReport": "distributed.save_options",
    "Shard": "geometry",
    "SlotSpec": "writer",
    "SlotView": "views",
    "StoreError": "errors",
    "Survey": "validation",
    "TensorDifference": "comparison",
    "TopK": "replay.compressors",
    "TensorLayout": "state_dict.tensors.local_tensors",
    "UcpError": "errors",
    "UcpStorageReader": "integrations.torch_dcp",
    "UcpStorageWriter": "integrations.torch_dcp",
    "UnsupportedError": "errors",
    "UpdateLog": "replay.update_log",
    "async_save": "state_dict.async_save",
    "attach": "process_images",
    "convert": "conversion.convert",
    "diff": "comparison",
    "draw": "drawing.shards",
    "examine": "validation",
    "extract": "process_images",
    "image_source": "image_files",
    "inspect": "inspection.description",
    "load": "state_dict.save_load",
    "open": "reader",
    "recover": "replay.recovering",
    "redistribute": "state_dict.redistribution",
    "repair": "repairing",
    "save": "state_dict.save_load",
    "validate": "validation",
    "zarr_store": "zarr_view",
}
_OTHER_NAMES: typing.Final = {"open": "open_checkpoint"}


if not typing.TYPE_CHECKING:  # which would take any name for one of ours

    def __getattr__(name: str) -> object:
        from importlib import import_module
        from importlib.util import find_spec

        if name in _HOMES:
            home = import_module(f"{__name__}.{_HOMES[name]}")
            value = getattr(home, _OTHER_NAMES.get(name, name))
        elif name == "__version__":
            from importlib.metadata import version

            value = version(__name__)
        elif not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")  # `ucpformat.geometry.Box` by `import ucpformat` alone
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


zarr_arrival.await_zarr()
