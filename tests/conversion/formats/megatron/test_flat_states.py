"""States in flat buffers, saved by torch itself as Megatron's optimizers name them, come in as states of parameters."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

pytest.importorskip("torch")

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from ucpformat.conversion.contract.job import Job
from ucpformat.conversion.formats.megatron.buffers import BufferParameter, assign_buckets
from ucpformat.conversion.formats.megatron.importer import import_torch_dist
from ucpformat.conversion.formats.megatron.torch_dist import COMMON, CONFIG, CONFIGURATION
from ucpformat.errors import UcpError
from ucpformat.geometry import Box
from ucpformat.model.dtype import dtype

SHAPES = {"embedding.a.weight": (7, 2, 5), "b": (13, 10), "c": (5,)}
STATES = ("param", "exp_avg", "exp_avg_sq")
GROUP = "optimizer.distributed.dp_group_idx_0."
Tree = dict[str, Any]


def saved(path: Path, state: Tree) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there is one process
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)  # as Megatron's
        dcp_save(state, checkpoint_id=path, planner=planner, no_dist=True)
    arguments = {"iteration": 3, "content_metadata": {"distrib_optim_sharding_type": "dp_reshardable"}}
    torch.save(arguments, path / COMMON)
    (path / CONFIG).write_text(json.dumps(dict(CONFIGURATION)))
    return path


def wanted(kind: torch.dtype) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, torch.Tensor]]]:
    """Values of parameters, and their states."""
    generator = torch.Generator().manual_seed(7)
    states = {
        name: {state: torch.randn(shape, generator=generator) for state in STATES}
        for name, shape in SHAPES.items()
    }
    return {name: held["param"].to(kind) for name, held in states.items()}, states


def flat_buckets(
    states: dict[str, dict[str, torch.Tensor]], bucket_size: int | None
) -> list[dict[str, torch.Tensor]]:
    """The flat tensors of each bucket, by state; what is between parameters is no number."""
    slots, buckets = assign_buckets(
        [BufferParameter(states[name]["param"].numel()) for name in SHAPES], dp=3, bucket_size=bucket_size
    )
    found = [{state: torch.full((bucket.unpadded,), torch.nan) for state in STATES} for bucket in buckets]
    for name, slot in zip(SHAPES, slots, strict=True):
        start = slot.place.offsets[0]
        for state in STATES:
            data = states[name][state].reshape(-1)
            found[slot.bucket][state][start : start + data.numel()] = data
    return found


def reshardable(values: Tree, buckets: list[dict[str, torch.Tensor]], kind: torch.dtype) -> Tree:
    """As ``dp_reshardable`` has them: tensors."""
    flats = {
        f"{GROUP}gbuf_idx_0.dtype_({kind}, torch.float32).bucket_idx_{number}.{state}": data
        for number, held in enumerate(buckets)
        for state, data in held.items()
    }
    return {**values, **flats, f"{GROUP}optimizer/shard_0_1": [{"param_groups": []}]}


def gathered(values: Tree, buckets: list[dict[str, torch.Tensor]], kind: torch.dtype) -> Tree:
    """As ``dp_zero_gather_scatter`` has them: an object with buckets one after another."""
    whole = {state: torch.cat([held[state] for held in buckets]) for state in STATES}
    tree = {"buckets_coalesced": True, 0: {(kind, torch.float32): whole}}
    return {
        **values,
        f"{GROUP}param_state/shard_0_1": [tree],
        f"{GROUP}optimizer/shard_0_1": [{"param_groups": []}],
    }


@contextmanager
def imported(state: Tree) -> Iterator[Job]:
    with tempfile.TemporaryDirectory() as folder:
        yield import_torch_dist(saved(Path(folder) / "c", state))


def found_slots(job: Job) -> dict[str, set[str]]:
    return {atom.name: set(atom.slots) for atom in job.atoms}


@settings(max_examples=15)
@given(
    layout=st.sampled_from([reshardable, gathered]),
    kind=st.sampled_from([torch.float32, torch.bfloat16]),
    bucket_size=st.sampled_from([None, 100]),
    data=st.data(),
)
def test_states_are_read_from_any_box(
    layout: Callable[..., Tree], kind: torch.dtype, bucket_size: int | None, data: st.DataObject
) -> None:
    values, states = wanted(kind)
    # Buckets that an object has one after another say their lengths no more.
    buckets = flat_buckets(states, None if layout is gathered else bucket_size)
    with imported(layout(values, buckets, kind)) as job:
        assert found_slots(job) == {name: {"value", "master", "exp_avg", "exp_avg_sq"} for name in SHAPES}
        for source in job.sources:
            shape = SHAPES[source.atom]
            low = [data.draw(st.integers(0, extent - 1)) for extent in shape]
            high = [data.draw(st.integers(at + 1, extent)) for at, extent in zip(low, shape, strict=True)]
            box = Box(tuple(low), tuple(b - a for a, b in zip(low, high, strict=True)))
            part = tuple(map(slice, low, high))
            if source.slot == "value":
                tensor = values[source.atom]
            else:
                tensor = states[source.atom]["param" if source.slot == "master" else source.slot]
            out = np.empty(box.shape, dtype(str(tensor.dtype).removeprefix("torch.")).numpy)
            source.read(box, out)
            expected = tensor[part].contiguous().flatten().view(torch.uint8).numpy()
            assert out.tobytes() == expected.tobytes(), (source.atom, source.slot)
        assert "fully_reshardable" in str(job.state.values["content_metadata"])


def changed(buckets: list[dict[str, torch.Tensor]], how: str) -> list[dict[str, torch.Tensor]]:
    found = [dict(held) for held in buckets]
    if how == "another value":
        found[0]["param"] = found[0]["param"].clone()
        found[0]["param"][0] += 1
    elif how == "a state of another length":
        found[0]["exp_avg"] = torch.cat([found[0]["exp_avg"], torch.zeros(64)])
    elif how == "no copies of parameters":
        for held in found:
            del held["param"]
    elif how == "a state of one bucket alone":
        found[0]["momentum"] = found[0]["exp_avg"]
    else:
        found[0] = {state: torch.cat([data, torch.zeros(6400)]) for state, data in found[0].items()}
    return found


@pytest.mark.parametrize(
    "how",
    [
        "another value",
        "a state of another length",
        "no copies of parameters",
        "a state of one bucket alone",
        "buckets that are too long",
    ],
)
def test_what_does_not_fit_stays_in_its_buffers(how: str) -> None:
    """Nothing is guessed: the buffers are carried as they are."""
    values, states = wanted(torch.float32)
    buckets = flat_buckets(states, 100)
    assert len(buckets) > 1
    good = reshardable(values, buckets, torch.float32)
    bad = reshardable(values, changed(buckets, how), torch.float32)
    with imported(good) as job:
        assert set(found_slots(job)) == set(SHAPES)
    with imported(bad) as job:
        assert set(found_slots(job)) == set(bad) - {f"{GROUP}optimizer/shard_0_1"}


def test_a_missing_bucket_leaves_all_in_their_buffers() -> None:
    values, states = wanted(torch.float32)
    state = reshardable(values, flat_buckets(states, 100), torch.float32)
    state = {key: value for key, value in state.items() if "bucket_idx_0" not in key}
    with imported(state) as job:
        assert {"value"} == set.union(*found_slots(job).values())


def test_ranks_with_other_groups_are_of_two_saves() -> None:
    values, states = wanted(torch.float32)
    state = reshardable(values, flat_buckets(states, None), torch.float32)
    state[f"{GROUP}optimizer/shard_0_1".replace("idx_0", "idx_1")] = [{"param_groups": [{"lr": 1.0}]}]
    with pytest.raises(UcpError, match="from two saves") as refusal, imported(state):
        pass
    assert refusal.value.code == "UCP-E-SOURCE"


def test_a_state_that_is_not_flat_is_refused() -> None:
    values, states = wanted(torch.float32)
    state = gathered(values, flat_buckets(states, None), torch.float32)
    tree = state[f"{GROUP}param_state/shard_0_1"][0]
    held = tree[0][torch.float32, torch.float32]
    held["exp_avg"] = held["exp_avg"].reshape(1, -1)
    with pytest.raises(UcpError, match="no flat tensor"), imported(state):
        pass
    # In another form nothing is looked for: the object is carried as it is.
    del tree["buckets_coalesced"]
    with imported(state) as job:
        assert f"{GROUP}param_state/shard_0_1" in job.state.values
