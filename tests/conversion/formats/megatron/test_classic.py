"""``mp_rank_*`` directories without Megatron: what is read of them, and refused; real ones in tests/frameworks_live."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ucpformat
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.conversion.formats.megatron.buffers import BufferParameter, assign_buckets
from ucpformat.errors import UcpError

LAYERS, WIDTH, VOCABULARY = 4, 6, 8


def whole() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = {"embedding.word_embeddings.weight": torch.randn(VOCABULARY, WIDTH, generator=generator)}
    for layer in range(LAYERS):
        prefix = f"decoder.layers.{layer}."
        found[f"{prefix}self_attention.linear_qkv.weight"] = torch.randn(12, WIDTH, generator=generator)
        found[f"{prefix}self_attention.linear_qkv.bias"] = torch.randn(12, generator=generator)
        found[f"{prefix}self_attention.linear_proj.weight"] = torch.randn(WIDTH, 4, generator=generator)
        found[f"{prefix}mlp.linear_fc1.weight"] = torch.randn(16, WIDTH, generator=generator)
        found[f"{prefix}input_layernorm.weight"] = torch.randn(WIDTH, generator=generator)
    return found


def shard(name: str, tensor: torch.Tensor, rank: int) -> torch.Tensor:
    if name.endswith("linear_proj.weight"):
        return tensor.chunk(2, 1)[rank].contiguous()
    if "linear_fc1" in name:
        return torch.cat([half.chunk(2)[rank] for half in tensor.chunk(2)])
    return tensor if "layernorm" in name else tensor.chunk(2)[rank].contiguous()


def states_of(held: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    return {name: {"exp_avg": tensor * 2, "exp_avg_sq": tensor**2} for name, tensor in held.items()}


def plain(local: dict[str, torch.Tensor]) -> dict[str, Any]:
    """An optimizer that does not shard: matrices first, then what does not decay."""
    groups = []
    states: dict[int, Any] = {}
    for decays in (True, False):
        names = [name for name, tensor in local.items() if (tensor.ndim > 1) == decays]
        numbers = [len(states) + place for place in range(len(names))]
        groups.append({"params": numbers, "lr": 0.1, "wd_mult": float(decays), "is_expert_parallel": False})
        for name, number in zip(names, numbers, strict=True):
            states[number] = {"step": torch.tensor(5.0), **states_of(local)[name]}
    return {"state": states, "param_groups": groups}


def buffered(local: dict[str, torch.Tensor]) -> tuple[dict[str, Any], dict[Any, Any]]:
    """A distributed optimizer's two files, with one bucket."""
    slots, buckets = assign_buckets([BufferParameter(tensor.numel()) for tensor in local.values()], dp=2)
    length = buckets[0].unpadded
    world = {slot: torch.zeros(length) for slot in ("param", "exp_avg", "exp_avg_sq")}
    for slot, (name, tensor) in zip(slots, local.items(), strict=True):
        start = slot.place.offsets[0]
        world["param"][start : start + tensor.numel()] = tensor.reshape(-1)
        for key, state in states_of(local)[name].items():
            world[key][start : start + tensor.numel()] = state.reshape(-1)
    kinds = (torch.float32, torch.float32)
    buffers = {"buckets_coalesced": True, 0: {kinds: {**world, "numel_unpadded": length}}}
    group = {"lr": 0.1, "wd_mult": 1.0, "is_expert_parallel": False, "step": 5}
    return {"optimizer": {"param_groups": [group]}, "grad_scaler": {"scale": 2.0}}, buffers


def args(**more: Any) -> Namespace:
    said = {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "data_parallel_size": 2,
        "swiglu": True,
        "untie_embeddings_and_output_weights": True,
    }
    return Namespace(**{**said, **more})


def saved(folder: Path, *, is_sharded: bool = False, **more: Any) -> Path:
    """Two stages of two tensor-parallel ranks, two layers each, numbered from 0."""
    root = folder / "run" / "iter_0000005"
    for tp in range(2):
        for pp in range(2):
            local = {}
            for name, tensor in whole().items():
                if name.startswith("decoder"):
                    number = int(name.split(".")[2])
                    if number // 2 == pp:
                        local[name.replace(f"layers.{number}", f"layers.{number % 2}")] = shard(
                            name, tensor, tp
                        )
                elif pp == 0:
                    local[name] = shard(name, tensor, tp)
            place = root / f"mp_rank_{tp:02d}_{pp:03d}"
            place.mkdir(parents=True)
            optimizer: Any = plain(local)
            if is_sharded:
                optimizer, buffers = buffered(local)
                torch.save(buffers, place / "distrib_optim.pt")
            tree = {
                "args": args(rank=tp + 4 * pp, **more),
                "iteration": 5,
                "model": {**local, "decoder.layers.0._extra_state": None},
                "optimizer": optimizer,
                "rng_state": [tp, pp],
            }
            torch.save(tree, place / "model_optim_rng.pt")
    (folder / "run" / "latest_checkpointed_iteration.txt").write_text("5")
    return folder / "run"


def read(source: Path, out: Path) -> Path:
    convert_checkpoint(source, out, source_format="megatron-classic", destination_format="ucp")
    return out


@pytest.mark.parametrize("is_sharded", [False, True])
def test_every_tensor_is_whole(tmp_path: Path, is_sharded: bool) -> None:
    source = saved(tmp_path, is_sharded=is_sharded)
    assert detect_format(source) == detect_format(source / "iter_0000005") == "megatron-classic"
    path = read(source, tmp_path / "out.ucp")
    assert ucpformat.validate(path) == []
    wanted = whole()
    with ucpformat.open(path) as found:
        assert set(found) == set(wanted)
        for name, tensor in wanted.items():
            np.testing.assert_array_equal(found[name]["value"].read(), tensor.numpy())
            for slot, state in states_of(wanted)[name].items():
                np.testing.assert_array_equal(found[name][slot].read(), state.numpy())
        groups = found.state.optimizers["optim"].groups
        assert {atom for group in groups for atom in group.atoms} == set(wanted)
        assert found.objects["mp_rank_01_001/rng_state"] == [1, 1]
        assert found.root.progress is not None
        assert found.root.progress.step == 5


def changed(source: Path, rank: str, file: str = "model_optim_rng.pt", **changes: Any) -> None:
    path = source / "iter_0000005" / rank / file
    tree = torch.load(path, weights_only=False)
    torch.save({**tree, **changes}, path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"iteration": 6}, "two saves"),
        ({"model": {}}, "other parameters|no parameters|parameter group"),
        ({"model": 5}, "not a dict"),
        ({"optimizer": [{}, {}]}, "param_groups"),
        ({"optimizer": {"state": {}, "param_groups": [{"params": [0]}]}}, "parameters, the model"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    source = saved(tmp_path)
    changed(source, "mp_rank_01_001", **changes)
    with pytest.raises(UcpError, match=text) as refusal:
        read(source, tmp_path / "out.ucp")
    assert refusal.value.code == "UCP-E-SOURCE"


def odd_state(value: object) -> Any:
    def change(optimizer: dict[str, Any]) -> dict[str, Any]:
        optimizer["state"][0]["step"] = value
        return optimizer

    return change


def masters(count: int) -> Any:
    def change(optimizer: dict[str, Any]) -> dict[str, Any]:
        return {"optimizer": optimizer, "fp32_from_fp16_params": [[]] * count}

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (odd_state(1 << 5000), "no number of 64 bits"),  # more than a float64 can hold
        (odd_state("five"), "no tensor"),
        (odd_state([5]), "no tensor"),
        (masters(1), "1 groups of master copies for 2"),
        (masters(3), "3 groups of master copies for 2"),
        (masters(2), "0 master copies"),
    ],
)
def test_an_optimizer_that_does_not_fit_is_refused(tmp_path: Path, change: Any, text: str) -> None:
    source = saved(tmp_path)
    path = source / "iter_0000005" / "mp_rank_01_001" / "model_optim_rng.pt"
    changed(source, "mp_rank_01_001", optimizer=change(torch.load(path, weights_only=False)["optimizer"]))
    with pytest.raises(UcpError, match=text) as refusal:
        read(source, tmp_path / "out.ucp")
    assert (refusal.value.code, refusal.value.at) == ("UCP-E-SOURCE", "mp_rank_01_001/model_optim_rng.pt")


def test_a_name_of_very_many_digits_is_a_name(tmp_path: Path) -> None:
    """Python refuses to make a number of so many digits."""
    source = saved(tmp_path)
    name = "model" + "9" * 5000
    changed(source, "mp_rank_00_000", **{name: "odd"})
    with ucpformat.open(read(source, tmp_path / "out.ucp")) as found:
        assert found.objects[name] == "odd"


def test_sets_of_two_ranks_are_in_the_order_of_their_hashes(tmp_path: Path) -> None:
    """0 and 8 meet in a set's table: which came first stays to be seen, as with strings under other hash seeds."""
    first, second = set([0, 8]), set([8, 0])  # noqa: C405 - in this order
    assert (first, repr(first) == repr(second)) == (second, False)
    source = saved(tmp_path)
    for place in (source / "iter_0000005").iterdir():
        tree = torch.load(place / "model_optim_rng.pt", weights_only=False)
        for group in tree["optimizer"]["param_groups"]:
            group["odd"] = first if place.name == "mp_rank_00_000" else second
        torch.save(tree, place / "model_optim_rng.pt")
    with ucpformat.open(read(source, tmp_path / "out.ucp")) as found:
        options = found.state.optimizers["optim"].groups[0].options
        assert "odd" in options


def test_a_buffer_that_is_a_view_is_read_where_it_lies(tmp_path: Path) -> None:
    """torch saves the strides of a tensor: elements of a column are not one after another."""
    source = saved(tmp_path, is_sharded=True)
    for place in (source / "iter_0000005").glob("*/distrib_optim.pt"):
        tree = torch.load(place, weights_only=False)
        for held in tree[0].values():
            held["exp_avg"] = torch.stack([held["exp_avg"], torch.zeros_like(held["exp_avg"])], 1)[:, 0]
            assert held["exp_avg"].stride() == (2,)
        torch.save(tree, place)
    with ucpformat.open(read(source, tmp_path / "out.ucp")) as found:
        for name, tensor in whole().items():
            np.testing.assert_array_equal(
                found[name]["exp_avg"].read(), states_of({name: tensor})[name]["exp_avg"].numpy()
            )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"args": None}, "no args"),
        ({"args": args(tensor_model_parallel_size=0)}, "tensor_model_parallel_size"),
        ({"args": args(pipeline_model_parallel_size=4)}, "missing"),
        ({"args": args(pipeline_model_parallel_size=1)}, "missing"),
    ],
)
def test_args_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    source = saved(tmp_path)
    changed(source, "mp_rank_00_000", **changes)
    with pytest.raises(UcpError, match=text) as refusal:
        read(source, tmp_path / "out.ucp")
    assert refusal.value.code == "UCP-E-SOURCE"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"buckets_coalesced": False}, "one by one"),
        ({0: {torch.float32: {"param": torch.zeros(3)}}}, "has 3 elements"),
        ({0: {torch.float32: {"exp_avg": torch.zeros(3)}}}, "no param"),
        ({0: {"float": {}}}, "of type"),
        ({0: {torch.qint8: {}}}, "of type qint8"),
        ({0: {(torch.float32, torch.float32): {}, (torch.float32, torch.bfloat16): {}}}, "no param"),
    ],
)
def test_buffers_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[Any, Any], text: str) -> None:
    source = saved(tmp_path, is_sharded=True)
    path = source / "iter_0000005" / "mp_rank_00_000" / "distrib_optim.pt"
    torch.save({**torch.load(path, weights_only=False), **changes}, path)
    with pytest.raises(UcpError, match=text) as refusal:
        read(source, tmp_path / "out.ucp")
    assert refusal.value.at == "mp_rank_00_000/distrib_optim.pt"


def test_directories_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    source = saved(tmp_path)
    root = source / "iter_0000005"
    (root / "mp_rank_00").mkdir()
    with pytest.raises(UcpError, match="two saves"):
        read(source, tmp_path / "out.ucp")
    (root / "mp_rank_00").rmdir()
    (root / "mp_rank_01_001" / "model_optim_rng.pt").unlink()
    with pytest.raises(UcpError, match="mp_rank_01_001"):
        read(source, tmp_path / "out.ucp")
    (source / "latest_checkpointed_iteration.txt").write_text("6")
    with pytest.raises(UcpError, match="not there"):
        read(source, tmp_path / "out.ucp")
    (source / "latest_checkpointed_iteration.txt").write_text("release")
    (source / "release").mkdir()
    with pytest.raises(UcpError, match="there is no mp_rank"):
        read(source, tmp_path / "out.ucp")


@pytest.mark.parametrize("others", [("00_000", "01_000"), ("00_000", "00_001"), ("00_001", "01_001")])
def test_files_of_two_ranks_that_change_places_are_refused(tmp_path: Path, others: tuple[str, str]) -> None:
    """They are alike but for the rank that wrote them; of one process that wrote all, nothing is known."""
    source = saved(tmp_path)
    one, other = (source / "iter_0000005" / f"mp_rank_{name}" / "model_optim_rng.pt" for name in others)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    with pytest.raises(UcpError, match=r"rank \d of the job wrote it") as refusal:
        read(source, tmp_path / "out.ucp")
    assert refusal.value.at.endswith("model_optim_rng.pt")


def test_files_that_one_process_wrote_for_all_ranks_are_read(tmp_path: Path) -> None:
    source = saved(tmp_path)
    for number in ("00_000", "01_000", "00_001", "01_001"):
        changed(source, f"mp_rank_{number}", args=args(rank=0))
    read(source, tmp_path / "out.ucp")
