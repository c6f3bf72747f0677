"""Acceptance: every DCP checkpoint that torch makes becomes a universal one, and comes back as it was."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import ucpformat
from tests.builders import Forgery
from tests.conversion.engine.jobs import run_job
from tests.conversion.formats.dcp.cases import ALL_CASES, Case, DcpCase
from tests.conversion.formats.dcp.stand_ins import spelled, stand_in
from tests.conversion.stock_torch import fingerprint, flat, loaded
from ucpformat.comparison import compare
from ucpformat.conversion.contract.foreign import PICKLE
from ucpformat.conversion.convert import ConversionReport, convert_checkpoint, detect_format
from ucpformat.conversion.formats.dcp import DcpDirectory
from ucpformat.conversion.formats.dcp.importer import import_dcp
from ucpformat.errors import REGISTRY, UcpError
from ucpformat.model.root import Storage

pytestmark = [pytest.mark.distributed, pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]

UNDECIDED = "fsdp_4_per_rank_rng"
FOREIGN = ("odd", "odd_zstd")
CONVERTIBLE = tuple(name for name in ALL_CASES if name != UNDECIDED)
STATEFUL = tuple(name for name in CONVERTIBLE if name.startswith(("fsdp", "hsdp", "tp", "single")))
STORAGES: tuple[Storage, ...] = ("plain", "packed")

Converted = Callable[[str, Storage], Path]


def to_ucp(case: Case, path: Path, **options: Any) -> ConversionReport:
    return convert_checkpoint(
        case.path,
        path,
        source_format="dcp",
        destination_format="ucp",
        shard_count=case.shard_count,
        foreign_objects="opaque" if case.name in FOREIGN else "refuse",
        **options,
    )


def to_dcp(source: Path, path: Path) -> ConversionReport:
    return convert_checkpoint(source, path, source_format="ucp", destination_format="dcp")


@pytest.fixture(scope="module")
def converted(dcp_case: DcpCase, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    folder = tmp_path_factory.mktemp("converted")

    def convert(name: str, storage: Storage) -> Path:
        path = folder / f"{name}-{storage}"
        if not path.exists():
            to_ucp(dcp_case(name), path, storage=storage)
        return path

    return convert


def keys_of(checkpoint: ucpformat.Checkpoint) -> dict[str, tuple[str, str]]:
    """Atom and slot by DCP key, as the importer noted it."""
    found = {}
    for name, atom in checkpoint.items():
        for slot, view in atom.items():
            source = view.stored.slot.annotations["org.ucpformat.source"]
            assert isinstance(source, dict)
            path = source["path"]
            assert isinstance(path, list)
            found[".".join(map(str, path))] = (name, slot)
    return found


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("name", CONVERTIBLE)
def test_every_tensor_is_the_reference_and_nothing_is_wrong(
    dcp_case: DcpCase, converted: Converted, name: str, storage: Storage
) -> None:
    """Validation at the highest level finds nothing in what real frameworks save."""
    case, path = dcp_case(name), converted(name, storage)
    assert detect_format(path) == "ucp"
    assert ucpformat.validate(path) == []
    with ucpformat.open(path) as checkpoint:
        assert checkpoint.root.storage == storage
        keys = keys_of(checkpoint)
        assert keys.keys() == case.reference.keys()
        for key, reference in case.reference.items():
            atom, slot = keys[key]
            view = checkpoint[atom][slot]
            assert (view.dtype.name, view.shape) == (reference.dtype, reference.shape), key
            assert view.read().tobytes() == reference.data, key
            assert view.stored.slot.content is not None


@pytest.mark.parametrize("name", STATEFUL)
def test_parameter_and_optimizer_state_share_an_atom(converted: Converted, name: str) -> None:
    with ucpformat.open(converted(name, "packed")) as checkpoint:
        slots = {atom: set(view) for atom, view in checkpoint.items()}
        if name == "fsdp_2_model":
            assert all(found == {"value"} for found in slots.values())
            assert {"up.weight", "scale", "count"} <= slots.keys()
            return
        for parameter in ("embed.weight", "up.weight", "up.bias", "three", "scale", "narrow.weight"):
            assert slots[parameter] == {"value", "exp_avg", "exp_avg_sq", "step"}, parameter
        for buffer in ("count", "table", "mask", "rng.torch"):
            assert slots[buffer] == {"value"}
        assert checkpoint["up.weight"]["step"].read() == np.float32(3)


@pytest.mark.parametrize("name", [name for name in STATEFUL if name != "fsdp_2_model"])
def test_options_belong_to_parameters(converted: Converted, name: str) -> None:
    """UCP-D-086, UCP-D-087: groups name atoms, each once."""
    with ucpformat.open(converted(name, "packed")) as checkpoint:
        assert list(checkpoint.state.optimizers) == ["optim"]
        groups = checkpoint.state.optimizers["optim"].groups
        options = {atom: group.options for group in groups for atom in group.atoms}
        assert options.keys() == {atom for atom, view in checkpoint.items() if "exp_avg" in view}
        assert options["three"]["weight_decay"] == 0.1
        assert options["up.weight"]["weight_decay"] == 0.01
        assert options["up.weight"]["betas"] == {"$tuple": [0.9, 0.95]}
        values = checkpoint.state.values
        assert not [key for key in values if key.startswith("optim.")]
        assert values["step"] == 3
        assert values["run.seen"] == {"$int": str(2**70)}


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("name", CONVERTIBLE)
def test_stock_torch_loads_what_went_there_and_back(
    dcp_case: DcpCase, converted: Converted, tmp_path: Path, name: str, storage: Storage
) -> None:
    case = dcp_case(name)
    report = to_dcp(converted(name, storage), tmp_path / "back")
    assert (report.tensors, report.objects) == (len(case.reference), len(case.objects))
    assert detect_format(tmp_path / "back") == "dcp"
    back = fingerprint(loaded(tmp_path / "back"))
    if (case.path / ".metadata").exists():
        assert back == fingerprint(loaded(case.path))
    found = {key: content for key, (_, _, content) in back.items()}
    for key, reference in case.reference.items():
        tensor = f"TensorValue(dtype={reference.dtype!r}, shape={reference.shape}, data={reference.data!r})"
        assert found.pop(key) == tensor, key
    assert found == {key: spelled(stand_in(value)) for key, value in case.objects.items()}


@pytest.mark.parametrize("name", ["fsdp_tp_2x2", "hsdp_2x2"])
def test_stock_load_fills_a_template(
    dcp_case: DcpCase, converted: Converted, tmp_path: Path, name: str
) -> None:
    """`torch.distributed.checkpoint.load`, as a training script calls it."""
    case = dcp_case(name)
    to_dcp(converted(name, "packed"), tmp_path / "back")
    template = loaded(case.path)
    wanted = fingerprint(template)
    for key, leaf in flat(template).items():
        if isinstance(leaf, torch.Tensor) and key in case.reference:
            leaf.zero_()
    template["step"] = 0
    load(template, checkpoint_id=tmp_path / "back")
    assert fingerprint(template) == wanted


def test_the_layout_is_what_the_fragments_show(converted: Converted) -> None:
    """The recorded layout lowers, and covers; nothing is recorded where nothing is known."""
    with ucpformat.open(converted("fsdp_4", "packed")) as checkpoint:
        layout = checkpoint["embed.weight"]["value"].layout
        assert layout is not None
        assert [(axis.name, axis.size) for axis in layout.mesh.axes] == [("dim0", 4)]
        assert checkpoint.read("embed.weight", layout=layout, coord={"dim0": 3}).shape == (23, 16)  # type: ignore[union-attr]
        assert checkpoint["scale"]["value"].layout is None
    with ucpformat.open(converted("tp_2", "packed")) as checkpoint:
        layout = checkpoint["down.weight"]["value"].layout
        assert layout is not None
        assert [(axis.name, axis.size) for axis in layout.mesh.axes] == [("dim1", 2)]


def refused(case: Case, path: Path, **options: Any) -> UcpError:
    with pytest.raises(UcpError) as caught:
        convert_checkpoint(
            case.path,
            path,
            **{
                "source_format": "dcp",
                "destination_format": "ucp",
                "shard_count": case.shard_count,
                **options,
            },
        )
    assert caught.value.code in REGISTRY
    return caught.value


@pytest.mark.parametrize("foreign", ["refuse", "opaque"])
def test_ranks_that_differ_are_refused(dcp_case: DcpCase, tmp_path: Path, foreign: str) -> None:
    refusal = refused(dcp_case(UNDECIDED), tmp_path / "out", foreign_objects=foreign)
    assert refusal.code == "UCP-E-SOURCE"
    assert refusal.at.endswith("#rng.rank")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", FOREIGN)
def test_objects_that_cannot_be_expressed_are_refused_by_name(
    dcp_case: DcpCase, tmp_path: Path, name: str
) -> None:
    refusal = refused(dcp_case(name), tmp_path / "out")
    assert refusal.code == "UCP-E-OBJECT"
    assert refusal.at.partition("#")[2].startswith("objects.")
    assert "--foreign-objects opaque" in refusal.message
    assert not (tmp_path / "out").exists()


def test_what_is_expressible_is_not_opaque(converted: Converted) -> None:
    with ucpformat.open(converted("odd", "plain")) as checkpoint:
        # A lone surrogate; an array of strings; a time zone's own name and a folded time.
        assert sorted(checkpoint.state.blobs) == ["objects.numpy", "objects.text", "objects.time"]
        assert {blob.media_type for blob in checkpoint.state.blobs.values()} == {PICKLE}


@pytest.mark.parametrize("foreign", ["refuse", "opaque"])
def test_an_object_beyond_the_limits_is_refused(tmp_path: Path, foreign: str) -> None:
    """UCP-S-002 for a source: what is too deep to be looked at is not carried unseen either."""
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    save({"deep": (deep,)}, checkpoint_id=tmp_path / "source", no_dist=True)
    refusal = refused(
        Case("deep", tmp_path / "source", {}, {}, None), tmp_path / "out", foreign_objects=foreign
    )
    assert refusal.code == "UCP-E-LIMIT"
    assert not (tmp_path / "out").exists()


class Attack:
    """Its pickle makes a directory."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("compress", [False, True])
def test_a_malicious_pickle_is_carried_and_never_run(tmp_path: Path, compress: bool) -> None:
    """UCP-S-004: on the way in, out, validated, inspected and compared, nothing is executed."""
    from click.testing import CliRunner
    from torch.distributed.checkpoint._extension import ZStandard

    from ucpformat.cli import main

    mark = tmp_path / "ran"
    writer = FileSystemWriter(tmp_path / "source", _extensions=[ZStandard()] if compress else None)
    save({"w": torch.ones(3), "evil": Attack(mark)}, storage_writer=writer, no_dist=True)
    case = Case("attack", tmp_path / "source", {}, {}, None)
    refusal = refused(case, tmp_path / "out")
    assert (refusal.code, refusal.at.partition("#")[2]) == ("UCP-E-PICKLE", "evil")
    assert "posix.mkdir" in refusal.message

    opaque = {"source_format": "dcp", "destination_format": "ucp", "foreign_objects": "opaque"}
    for name in ("one", "two"):
        convert_checkpoint(tmp_path / "source", tmp_path / name, **opaque)  # type: ignore[arg-type]
    convert_checkpoint(tmp_path / "one", tmp_path / "copy", source_format="ucp", destination_format="ucp")
    for arguments in (
        ["validate", "one"],
        ["inspect", "one"],
        ["inspect", "one", "--format", "json"],
        ["diff", "one", "two"],
        ["diff", "one", "copy"],
        ["convert", "copy", "back", "--to", "dcp"],
    ):
        command = [
            str(tmp_path / word) if word in ("one", "two", "copy", "back") else word for word in arguments
        ]
        assert CliRunner().invoke(main, command).exit_code == 0, arguments
    ucpformat.load(tmp_path / "one")

    directories = [DcpDirectory.open(tmp_path / name) for name in ("source", "back")]
    first, second = (directory.read_object_bytes("evil") for directory in directories)
    assert first == second
    assert b"mkdir" in first
    assert not mark.exists()
    # The bytes are live: torch itself, told to trust them, runs them.
    loaded(tmp_path / "back")
    assert mark.exists()


def test_a_flipped_bit_in_the_source_is_refused(dcp_case: DcpCase, tmp_path: Path) -> None:
    """Torch writes the CRC-32 of every record and never looks at it."""
    case = dcp_case("fsdp_2")
    directory = DcpDirectory.open(case.path)
    damage = [(directory.objects["lr_scheduler.gamma"].locations[0], pickle.dumps(0.5, 2)[2:11])]
    for key in ("model.embed.weight", "optim.state.three.exp_avg"):
        place = directory.tensors[key].fragments[0].location
        damage.append((place, case.reference[key].data[:16]))
    for number, (place, content) in enumerate(damage):
        path = Path(shutil.copytree(case.path, tmp_path / str(number)))
        data = bytearray((path / place.file).read_bytes())
        data[data.index(content, place.start, place.start + place.length) + 3] ^= 4
        (path / place.file).write_bytes(data)
        damaged = Case("damaged", path, case.reference, case.objects, None)
        refusal = refused(damaged, tmp_path / f"out-{number}", storage=STORAGES[number % 2])
        assert refusal.code == "UCP-E-SOURCE", refusal
        assert not (tmp_path / f"out-{number}").exists()


def test_a_flipped_bit_in_a_tensor_inside_an_object_is_refused(dcp_case: DcpCase, tmp_path: Path) -> None:
    path = Path(shutil.copytree(dcp_case("odd").path, tmp_path / "copy"))
    place = DcpDirectory.open(path).objects["objects.tensors"].locations[0]
    data = bytearray((path / place.file).read_bytes())
    content = np.arange(6, dtype="<i8").tobytes()
    data[data.index(content, place.start, place.start + place.length) + 3] ^= 4
    (path / place.file).write_bytes(data)
    damaged = Case("damaged", path, {}, {}, None)
    assert refused(damaged, tmp_path / "out", foreign_objects="opaque").code == "UCP-E-SOURCE"
    assert not (tmp_path / "out").exists()


def test_a_failed_export_leaves_nothing(converted: Converted, tmp_path: Path) -> None:
    path = Path(shutil.copytree(converted("fsdp_2", "packed"), tmp_path / "damaged"))
    pack = max((path / "packs").iterdir(), key=lambda file: file.stat().st_size)
    data = bytearray(pack.read_bytes())
    data[4096 if len(data) > 4096 else 0] ^= 1
    pack.write_bytes(data)
    for destination in (tmp_path / "new", tmp_path / "empty"):
        if destination.name == "empty":
            destination.mkdir()
        with pytest.raises(UcpError) as caught:
            to_dcp(path, destination)
        assert caught.value.code == "UCP-E-CHECKSUM"
    assert not (tmp_path / "new").exists()
    assert list((tmp_path / "empty").iterdir()) == []


def test_destinations_are_never_overwritten(dcp_case: DcpCase, converted: Converted, tmp_path: Path) -> None:
    """UCP-W-004 at the door of the converter."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("mine")
    assert refused(dcp_case("fsdp_2"), tmp_path / "out").code == "UCP-E-EXISTS"
    assert refused(dcp_case("fsdp_2"), converted("fsdp_2", "plain")).code == "UCP-E-EXISTS"
    for destination in (tmp_path / "out", tmp_path / "out" / "precious"):
        with pytest.raises(UcpError) as caught:
            to_dcp(converted("fsdp_2", "plain"), destination)
        assert caught.value.code == "UCP-E-EXISTS"
    assert (tmp_path / "out" / "precious").read_text() == "mine"
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["precious"]


def test_formats(dcp_case: DcpCase, tmp_path: Path) -> None:
    assert detect_format(dcp_case("hf_whole").path) == "dcp"
    with pytest.raises(UcpError) as caught:
        detect_format(tmp_path)
    assert (caught.value.code, caught.value.at) == ("UCP-E-SOURCE", str(tmp_path))
    refusal = refused(dcp_case("fsdp_2"), tmp_path / "out", destination_format="dpc")
    assert "'dpc' is none of ucp, accelerate, dcp" in refusal.message


def test_one_format_becomes_another_without_a_copy_in_between(dcp_case: DcpCase, tmp_path: Path) -> None:
    case = dcp_case("tp_2")
    convert_checkpoint(case.path, tmp_path / "out", source_format="dcp", destination_format="dcp")
    assert fingerprint(loaded(tmp_path / "out")) == fingerprint(loaded(case.path))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_progress_counts_logical_bytes(dcp_case: DcpCase, tmp_path: Path) -> None:
    case = dcp_case("odd")
    seen: list[int] = []
    report = to_ucp(case, tmp_path / "ucp", progress=seen.append)
    assert sum(seen) == report.nbytes == sum(len(reference.data) for reference in case.reference.values())
    back: list[int] = []
    convert_checkpoint(
        tmp_path / "ucp",
        tmp_path / "back",
        source_format="ucp",
        destination_format="dcp",
        progress=back.append,
    )
    assert sum(back) == sum(seen)


@pytest.mark.parametrize("name", ["fsdp_tp_2x2", "fsdp_4_zstd", "odd"])
@pytest.mark.parametrize("storage", STORAGES)
def test_tensors_of_many_chunks(dcp_case: DcpCase, tmp_path: Path, name: str, storage: Storage) -> None:
    """Chunks cut fragments anywhere; the logical bytes and their digests are those of one chunk."""
    case = dcp_case(name)
    job = import_dcp(case.path, foreign_objects="opaque")
    run_job(replace(job, chunk_bytes=64), tmp_path / "small", storage=storage, workers=3)
    assert ucpformat.validate(tmp_path / "small") == []
    to_ucp(case, tmp_path / "large")
    with ucpformat.open(tmp_path / "small") as a, ucpformat.open(tmp_path / "large") as b:
        assert max(stored.grid.count for stored in a.slots()) > 5
        assert compare(a, b).differences == ()


def test_parts_that_would_have_one_key_are_refused(converted: Converted, tmp_path: Path) -> None:
    path = Path(shutil.copytree(converted("fsdp_2_model", "packed"), tmp_path / "copy"))

    def collide(index: Any) -> None:
        for atom in index["atoms"]:
            atom["slots"]["value"]["annotations"] = {"org.ucpformat.source": {"path": ["one"]}}

    Forgery(path).edit("index", collide).sealed()
    with pytest.raises(UcpError) as caught:
        to_dcp(path, tmp_path / "back")
    assert caught.value.code == "UCP-E-NAME"
    assert not (tmp_path / "back").exists()


def test_an_option_that_is_carried_as_bytes_comes_back(tmp_path: Path) -> None:
    """Then the groups are values and blobs, and DCP has every key again."""
    state = {
        "model": {"w": torch.ones(2)},
        "optim": {
            "state": {"w": {"m": torch.zeros(2)}},
            "param_groups": [{"params": ["w"], "lr": 0.5, "text": "\ud800"}],
        },
    }
    save(state, checkpoint_id=tmp_path / "source", no_dist=True)
    case = Case("odd", tmp_path / "source", {}, {}, None)
    to_ucp(case, tmp_path / "ucp")
    with ucpformat.open(tmp_path / "ucp") as checkpoint:
        assert checkpoint.state.optimizers == {}
        assert set(checkpoint.state.blobs) == {"optim.param_groups.0.text"}
    to_dcp(tmp_path / "ucp", tmp_path / "back")
    assert fingerprint(loaded(tmp_path / "back")) == fingerprint(state)


def test_the_metadata_that_are_written_are_torchs_own(converted: Converted, tmp_path: Path) -> None:
    to_dcp(converted("fsdp_2", "plain"), tmp_path / "back")
    metadata = pickle.loads((tmp_path / "back" / ".metadata").read_bytes())
    assert metadata.planner_data["optim.state.up.weight.exp_avg"] == (
        "optim",
        "state",
        "up.weight",
        "exp_avg",
    )
    assert metadata.planner_data["optim.param_groups.1.lr"] == ("optim", "param_groups", 1, "lr")
