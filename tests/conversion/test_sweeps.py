"""Every file of a checkpoint removed, truncated or exchanged: refused by name, reported, or nothing is missing.

The frameworks that tests cannot import have theirs in tests/frameworks_live; DeepSpeed and Orbax have their own.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.conversion.formats.dcp.cases import SHARD_COUNTS, DcpCase
from tests.conversion.formats.megatron.test_torch_dist import WEIGHT, write
from tests.conversion.formats.torch_save.test_directories import saved
from tests.frameworks_live.sweep import sweep
from tests.processes import launch
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.errors import UcpError


@pytest.mark.parametrize("name", ["fsdp_2", "hf_whole", "hf_consolidated_4", "single"])
def test_dcp(dcp_case: DcpCase, tmp_path: Path, name: str) -> None:
    assert name not in SHARD_COUNTS
    sweep(dcp_case(name).path, tmp_path).check()


def test_dcp_of_single_ranks(dcp_case: DcpCase, tmp_path: Path) -> None:
    """``use_collectives=False``: three ranks of four have equal shards, and their files tell nothing (see below)."""
    equal = "the shards of both ranks have the same shapes, and lie in the same places"
    exchanged = r"__[012]_0\.distcp <-> __[012]_0\.distcp"
    found = sweep(dcp_case("fsdp_4_per_rank").path, tmp_path, blind={exchanged: equal})
    found.check()
    assert found.counts["blind"] == 3


@pytest.mark.parametrize(
    ("case", "one", "other"),
    [("fsdp_4_per_rank", "__0_0", "__1_0"), ("fsdp_4_files", "__0_6", "__0_7")],
)
def test_nothing_in_dcp_tells_items_of_one_shape_apart(
    dcp_case: DcpCase, tmp_path: Path, case: str, one: str, other: str
) -> None:
    """What files of equal items hold is the same, the values and their checksums aside."""
    source = dcp_case(case).path
    archives = []
    for name in (one, other):
        places = [
            place
            for path in source.glob("*.metadata")
            for place in pickle.loads(path.read_bytes()).storage_data.values()
            if place.relative_path == f"{name}.distcp"
        ]
        data = (source / f"{name}.distcp").read_bytes()
        items = {place.offset: data[place.offset : place.offset + place.length] for place in places}
        archives.append({offset: _said_by(item) for offset, item in items.items()})
    assert archives[0] == archives[1]
    assert any("archive/data/0" in held for held in archives[0].values())


def _said_by(item: bytes) -> dict[str, object]:
    """The records of an archive: lengths of storages, and the bytes of all else, a hash of everything aside."""
    with zipfile.ZipFile(io.BytesIO(item)) as archive:
        return {
            record.filename: record.file_size if "/data/" in record.filename else archive.read(record)
            for record in archive.infolist()
            if not record.filename.endswith("serialization_id")
        } | {"dates": {(record.date_time, record.comment, record.extra[:4]) for record in archive.infolist()}}


def test_dcp_beside_what_it_does_not_list(dcp_case: DcpCase, tmp_path: Path) -> None:
    """A file of data that no metadata name is of another save: it is not left out unasked."""
    source = tmp_path / "a"
    source.mkdir()
    for path in dcp_case("fsdp_2").path.iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    (source / "__7_0.distcp").write_bytes(b"x")
    with pytest.raises(UcpError, match=r"files/__7_0\.distcp .* would be lost"):
        convert_checkpoint(source, tmp_path / "b.ucp", source_format="dcp", destination_format="ucp")


@pytest.fixture(scope="module")
def ranks_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fsdp1")
    (folder / "state").mkdir()
    launch("tests.conversion.formats.torch_save.fsdp1_worker", [str(folder)], 3)
    return folder


@pytest.mark.distributed
@pytest.mark.parametrize("name", ["one", "two", "state"])
def test_files_of_single_ranks(ranks_files: Path, tmp_path: Path, name: str) -> None:
    """``state`` is Accelerate's directory of FSDP, whose shards say how many ranks there were."""
    sweep(ranks_files / name, tmp_path).check()


def test_accelerate(tmp_path: Path) -> None:
    """Nothing lists what ``save_state`` wrote: what ends a row of numbers, or is one of a kind, nobody misses."""
    unlisted = "nothing says whether the job had one"
    sweep(
        saved(tmp_path / "a"),
        tmp_path / "scratch",
        blind={
            r"(scheduler\.bin|custom_checkpoint_0\.pkl)": unlisted,
            r"random_states_1\.pkl": "nothing says how many ranks there were",
        },
    ).check()


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        (["model_1.safetensors"], "model.safetensors"),
        (["model.safetensors", "optimizer_1.bin"], "optimizer.bin"),
        (["model.safetensors", "optimizer.bin", "custom_checkpoint_1.pkl"], "custom_checkpoint_0.pkl"),
        (["model.safetensors", "optimizer.bin", "scheduler.bin", "scheduler_2.bin"], "scheduler_1.bin"),
    ],
)
def test_what_is_numbered_begins_at_0(tmp_path: Path, files: list[str], missing: str) -> None:
    source = saved(tmp_path / "a")
    weights = (source / "model.safetensors").read_bytes()
    for name in ("model.safetensors", "optimizer.bin", "custom_checkpoint_0.pkl", "scheduler.bin"):
        (source / name).unlink()
    for name in files:
        if name.startswith("model"):
            (source / name).write_bytes(weights)
        else:
            torch.save({"n": 1}, source / name)
    with pytest.raises(UcpError) as refusal:
        convert_checkpoint(source, tmp_path / "b.ucp", source_format="accelerate", destination_format="ucp")
    assert missing in str(refusal.value)


def model(folder: Path, *, index: bool = True) -> Path:
    """A model of Hugging Face's in two files."""
    folder.mkdir()
    parts = [{"a": torch.arange(6.0), "b": torch.ones(2, 3)}, {"c": torch.zeros(4, dtype=torch.int64)}]
    names = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    for name, part in zip(names, parts, strict=True):
        save_file(part, folder / name, metadata={"format": "pt"})
    places = {key: name for name, part in zip(names, parts, strict=True) for key in part}
    size = sum(tensor.nbytes for part in parts for tensor in part.values())
    if index:
        (folder / "model.safetensors.index.json").write_text(
            f'{{"metadata": {{"total_size": {size}}}, "weight_map": {places!s}}}'.replace("'", '"')
        )
    (folder / "config.json").write_text('{"hidden_size": 6}')
    (folder / ".gitattributes").write_text("x")
    return folder


@pytest.mark.parametrize("index", [True, False])
def test_safetensors(tmp_path: Path, index: bool) -> None:
    companion = "files beside the weights are the user's, and nothing lists them"
    sweep(
        model(tmp_path / "a", index=index),
        tmp_path / "scratch",
        blind={r"config\.json": companion},
        known_as=lambda name: "no checkpoint of a known format",
    ).check()


def test_a_part_of_a_model_is_not_the_model(tmp_path: Path) -> None:
    source = model(tmp_path / "a")
    name = "model-00001-of-00002.safetensors"
    with pytest.raises(UcpError, match=f"file 1 of 2 of a model: .*--from-set weights={name}"):
        convert_checkpoint(
            source / name, tmp_path / "b", source_format="safetensors", destination_format="ucp"
        )
    report = convert_checkpoint(
        source,
        tmp_path / "b",
        source_format="safetensors",
        destination_format="ucp",
        source_settings={"weights": name},
        drop=["files/model*"],
    )
    assert report.tensors == 2


def test_a_size_that_does_not_fit_is_reported(tmp_path: Path) -> None:
    """Published models have sizes of another data type, so that it refuses nothing; names decide."""
    source = model(tmp_path / "a")
    index = source / "model.safetensors.index.json"
    index.write_text(index.read_text().replace('"total_size": 80', '"total_size": 160'))
    report = convert_checkpoint(source, tmp_path / "b", source_format="safetensors", destination_format="ucp")
    (odd,) = [loss for loss in report.dropped if loss.what == f"files/{index.name}"]
    assert odd.why == "its total_size is 160, and the tensors that it names have 80 bytes"


def converted(source: Path, out: Path) -> None:
    convert_checkpoint(source, out, source_format=detect_format(source), destination_format="ucp")


def test_a_file_of_torch_save(tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.mkdir()
    torch.save({"model": {"w": torch.ones(5)}, "epoch": 3}, source / "a.pt")
    whole = (source / "a.pt").read_bytes()
    for length in range(0, len(whole), 37):
        (source / "a.pt").write_bytes(whole[:length])
        with pytest.raises(UcpError, match=r"a\.pt"):
            converted(source / "a.pt", tmp_path / "b")


def test_torch_dist(tmp_path: Path) -> None:
    """Without ``metadata.json`` or ``common.pt`` it is no directory of torch's, either."""
    source = write(
        tmp_path / "a",
        {"iteration": 3, "args": {"tensor_model_parallel_size": 1}},
        {"rng_state/shard_0_1": [{"a": 1}]},
        w=WEIGHT,
        b=np.arange(3, dtype=np.int64),
    )
    sweep(source, tmp_path / "scratch").check()
    for name in ("metadata.json", "common.pt"):
        (source / name).unlink()
    with pytest.raises(UcpError, match=r"common\.pt and metadata\.json beside this file"):
        convert_checkpoint(
            source, tmp_path / "b", source_format=detect_format(source), destination_format="ucp"
        )
