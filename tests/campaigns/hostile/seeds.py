"""Small sources of every format that is read, as frameworks write them: what fuzzing and forging begin with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from tests.conversion.engine.jobs import carry_out
from tests.conversion.formats.deepspeed.made import make_checkpoint
from tests.conversion.formats.megatron.test_classic import saved as classic
from tests.conversion.formats.megatron.test_torch_dist import WEIGHT
from tests.conversion.formats.megatron.test_torch_dist import write as torch_dist
from tests.conversion.formats.torch_save.test_directories import saved as accelerate
from tests.conversion.jobs import job_of
from tests.conversion.test_sweeps import model
from tests.documentation.rooms import stock_dcp
from tests.forgeries import make
from ucpformat.conversion.contract.content import Content
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.formats.orbax.exporter import export_orbax

__all__ = ["SEEDS", "SUFFIXES", "Document", "document_of", "seeds_of", "written"]

Document: TypeAlias = Mapping[str, bytes]
"""The files of a source by their place below it; a source that is one file has ``""``."""


def document_of(source: Path) -> Document:
    """The files of a source."""
    if source.is_file():
        return {"": source.read_bytes()}
    return {
        str(path.relative_to(source)): path.read_bytes()
        for path in sorted(source.rglob("*"))
        if path.is_file()
    }


def written(document: Document, place: Path) -> Path:
    """A source with these files at ``place``, where nothing is."""
    for name, data in document.items():
        path = place / name if name else place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return place


def _ucp(folder: Path) -> None:
    for kind in ("packed", "boxed", "plain", "gzip", "zstd", "blosc", "plain gzip"):
        make(folder / kind.replace(" ", "-"), kind)
    make_checkpoint(folder / "training", kind="float32")


def _deepspeed(folder: Path) -> None:
    source = make_checkpoint(folder.parent / "deepspeed.source")
    for stage in ("0", "1", "3"):
        settings = {"stage": stage, "world_size": "2"}
        convert_checkpoint(
            source, folder / stage, source_format="ucp", destination_format="deepspeed", settings=settings
        )


def _universal(folder: Path) -> None:
    source = make_checkpoint(folder.parent / "universal.source")
    convert_checkpoint(source, folder / "a", source_format="ucp", destination_format="ds-universal")


def _safetensors(folder: Path) -> None:
    folder.mkdir()
    model(folder / "model")
    (folder / "one.safetensors").write_bytes(
        (folder / "model" / "model-00001-of-00002.safetensors").read_bytes()
    )
    (folder / "one.safetensors").rename(folder / "a.safetensors")


def _torch_save(folder: Path) -> None:
    folder.mkdir()
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(3)).sum().backward()
    optimizer.step()
    state = {
        "model": layer.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "mask": torch.tensor([True, False, True]),
        "view": torch.arange(12.0).reshape(3, 4).t(),
        "names": ["a", {"b": (1, 2.5, None)}, {1, 2}],
        "numbers": np.arange(3),
    }
    torch.save(state, folder / "a.pt")
    torch.save(state, folder / "old.pt", _use_new_zipfile_serialization=False)


def _ranks(folder: Path) -> None:
    """Two ranks' files with sharded tensors, made one after the other."""
    import torch.distributed as dist
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    from torch.testing._internal.distributed.fake_pg import FakeStore

    (folder / "a").mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rank in range(2):
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
            try:
                spec = ChunkShardingSpec(0, ["rank:0/cpu", "rank:1/cpu"])
                found: Any = sharded_tensor.zeros(spec, 4, 3)
                state = {"model": {"w": found, "b": torch.ones(2)}, "step": 1, "seed": rank}
                torch.save(state, folder / "a" / f"state-rank{rank}.pt")
            finally:
                dist.destroy_process_group()


def _megatron(folder: Path) -> None:
    folder.mkdir()
    tensors = {
        "w": WEIGHT,
        "optimizer__state__exp_avg__w": WEIGHT + 1,
        "optimizer__state__param__w": WEIGHT + 2,
    }
    common = {"iteration": 3, "args": {"lr": 0.5}, "lists": [1, (2, 3)], "t": torch.arange(3)}
    torch_dist(folder / "a", common, {"rng_state/shard_0_1": [{"a": 1}]}, **tensors)


def _orbax(folder: Path) -> None:
    folder.mkdir()
    arrays: dict[str, dict[str, Any]] = {
        "w": {"value": np.arange(6, dtype=np.float32), "exp_avg": np.ones(6), "step": np.asarray(3.0)},
        "mask": {"value": np.array([[True, False], [True, True]])},
    }
    for ocdbt in ("true", "false"):
        for zarr in ("2", "3"):
            settings = {"ocdbt": ocdbt, "zarr": zarr}
            path = folder / f"{ocdbt}-{zarr}"
            carry_out(export_orbax(Content(job_of(arrays)), path, settings=settings), path)


def _dcp(folder: Path) -> None:
    folder.mkdir()
    stock_dcp(folder / "a", 4)


def _classic(folder: Path) -> None:
    folder.mkdir()
    for is_sharded in (False, True):
        place = folder / ("sharded" if is_sharded else "plain")
        classic(folder, is_sharded=is_sharded).rename(place)


def _accelerate(folder: Path) -> None:
    folder.mkdir()
    accelerate(folder / "a")


SEEDS: Final[Mapping[str, Callable[[Path], None]]] = {
    "accelerate": _accelerate,
    "dcp": _dcp,
    "deepspeed": _deepspeed,
    "ds-universal": _universal,
    "megatron": _megatron,
    "megatron-classic": _classic,
    "orbax": _orbax,
    "safetensors": _safetensors,
    "torch-ranks": _ranks,
    "torch-save": _torch_save,
    "ucp": _ucp,
}
"""By format, what makes its sources in a folder that is not there."""

SUFFIXES: Final[Mapping[str, str]] = {"safetensors": ".safetensors", "torch-save": ".pt"}
"""Of formats whose sources may be single files."""


def seeds_of(format_name: str, folder: Path) -> list[Document]:
    """Sources of a format, made below ``folder`` unless they are there."""
    place = folder / format_name
    folder.mkdir(parents=True, exist_ok=True)
    if not place.is_dir():
        SEEDS[format_name](place)
    return [document_of(path) for path in sorted(place.iterdir())]
