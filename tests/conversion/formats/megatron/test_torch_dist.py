"""What a ``torch_dist`` directory is, and what is refused; tests/frameworks_live/megatron reads Megatron's own."""

from __future__ import annotations

import argparse
import json
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import ucpformat as ucp
from tests.conversion.engine.jobs import write_files
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.conversion.dcp_files.directory import DcpDirectory
from ucpformat.conversion.dcp_files.files_out import ExportTensor, dcp_files
from ucpformat.conversion.formats.megatron.exporter import GROUPS
from ucpformat.conversion.formats.megatron.importer import import_torch_dist
from ucpformat.conversion.formats.megatron.torch_dist import (
    COMMON,
    CONFIG,
    CONFIGURATION,
    assign,
    is_sharded_object,
)
from ucpformat.errors import UcpError

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


def tensor(values: np.ndarray[Any, Any]) -> ExportTensor:
    def read(offset: tuple[int, ...], shape: tuple[int, ...], out: np.ndarray[Any, Any]) -> None:
        box = tuple(slice(a, a + n) for a, n in zip(offset, shape, strict=True))
        out[:] = np.ascontiguousarray(values[box]).reshape(-1).view(np.uint8)

    return ExportTensor(str(values.dtype), values.shape, read)


def write(
    path: Path, common: object = None, objects: dict[str, object] | None = None, **tensors: Any
) -> Path:
    """A directory as Megatron lays it out, by our own writer of DCP."""
    named = {key.replace("__", "."): tensor(value) for key, value in tensors.items()}
    write_files(dcp_files(named, objects or {}, {}), path)
    torch.save({"iteration": 3} if common is None else common, path / COMMON)
    (path / CONFIG).write_text(json.dumps(dict(CONFIGURATION)))
    return path


def refusal(path: Path, **options: Any) -> UcpError:
    with pytest.raises(UcpError) as caught:
        import_torch_dist(path, **options)
    return caught.value


@pytest.mark.parametrize(
    ("key", "atom", "slot"),
    [
        ("decoder.w", "decoder.w", "value"),
        ("optimizer.state.exp_avg.decoder.w", "decoder.w", "exp_avg"),
        ("optimizer.state.param.decoder.w", "decoder.w", "master"),
        ("optimizer.state.fp32_param.decoder.w", "decoder.w", "master"),
        ("chained_1.optimizer.state.exp_avg_sq.decoder.w", "decoder.w", "exp_avg_sq"),
        ("optimizer.state.exp_avg.other", "optimizer.state.exp_avg.other", "value"),
        (
            "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_f.bucket_idx_0.param",
            "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_f.bucket_idx_0.param",
            "value",
        ),
    ],
)
def test_keys_of_states(key: str, atom: str, slot: str) -> None:
    found = assign({"decoder.w"}, key)
    assert (found.name, found.slot) == (atom, slot)


def test_keys_of_sharded_objects() -> None:
    assert is_sharded_object("rng_state/shard_0.1_2.4")
    assert is_sharded_object("a.b._extra_state/shard_3_4")
    assert not is_sharded_object("iteration")
    assert not is_sharded_object("/shard_0_1")
    assert not is_sharded_object("rng_state/shard_0.1")


def test_there_and_back(tmp_path: Path) -> None:
    namespace = argparse.Namespace(lr=0.5, inner=argparse.Namespace(x=(1, 2)), shape=torch.Size([2]))
    common = {"iteration": 3, "args": namespace, "lists": [namespace], "t": torch.arange(3)}
    source = write(
        tmp_path / "in",
        common,
        {"rng_state/shard_0_1": [{"a": 1}]},
        w=WEIGHT,
        optimizer__state__exp_avg__w=WEIGHT + 1,
        optimizer__state__param__w=WEIGHT + 2,
    )
    assert detect_format(source) == "megatron"
    convert_checkpoint(source, tmp_path / "ucp", source_format="megatron", destination_format="ucp")
    with ucp.open(tmp_path / "ucp") as checkpoint:
        assert set(checkpoint["w"]) == {"value", "exp_avg", "master"}
        np.testing.assert_array_equal(checkpoint["w"]["master"][...], WEIGHT + 2)
        assert checkpoint.root.progress is not None
        assert checkpoint.root.progress.step == 3
    convert_checkpoint(tmp_path / "ucp", tmp_path / "out", source_format="ucp", destination_format="megatron")
    with torch.serialization.safe_globals([argparse.Namespace]):
        found = torch.load(tmp_path / "out" / COMMON, weights_only=True)
    assert torch.equal(found.pop("t"), torch.arange(3))
    del common["t"]
    assert found == common
    assert json.loads((tmp_path / "out" / CONFIG).read_text()) == CONFIGURATION


def test_what_other_frameworks_saved(tmp_path: Path) -> None:
    state = {
        "model": {"w": torch.from_numpy(WEIGHT)},
        "optim": {
            "state": {"w": {"exp_avg": torch.from_numpy(WEIGHT) + 1}},
            "param_groups": [{"lr": 0.5, "params": ["w"]}],
        },
    }
    ucp.save(tmp_path / "ucp", state)
    convert_checkpoint(tmp_path / "ucp", tmp_path / "out", source_format="ucp", destination_format="megatron")
    job = import_torch_dist(tmp_path / "out")
    (atom,) = job.atoms
    assert (atom.name, set(atom.slots)) == ("w", {"value", "exp_avg"})
    common = torch.load(tmp_path / "out" / COMMON, weights_only=True)
    assert 0.5 in common[GROUPS].values()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was run",))


def test_nothing_is_run(tmp_path: Path) -> None:
    assert refusal(write(tmp_path / "a", {"args": Evil()}, w=WEIGHT)).code == "UCP-E-PICKLE"
    source = write(tmp_path / "b", w=WEIGHT, objects={"rng/shard_0_1": 1})
    metadata = source / ".metadata"
    metadata.write_bytes(pickle.dumps(Evil()))
    assert refusal(source).code == "UCP-E-PICKLE"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "not a configuration"),
        ("[]", "the backend is None"),
        ('{"sharded_backend": "zarr", "sharded_backend_version": 1}', "the backend is 'zarr'"),
        ('{"sharded_backend": "torch_dist", "sharded_backend_version": 2}', "a version"),
    ],
)
def test_other_formats(tmp_path: Path, config: str, words: str) -> None:
    source = write(tmp_path / "in", w=WEIGHT)
    (source / CONFIG).write_text(config)
    found = refusal(source)
    assert found.code == "UCP-E-SOURCE"
    assert words in found.message
    assert detect_format(source) == "megatron", "and not what would be left of it as torch's"


def test_parts_that_are_missing(tmp_path: Path) -> None:
    source = write(tmp_path / "in", w=WEIGHT)
    (source / COMMON).unlink()
    assert COMMON in str(refusal(source))
    (source / CONFIG).unlink()
    assert CONFIG in str(refusal(source))


def test_content_that_does_not_fit(tmp_path: Path) -> None:
    assert "not a dict" in refusal(write(tmp_path / "a", [1], w=WEIGHT)).message
    assert "not the key" in refusal(write(tmp_path / "b", objects={"rng_state": 1}, w=WEIGHT)).message
    twice = write(
        tmp_path / "c", w=WEIGHT, optimizer__state__param__w=WEIGHT, optimizer__state__fp32_param__w=WEIGHT
    )
    assert "a second 'master'" in refusal(twice).message


def test_extra_states_of_modules(tmp_path: Path) -> None:
    # TransformerEngine keeps io.BytesIO there: carried as it is stored, and written back.
    import io

    key = "decoder.mlp._extra_state/shard_0_1"
    source = write(tmp_path / "in", objects={key: [b"abc"], "other/shard_0_1": [1]}, w=WEIGHT)
    archive = io.BytesIO()
    torch.save([io.BytesIO(b"abc")], archive)
    _replace(tmp_path / "in", key, archive.getvalue())
    convert_checkpoint(source, tmp_path / "ucp", source_format="megatron", destination_format="ucp")
    with ucp.open(tmp_path / "ucp") as checkpoint:
        assert checkpoint.blobs[key] == archive.getvalue()
    convert_checkpoint(tmp_path / "ucp", tmp_path / "out", source_format="ucp", destination_format="megatron")
    assert import_torch_dist(tmp_path / "out").blobs[key][1] == archive.getvalue()


def test_foreign_objects_elsewhere(tmp_path: Path) -> None:
    import io

    key = "rerun_state/shard_0_1"
    source = write(tmp_path / "in", objects={key: [1]}, w=WEIGHT)
    archive = io.BytesIO()
    torch.save([io.BytesIO(b"abc")], archive)
    _replace(source, key, archive.getvalue())
    assert "opaque" in refusal(source).message
    assert import_torch_dist(source, foreign_objects="opaque").blobs[key][1] == archive.getvalue()


def _replace(source: Path, key: str, data: bytes) -> None:
    """Put other bytes in the place of an object: at the end of the file, where the metadata then point."""
    from torch.distributed.checkpoint.metadata import MetadataIndex

    metadata = pickle.loads((source / ".metadata").read_bytes())
    place = metadata.storage_data[MetadataIndex(key)]
    file = source / place.relative_path
    place.offset, place.length = file.stat().st_size, len(data)
    with file.open("ab") as stream:
        stream.write(data)
    (source / ".metadata").write_bytes(pickle.dumps(metadata))


def test_an_extra_state_that_would_run_something_is_refused(tmp_path: Path) -> None:
    import io

    key = "decoder.mlp._extra_state/shard_0_1"
    source = write(tmp_path / "in", objects={key: [b"abc"]}, w=WEIGHT)
    archive = io.BytesIO()
    torch.save([io.BytesIO(b"abc"), Evil()], archive)
    _replace(source, key, archive.getvalue())
    found = refusal(source)
    assert found.code == "UCP-E-PICKLE"
    assert key in found.at


def test_what_a_rank_saved_with_classes_of_arguments(tmp_path: Path) -> None:
    """As the state of Megatron's rerun machine, which names enumerations; the classes are not needed."""
    import io

    key = "rerun/shard_0_1"
    source = write(tmp_path / "in", objects={key: [1], "plain/shard_0_1": [(1, "a")]}, w=WEIGHT)
    archive = io.BytesIO()
    torch.save([{"args": argparse.Namespace(lr=0.5, parts=(1, signal.SIGTERM))}], archive)
    _replace(source, key, archive.getvalue())
    convert_checkpoint(source, tmp_path / "ucp", source_format="megatron", destination_format="ucp")
    convert_checkpoint(tmp_path / "ucp", tmp_path / "out", source_format="ucp", destination_format="megatron")
    directory = DcpDirectory.open(tmp_path / "out")
    stored = io.BytesIO(directory.read_object_bytes(key))
    with torch.serialization.safe_globals([argparse.Namespace, signal.Signals]):
        (found,) = torch.load(stored, weights_only=True)
    assert found == {"args": argparse.Namespace(lr=0.5, parts=(1, signal.SIGTERM))}
    assert directory.read_object("plain/shard_0_1") == [(1, "a")]


def test_a_common_state_of_another_iteration_is_refused(tmp_path: Path) -> None:
    """The directory's name says which it is, where Megatron-LM made it."""
    assert import_torch_dist(write(tmp_path / "iter_0000003", w=WEIGHT)).step == 3
    found = refusal(write(tmp_path / "iter_0000004", w=WEIGHT))
    assert found.code == "UCP-E-SOURCE"
    assert found.at == COMMON
