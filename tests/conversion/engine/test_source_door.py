"""The one door of importers: names, links, what is not read, expansion, and bytes that no type has."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.state_dict_saver import save

import ucpformat
from ucpformat.conversion.convert import ConversionReport, convert_checkpoint, detect_format
from ucpformat.errors import UcpError


def save_dcp(state: dict[str, torch.Tensor], path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is one process
        save(state, checkpoint_id=path, no_dist=True)


def converted(source: Path, out: Path, **options: object) -> ConversionReport:
    """Convert into a universal checkpoint, which validates."""
    format_name = detect_format(source)
    report = convert_checkpoint(source, out, source_format=format_name, destination_format="ucp", **options)  # type: ignore[arg-type]
    if not options.get("dry_run"):
        assert ucpformat.validate(out) == []
    return report


def test_a_snapshot_of_hugging_faces_cache_is_read(tmp_path: Path) -> None:
    """Its files are links to ``blobs`` of the same repository; a link to anything else is refused."""
    repository = tmp_path / "models--org--name"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    save_file({"w": torch.arange(4.0)}, blobs / "aaaa")
    (blobs / "bbbb").write_text("{}")
    (snapshot / "model.safetensors").symlink_to("../../blobs/aaaa")
    (snapshot / "config.json").symlink_to("../../blobs/bbbb")
    converted(snapshot, tmp_path / "a.ucp")
    converted(snapshot / "model.safetensors", tmp_path / "b.ucp")
    with ucpformat.open(tmp_path / "a.ucp") as checkpoint:
        assert checkpoint["w"]["value"].read().tolist() == [0, 1, 2, 3]
    (tmp_path / "secret").write_text("x")
    (snapshot / "secret.json").symlink_to("../../../secret")
    with pytest.raises(UcpError) as refusal:
        converted(snapshot, tmp_path / "c.ucp")
    assert (refusal.value.code, refusal.value.at) == ("UCP-E-LINK", "secret.json")


def test_only_the_cache_has_blobs(tmp_path: Path) -> None:
    """A directory that merely has links is none of its snapshots."""
    save_file({"w": torch.arange(4.0)}, tmp_path / "elsewhere")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").symlink_to("../elsewhere")
    with pytest.raises(UcpError) as refusal:
        converted(tmp_path / "model", tmp_path / "a.ucp")
    assert refusal.value.code == "UCP-E-LINK"


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt"])
def test_a_link_that_the_user_names_is_followed(tmp_path: Path, name: str) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").mkdir()
    target = tmp_path / "far" / name
    if name.endswith("pt"):
        torch.save({"w": torch.ones(3)}, target)
    else:
        save_file({"w": torch.ones(3)}, target)
    (tmp_path / "near" / name).symlink_to(target)
    assert converted(tmp_path / "near" / name, tmp_path / "a.ucp").tensors == 1


def test_files_that_nobody_read_are_in_the_report(tmp_path: Path) -> None:
    """What may hold a state has to be allowed; a directory of which nothing was read is one line."""
    source = tmp_path / "run"
    save_dcp({"w": torch.ones(3)}, source)
    (source / "notes.txt").write_text("x")
    (source / "logs").mkdir()
    for number in range(3):
        (source / "logs" / f"{number}").write_text("x")
    report = converted(source, tmp_path / "a.ucp")
    assert {loss.what for loss in report.dropped} == {"files/notes.txt", "files/logs/"}
    torch.save({"lr": 0.1}, source / "scheduler.pt")
    with pytest.raises(UcpError, match=r"files/scheduler\.pt .*allow it with --drop 'files/scheduler\.pt'"):
        converted(source, tmp_path / "b.ucp")
    report = converted(source, tmp_path / "b.ucp", drop=["files/scheduler.pt"])
    assert {loss.what for loss in report.dropped} == {"files/notes.txt", "files/logs/", "files/scheduler.pt"}


def test_what_lies_beside_a_file_that_the_user_names_is_no_part_of_it(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    torch.save({"w": torch.ones(3)}, tmp_path / "b.pt")
    assert list(converted(tmp_path / "a.pt", tmp_path / "a.ucp").dropped) == []


def test_a_view_that_repeats_elements_is_not_expanded_unasked(tmp_path: Path) -> None:
    source = tmp_path / "a.pt"
    torch.save({"small": torch.ones(2), "large": torch.zeros(1).expand(2**36)}, source)
    with pytest.raises(UcpError, match=r"--expand 257G") as refusal:
        converted(source, tmp_path / "a.ucp")
    assert (refusal.value.code, refusal.value.at) == ("UCP-E-LIMIT", "large/value")
    assert converted(source, tmp_path / "a.ucp", expand=1 << 40, dry_run=True).nbytes == 2**38 + 8


def test_a_modest_view_is_expanded(tmp_path: Path) -> None:
    torch.save({"mask": torch.zeros(1, 8).expand(64, 8)}, tmp_path / "a.pt")
    assert converted(tmp_path / "a.pt", tmp_path / "a.ucp").nbytes == 64 * 8 * 4


def _with_a_two(path: Path, format_name: str) -> Path:
    """A tensor of bools with a byte 2, which torch itself cannot make."""
    data = torch.zeros(8, dtype=torch.bool)
    data.numpy().view(np.uint8)[3] = 2
    if format_name == "safetensors":
        save_file({"mask": data}, path / "a.safetensors")
        return path / "a.safetensors"
    if format_name == "torch-save":
        torch.save({"mask": data}, path / "a.pt")
        return path / "a.pt"
    save_dcp({"mask": data}, path / "a")
    return path / "a"


@pytest.mark.parametrize("format_name", ["safetensors", "torch-save", "dcp"])
@pytest.mark.parametrize("destination", ["ucp", "safetensors"])
def test_a_bool_of_two_is_refused(tmp_path: Path, format_name: str, destination: str) -> None:
    source = _with_a_two(tmp_path, format_name)
    with pytest.raises(UcpError, match="a bool has the byte 2") as refusal:
        convert_checkpoint(
            source, tmp_path / "out", source_format=format_name, destination_format=destination
        )
    assert (refusal.value.code, refusal.value.at) == ("UCP-E-SOURCE", "mask/value")
    assert not os.path.exists(tmp_path / "out" / "ucp.json")


@pytest.mark.parametrize("kind", [dict, list, tuple])
def test_what_is_shared_again_and_again_is_not_walked(tmp_path: Path, kind: type) -> None:
    """Two references a level: 22 levels in 1 KB are four million objects, and took minutes."""
    inner: object = kind()
    for _ in range(22):
        inner = {"a": inner, "b": inner} if kind is dict else kind((inner, inner))
    torch.save({"model": {"w": torch.ones(1)}, "n": inner}, tmp_path / "a.pt")
    with pytest.raises(UcpError) as refusal:
        converted(tmp_path / "a.pt", tmp_path / "a.ucp")
    assert (refusal.value.code, refusal.value.at) == ("UCP-E-LIMIT", "a.pt")


def test_long_names_of_many_parts_are_refused(tmp_path: Path) -> None:
    """40 levels of names of 6 KB, and 300 leaves under them: 250 KB that would become 72 MB of names."""
    inner: dict[str, object] = {f"{place}": 1 for place in range(300)}
    for level in range(40):
        inner = {f"{level}" * 6000: inner}
    torch.save({"model": {"w": torch.ones(1)}, "n": inner}, tmp_path / "a.pt")
    with pytest.raises(UcpError) as refusal:
        converted(tmp_path / "a.pt", tmp_path / "a.ucp")
    assert refusal.value.code in ("UCP-E-LIMIT", "UCP-E-NAME")


@pytest.mark.parametrize("size", [[2**62], [2**31, 2**31]])
def test_sizes_that_no_file_holds_are_refused_at_once(tmp_path: Path, size: list[int]) -> None:
    source = tmp_path / "a"
    save_dcp({"w": torch.ones(2)}, source)
    metadata = pickle.loads((source / ".metadata").read_bytes())
    origin = torch.Size([0] * len(size))
    entry = metadata.state_dict_metadata["w"]
    entry.size, entry.chunks = torch.Size(size), [ChunkStorageMetadata(origin, torch.Size(size))]
    (place,) = metadata.storage_data.values()
    metadata.storage_data = {MetadataIndex("w", origin): place}
    (source / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(UcpError) as refusal:
        converted(source, tmp_path / "a.ucp")
    assert (refusal.value.code, refusal.value.at) == ("UCP-E-LIMIT", "w/value")
