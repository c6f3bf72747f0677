"""Checkpoints that megatron-core writes: in, bit-equal to its memory; out, and resumed by it at other degrees."""

from __future__ import annotations

import io
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron.core.safe_globals import SAFE_GLOBALS
from megatron.core.transformer.enums import AttnBackend

import ucpformat as ucp
from tests.frameworks_live.harm import (
    Evil,
    Harm,
    flip,
    is_found,
    poison,
    remove,
    replace_pickle,
    truncate,
)
from tests.frameworks_live.megatron import references
from tests.frameworks_live.megatron.arguments import arguments
from tests.frameworks_live.megatron.cases import CASES, Case
from tests.frameworks_live.sweep import sweep
from tests.processes import launch
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.conversion.dcp_files.directory import DcpDirectory
from ucpformat.conversion.formats.megatron.buffers import BufferParameter, assign_buckets
from ucpformat.conversion.formats.megatron.parameter_groups import is_expert_name, stacked_dims
from ucpformat.errors import UcpError
from ucpformat.tensor_files.tagged import decode

WORKER = "tests.frameworks_live.megatron.make"
RESUMED = {"rank": "resumed", "later": "resumed-later"}
BUCKET = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.float32, torch.float32).bucket_idx_0"

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("megatron")]


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A case, and the folder with the checkpoint, its conversion, and what was in memory."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    launch(WORKER, ["save", str(folder), name], CASES[name].world)
    assert detect_format(folder / "ckpt") == "megatron"
    convert_checkpoint(folder / "ckpt", folder / "ucp", source_format="megatron", destination_format="ucp")
    return name, folder


def expected(case: Case, folder: Path) -> references.Tensors:
    whole = references.whole(references.ranks_of(folder, "rank"))
    return whole if case.by_layer else references.stacked(whole)


def test_every_tensor_is_what_lay_in_memory(saved: tuple[str, Path]) -> None:
    name, folder = saved
    assert not ucp.validate(folder / "ucp")
    with ucp.open(folder / "ucp") as checkpoint:
        wanted = expected(CASES[name], folder)
        held = {atom: set(view) - {"step"} for atom, view in checkpoint.items()}
        assert held == {atom: set(slots) for atom, slots in wanted.items()}
        for atom, slots in wanted.items():
            for slot, tensor in slots.items():
                array = checkpoint[atom][slot][...]
                is_low = array.dtype.name == "bfloat16"
                found = torch.from_numpy(array.view(np.int16) if is_low else array)
                found = found.view(torch.bfloat16) if is_low else found
                assert found.dtype == tensor.dtype
                assert torch.equal(found, tensor), (atom, slot)


def test_groups_and_steps_have_their_parameters(saved: tuple[str, Path]) -> None:
    """Megatron stores groups without parameters, and one count of steps: other frameworks need both by parameter."""
    name, folder = saved
    with ucp.open(folder / "ucp") as checkpoint:
        trained = {atom: view for atom, view in checkpoint.items() if len(view) > 1}
        assert set(trained) == set(expected(CASES[name], folder))
        for atom, view in trained.items():
            steps = view["step"][...]
            assert steps.dtype == np.float32
            assert steps.shape == view["value"].shape[: stacked_dims(atom)]
            assert (steps == 2).all()
        groups = checkpoint.state.optimizers["optim"].groups
        assert {atom for group in groups for atom in group.atoms} == set(trained)
        described = references.ranks_of(folder, "rank")[0]["groups"]
        assert len(groups) == len(described)
        for group, original in zip(groups, described, strict=True):
            options = {key: decode(value, at=key) for key, value in group.options.items()}
            shared = options.keys() & original.keys()
            assert {"lr", "betas", "eps", "weight_decay", "wd_mult"} <= shared
            assert {key: options[key] for key in shared} == {key: original[key] for key in shared}
            for atom in group.atoms:
                own = trained[atom]["value"].shape[stacked_dims(atom) :]
                assert (len(own) > 1) == (original["wd_mult"] == 1)
                assert is_expert_name(atom) == original["is_expert_parallel"]


def test_everything_else_is_carried(saved: tuple[str, Path]) -> None:
    name, folder = saved
    ranks = references.ranks_of(folder, "rank")
    with ucp.open(folder / "ucp") as checkpoint:
        assert checkpoint.root.progress is not None
        assert checkpoint.root.progress.step == 7
        values = {key: decode(value, at=key) for key, value in checkpoint.state.values.items()}
    args: Any = values["args"]
    assert args.type == "argparse.Namespace"
    assert args.value["names"] == ["a", "b"]
    assert args.value["attention_backend"].type == "megatron.core.transformer.enums.AttnBackend"
    assert args.value["attention_backend"].value == {"value": AttnBackend.fused.value}
    assert args.value["exit_signal"].value == {"value": 15}
    sharding: Any = values["content_metadata"]
    assert sharding["distrib_optim_sharding_type"] == (CASES[name].sharding and "fully_reshardable")
    for rank in range(CASES[name].world):
        key = f"rng_state/shard_{rank}_{CASES[name].world}"
        saved_numbers: Any = values[key]
        assert saved_numbers[0][0]["numbers"].data == (torch.arange(3) + rank).numpy().tobytes()
    assert values["opt_param_scheduler"]["lr_decay_style"] == "cosine"  # type: ignore[index]
    rerun: Any = values["rerun_state_machine"]
    assert rerun["mode"].value == {"value": "validate_results"}
    assert rerun["state"].type == "megatron.core.rerun_state_machine.RerunState"
    groups = param_groups(values)
    assert len(groups) == len(ranks[0]["groups"])
    for kept, original in zip(groups, ranks[0]["groups"], strict=True):
        shared = kept.keys() & original.keys() - {"step"}
        assert {"lr", "betas", "eps", "weight_decay", "wd_mult"} <= shared
        assert {key: kept[key] for key in shared} == {key: original[key] for key in shared}


def param_groups(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Where Megatron keeps them: several optimizers by number, one, one that does not shard."""
    optimizer = values["optimizer"]
    if 0 in optimizer:
        return [group for found in optimizer.values() for group in found["optimizer"]["param_groups"]]
    if "param_groups" in optimizer:
        return list(optimizer["param_groups"])
    return list(optimizer["optimizer"]["param_groups"])


@pytest.mark.parametrize("saved", ["dp2-buckets"], indirect=True)
def test_buckets_are_kept_on_request(saved: tuple[str, Path], tmp_path: Path) -> None:
    """As they are, for a job with the same degrees; our map of the bucket finds every state in it."""
    _, folder = saved
    for format_name, source, out in (
        ("ucp", folder / "ckpt", "kept"),
        ("megatron", tmp_path / "kept", "out"),
    ):
        convert_checkpoint(
            source,
            tmp_path / out,
            source_format="megatron" if format_name == "ucp" else "ucp",
            destination_format=format_name,
            source_settings={"buckets": "kept"} if format_name == "ucp" else None,
        )
    common = torch.load(tmp_path / "out" / "common.pt", weights_only=False)
    assert common["content_metadata"]["distrib_optim_sharding_type"] == "dp_reshardable"
    ranks = references.ranks_of(folder, "rank")
    whole = references.whole(ranks)
    shapes = {local: value.shape for local, value in ranks[0]["values"].items()}
    slots, buckets = assign_buckets([BufferParameter(shape.numel()) for shape in shapes.values()], dp=2)
    assert len(buckets) == 1
    with ucp.open(tmp_path / "kept") as checkpoint:
        for state in ("param", "exp_avg", "exp_avg_sq"):
            flat = torch.from_numpy(checkpoint[f"{BUCKET}.{state}"]["value"][...])
            assert flat.numel() == buckets[0].unpadded
            for (local, shape), slot in zip(shapes.items(), slots, strict=True):
                (start,) = slot.place.offsets
                found = flat[start : start + shape.numel()].reshape(shape)
                expected_state = whole[references.global_name(local, 0, 0)][
                    "master" if state == "param" else state
                ]
                assert torch.equal(found, expected_state), (local, state)


def test_megatron_resumes_at_another_degree(saved: tuple[str, Path]) -> None:
    """Bit-equal as it is loaded; after two more steps, too, where gradients do not depend on the order of sums."""
    name, folder = saved
    case = CASES[name]
    convert_checkpoint(
        folder / "ucp", folder / "exported", source_format="ucp", destination_format="megatron"
    )
    launch(WORKER, ["load", str(folder), name], case.resumed[0])
    for stem in ("rank", "later") if not case.forward else ("rank",):
        before = references.whole(references.ranks_of(folder, stem))
        after = references.whole(references.ranks_of(folder, RESUMED[stem]))
        assert {key: set(slots) for key, slots in before.items()} == {
            key: set(slots) for key, slots in after.items()
        }
        for atom, slots in before.items():
            for slot, tensor in slots.items():
                assert torch.equal(after[atom][slot], tensor), (stem, atom, slot)
    if case.forward:
        losses = torch.load(folder / "losses.pt", weights_only=True)
        resumed = torch.load(folder / "resumed-losses.pt", weights_only=True)
        assert losses[0] != losses[1]
        torch.testing.assert_close(torch.tensor(resumed), torch.tensor(losses), rtol=1e-5, atol=1e-6)
    with torch.serialization.safe_globals(SAFE_GLOBALS):
        common = torch.load(folder / "resumed-common.pt", weights_only=True)
    assert common["iteration"] == 7
    assert common["args"] == arguments()


def test_there_and_back(saved: tuple[str, Path], tmp_path: Path) -> None:
    _, folder = saved
    convert_checkpoint(folder / "ucp", tmp_path / "out", source_format="ucp", destination_format="megatron")
    assert detect_format(tmp_path / "out") == "megatron"
    convert_checkpoint(tmp_path / "out", tmp_path / "ucp", source_format="megatron", destination_format="ucp")
    with ucp.open(folder / "ucp") as first, ucp.open(tmp_path / "ucp") as second:
        assert first.state.values == second.state.values
        assert list(first) == list(second)
        for atom in first:
            for slot in first[atom]:
                one, two = first[atom][slot], second[atom][slot]
                # Bytes: what pads a bucket is whatever lay in Megatron's memory.
                assert one[...].tobytes() == two[...].tobytes()
                assert one.stored.slot.annotations == two.stored.slot.annotations


def test_every_entry_is_loaded_as_it_was_saved(saved: tuple[str, Path], tmp_path: Path) -> None:
    """``common.pt`` and the object of each rank, under Megatron's own list of what is safe: nothing is lost or new."""
    name, folder = saved
    convert_checkpoint(folder / "ucp", tmp_path / "out", source_format="ucp", destination_format="megatron")
    is_flat = CASES[name].sharding in ("dp_reshardable", "dp_zero_gather_scatter")
    before, after = (DcpDirectory.open(path) for path in (folder / "ckpt", tmp_path / "out"))
    kept = {key for key in before.objects if not (is_flat and "optimizer.distributed." in key)}
    assert kept == set(after.objects)
    assert any(key.startswith("rerun_state_machine_state/") for key in kept)
    with torch.serialization.safe_globals(SAFE_GLOBALS):
        for key in kept:
            one, two = (
                torch.load(io.BytesIO(directory.read_object_bytes(key)), weights_only=True)
                for directory in (before, after)
            )
            assert repr(one) == repr(two), key
        one, two = (
            torch.load(path / "common.pt", weights_only=True) for path in (folder / "ckpt", tmp_path / "out")
        )
    if is_flat:
        for entry in ("optimizer", "content_metadata"):
            del one[entry], two[entry]
    assert one == two


def as_of_015(folder: Path, out: Path, notes: dict[str, Any]) -> Path:
    """A copy whose metadata are of the class that Megatron-core had up to 0.15, and 0.16.1 keeps to load them."""
    from megatron.core.dist_checkpointing.strategies.torch import MCoreMetadata

    shutil.copytree(folder / "ckpt", out)
    found = pickle.loads((out / ".metadata").read_bytes())
    made = MCoreMetadata()
    vars(made).update(vars(found), mcore_data={key: {} for key in found.state_dict_metadata} | notes)
    (out / ".metadata").write_bytes(pickle.dumps(made))
    return out


def test_the_metadata_of_015(saved: tuple[str, Path], tmp_path: Path) -> None:
    _, folder = saved
    source = as_of_015(folder, tmp_path / "old", {})
    convert_checkpoint(source, tmp_path / "ucp", source_format="megatron", destination_format="ucp")
    with ucp.open(folder / "ucp") as first, ucp.open(tmp_path / "ucp") as second:
        assert first.state.values == second.state.values
        assert {name: set(view) for name, view in first.items()} == {
            name: set(view) for name, view in second.items()
        }
    bent = {"output_layer.weight": {"nd_reformulated_orig_global_shape": (32, 16)}}
    with pytest.raises(UcpError, match="does not fit") as refusal:
        convert_checkpoint(
            as_of_015(folder, tmp_path / "bent", bent),
            tmp_path / "no",
            source_format="megatron",
            destination_format="ucp",
        )
    assert refusal.value.code == "UCP-E-SOURCE"


def poison_object(key: str) -> Harm:
    """Put an evil object in the place of one that a rank saved: behind all others, where the metadata then point."""

    def harm(path: Path) -> None:
        from torch.distributed.checkpoint.metadata import MetadataIndex

        metadata = pickle.loads(path.read_bytes())
        place = metadata.storage_data[MetadataIndex(key)]
        archive = io.BytesIO()
        torch.save([Evil()], archive)
        file = path.with_name(place.relative_path)
        place.offset, place.length = file.stat().st_size, archive.tell()
        with file.open("ab") as stream:
            stream.write(archive.getvalue())
        path.write_bytes(pickle.dumps(metadata))

    return harm


RNG = "rng_state/shard_1_2"
EXTRA = "decoder.layers.mlp.linear_fc1._extra_state/shard_2_4"


@pytest.mark.parametrize("saved", ["tp2"], indirect=True)
@pytest.mark.parametrize(
    ("victim", "harm", "code", "named"),
    [
        ("common.pt", truncate, "UCP-E-SOURCE", "common.pt"),
        ("common.pt", flip, "UCP-E-SOURCE", "common.pt"),
        ("common.pt", remove, "UCP-E-SOURCE", "common.pt"),
        ("common.pt", poison, "UCP-E-PICKLE", "common.pt"),
        ("common.pt", replace_pickle, "UCP-E-SOURCE", "common.pt"),
        (".metadata", truncate, "UCP-E-PICKLE", ".metadata"),
        (".metadata", remove, "UCP-E-SOURCE", ".metadata"),
        (".metadata", replace_pickle, "UCP-E-PICKLE", ".metadata"),
        ("metadata.json", truncate, "UCP-E-SOURCE", "metadata.json"),
        ("metadata.json", remove, "UCP-E-SOURCE", "metadata.json"),
        ("__0_0.distcp", truncate, "UCP-E-SOURCE", "__0_0.distcp"),
        ("__0_0.distcp", flip, "UCP-E-SOURCE", "__0_0.distcp"),
        ("__1_0.distcp", remove, "UCP-E-SOURCE", "__1_0.distcp"),
        (".metadata", poison_object(RNG), "UCP-E-PICKLE", RNG),
        (".metadata", poison_object(EXTRA), "UCP-E-PICKLE", EXTRA),
    ],
)
def test_harm_is_found(
    saved: tuple[str, Path],
    victim: str,
    harm: Harm,
    code: str,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, folder = saved
    is_found(folder / "ckpt", "megatron", victim, harm, code, tmp_path, monkeypatch, named=named)


@pytest.mark.parametrize("saved", ["tp2"], indirect=True)
def test_the_common_state_of_another_iteration_is_refused(saved: tuple[str, Path], tmp_path: Path) -> None:
    """Megatron-LM names the directory after the iteration that ``common.pt`` is of."""
    _, folder = saved
    shutil.copytree(folder / "ckpt", tmp_path / "iter_0000008")
    with pytest.raises(UcpError, match="two saves") as refusal:
        convert_checkpoint(
            tmp_path / "iter_0000008",
            tmp_path / "out.ucp",
            source_format="megatron",
            destination_format="ucp",
        )
    assert (refusal.value.code, refusal.value.at) == ("UCP-E-SOURCE", "common.pt")


def test_no_file_is_lost_in_silence(saved: tuple[str, Path], tmp_path: Path) -> None:
    _, folder = saved
    found = sweep(folder / "ckpt", tmp_path)
    found.check()
    print(found.counts)
