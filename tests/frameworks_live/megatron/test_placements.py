"""Megatron's parallel layers split marker weights themselves (`_initialize_affine_weight_cpu`); ours must agree.

Every case runs at several degrees, and what Megatron's `sharded_state_dict` says of each local tensor is lowered too.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm.gated_delta_net import _split_tensor_factory
from megatron.core.tensor_parallel.utils import VocabUtility
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.moe import experts as megatron_experts
from megatron.core.utils import make_tp_sharded_tensor_for_checkpoint
from numpy.typing import NDArray
from torch.nn.functional import silu

from tests.conversion.formats.megatron.attention import qkv_map
from tests.conversion.formats.megatron.meshes import dense_mesh, expert_mesh
from tests.conversion.formats.megatron.placements import (
    column_parallel_steps,
    gated_steps,
    grouped_expert_steps,
    row_parallel_steps,
    sequential_expert_steps,
    vocabulary_steps,
)
from tests.conversion.formats.megatron.sharded_tensor import (
    ShardedTensorFacts,
    fused_map,
    is_main_replica,
    sharded_holdings,
    sharded_map,
)
from tests.frameworks_live.megatron.worlds import array, configuration, every_rank, shards
from tests.geometry import model
from ucpformat.geometry import (
    AtomMap,
    Box,
    Layout,
    Member,
    Mesh,
    Shard,
    Step,
    compose_atoms,
    distinct_boxes,
    exact_cover,
    lower,
    sub_parameter_steps,
)

Array = NDArray[Any]
Shards = dict[str, list[tuple[ShardedTensorFacts, Array]]]


def metadata() -> dict[str, Any]:
    return {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}


def ours(
    mesh: Mesh, steps: Sequence[Step], shape: tuple[int, ...], logical: Array | None = None
) -> list[Array]:
    """The local tensors of every rank under our lowering."""
    lowering = lower(Layout(mesh, tuple(steps)), shape)
    whole = (model.counter(shape) if logical is None else logical).reshape(lowering.view)
    found = []
    for rank in range(mesh.size):
        local_map = lowering.at(mesh.coordinate_of(rank))
        assert local_map is not None
        found.append(model.local_array(local_map, whole))
    return found


def check_shards(ranks: list[Shards], key: str, whole: Array) -> None:
    """What Megatron says of its shards: our pieces of each are its data, the main replicas are the whole."""
    listed = [(rank, facts) for rank, found in enumerate(ranks) for facts, _ in found[key]]
    for found in ranks:
        for facts, data in found[key]:
            np.testing.assert_array_equal(model.local_array(sharded_map(facts), whole), data)
    assert exact_cover(distinct_boxes(sharded_holdings(listed)), whole.shape) is None
    main = sharded_holdings((rank, facts) for rank, facts in listed if is_main_replica(facts))
    boxes = [piece.box for _, local_map in main.maps for piece in local_map.pieces]
    assert exact_cover(boxes, whole.shape) is None, "Megatron writes every cell once"


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_column_and_row_parallel(tp: int) -> None:
    size = 2 * tp

    def work(rank: int) -> tuple[Array, Array, Shards]:
        config = configuration()
        column = tensor_parallel.ColumnParallelLinear(
            8, 16, config=config, init_method=config.init_method, bias=False
        )
        row = tensor_parallel.RowParallelLinear(
            16,
            8,
            config=config,
            init_method=config.init_method,
            bias=False,
            input_is_parallel=True,
            skip_bias_add=True,
        )
        state = {
            **column.sharded_state_dict("column.", (), metadata()),
            **row.sharded_state_dict("row.", (), metadata()),
        }
        return array(column.weight), array(row.weight), shards(state)

    ranks = every_rank(size, work, tensor_model_parallel_size=tp)
    mesh = dense_mesh(tp=tp, dp=2)
    for place, (shape, steps, key) in enumerate(
        [
            ((16, 8), column_parallel_steps(), "column.weight"),
            ((8, 16), row_parallel_steps(), "row.weight"),
        ]
    ):
        for theirs, local in zip(ranks, ours(mesh, steps, shape), strict=True):
            np.testing.assert_array_equal(local, theirs[place])
        check_shards([found for *_, found in ranks], key, model.counter(shape))


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("vocabulary", [29, 32, 1])
def test_padded_vocabulary(tp: int, vocabulary: int) -> None:
    # The function that pads is in megatron/training, which no wheel has; the layers below are given its result.
    divisible_by = 4
    padded = -(-vocabulary // (divisible_by * tp)) * divisible_by * tp

    def work(rank: int) -> tuple[Array, Shards, tuple[int, int]]:
        config = configuration()
        embedding = tensor_parallel.VocabParallelEmbedding(
            padded, 8, init_method=config.init_method, config=config
        )
        span = VocabUtility.vocab_range_from_global_vocab_size(padded, rank % tp, tp)
        return array(embedding.weight), shards(embedding.sharded_state_dict("", (), metadata())), span

    ranks = every_rank(tp, work, tensor_model_parallel_size=tp)
    shape = (vocabulary, 8)
    locals_ = ours(dense_mesh(tp=tp), vocabulary_steps(divisible_by, tp), shape)
    for (weight, _, (start, stop)), local in zip(ranks, locals_, strict=True):
        assert local.shape == weight.shape == (stop - start, 8)
        real = max(0, min(stop, vocabulary) - start)
        np.testing.assert_array_equal(local[:real], weight[:real])
        assert (local[real:] == -1).all(), "padding is no part of the atom"
    check_shards([found for _, found, _ in ranks], "weight", model.counter((padded, 8)))


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("layer", [None, 1])
def test_gated_unit_and_its_factory(tp: int, layer: int | None) -> None:
    width = 12
    offsets = () if layer is None else ((0, layer, 3),)

    def work(rank: int) -> tuple[Array, Shards]:
        config = configuration(ffn_hidden_size=width, gated_linear_unit=True, activation_func=silu)
        spec = get_gpt_layer_local_spec().submodules.mlp.submodules
        mlp = MLP(config, spec, ffn_hidden_size=width)
        state = mlp.sharded_state_dict("", offsets, metadata())
        return array(mlp.linear_fc1.weight), shards(state)

    ranks = every_rank(tp, work, tensor_model_parallel_size=tp)
    shape = (2 * width, 8)
    locals_ = ours(dense_mesh(tp=tp), gated_steps(width), shape)
    for (weight, found), local in zip(ranks, locals_, strict=True):
        np.testing.assert_array_equal(local, weight)
        facts = [facts for facts, _ in found["linear_fc1.weight"]]
        assert len(facts) == 2, "a gate and an up"
        whole = model.counter(shape)
        if layer is not None:
            whole = np.full((3, *shape), -2)
            whole[layer] = model.counter(shape)
        fused = fused_map(facts, weight.shape, 0)
        np.testing.assert_array_equal(model.local_array(fused, whole), weight)
        if layer is None:
            lowering = lower(Layout(dense_mesh(tp=tp), gated_steps(width)), shape)
            assert fused in [region.local_map for region in lowering.regions()], "the same pieces"
    if layer is None:
        check_shards([found for _, found in ranks], "linear_fc1.weight", model.counter(shape))
        check_shards([found for _, found in ranks], "linear_fc2.weight", model.counter((8, width)))


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (8, 2), (4, 2)])
@pytest.mark.parametrize("gated", [False, True])
def test_query_key_value(tp: int, heads: int, groups: int, *, gated: bool) -> None:
    hidden, head_dim = 8, 4

    def work(rank: int) -> tuple[Array, list[Array], Shards]:
        config = configuration(
            num_attention_heads=heads,
            num_query_groups=groups,
            kv_channels=head_dim,
            attention_output_gate=gated,
        )
        submodules = get_gpt_layer_local_spec().submodules.self_attention.submodules
        attention = SelfAttention(config, submodules, layer_number=1)
        # One-hot hidden states read the weights out of what Megatron itself splits.
        parts = attention.get_query_key_value_tensors(
            torch.eye(hidden).unsqueeze(1), None, **({"output_gate": True} if gated else {})
        )
        if gated:
            query, key, value, gate = parts
            parts = (query, gate, key, value)
        read = [array(part).reshape(hidden, -1).T for part in parts]
        state = attention.linear_qkv.sharded_state_dict("", (), metadata())
        return array(attention.linear_qkv.weight), read, shards(state)

    ranks = every_rank(tp, work, tensor_model_parallel_size=tp)
    names = ("q", "gate", "k", "v") if gated else ("q", "k", "v")
    split = qkv_map("qkv", names, heads=heads, groups=groups, head_dim=head_dim, hidden=hidden)
    for (weight, _, _), local in zip(
        ranks, ours(dense_mesh(tp=tp), column_parallel_steps(), split.shape), strict=True
    ):
        np.testing.assert_array_equal(local, weight)
    check_shards([found for *_, found in ranks], "weight", model.counter(split.shape))
    fused = AtomMap("qkv", split.shape, split.shape, (Member("qkv", split.shape, Box.whole(split.shape)),))
    copies = compose_atoms(fused, split)
    for place, member in enumerate(split.members):
        memory = np.full(int(np.prod(member.shape)), -1)
        source = model.counter(split.shape).reshape(-1)
        model.apply([copy.move for copy in copies if copy.target == member.name], source, memory)
        # Each rank reads whole heads, so that ranks follow one another along the heads.
        theirs = np.concatenate([read[place] for _, read, _ in ranks])
        np.testing.assert_array_equal(memory.reshape(member.shape), theirs)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_sections_that_a_factory_names(tp: int) -> None:
    # in_proj of GatedDeltaNet, and of Mamba, whose copy of the factory needs triton: sections of unequal width,
    # each split by rows, stored under names of their own.
    widths = (8, 8, 4, 4, 12)
    shape = (sum(widths), 3)
    steps = sub_parameter_steps("tp", 0, widths)
    locals_ = ours(dense_mesh(tp=tp), steps, shape)

    def work(rank: int) -> Shards:
        whole = make_tp_sharded_tensor_for_checkpoint(
            torch.from_numpy(locals_[rank]),
            "in_proj",
            0,
            tp_group=parallel_state.get_tensor_model_parallel_group(),
            dp_cp_group=parallel_state.get_data_parallel_group(with_context_parallel=True),
        )
        return shards(
            {"in_proj": _split_tensor_factory(whole, [width // tp for width in widths], list("zxBCd"), 0)}
        )

    ranks = every_rank(tp, work, tensor_model_parallel_size=tp)
    begin = 0
    for name, width in zip("zxBCd", widths, strict=True):
        check_shards(ranks, f"in_proj.{name}", model.counter(shape)[begin : begin + width])
        begin += width


DEGREES = [(4, 1, 1), (4, 2, 1), (4, 1, 2), (4, 2, 2), (8, 2, 2)]


def groups_of_experts() -> ProcessGroupCollection:
    groups = ProcessGroupCollection()
    groups.ep = parallel_state.get_expert_model_parallel_group()
    groups.expt_tp = parallel_state.get_expert_tensor_parallel_group()
    groups.expt_dp = parallel_state.get_expert_data_parallel_group()
    groups.tp = parallel_state.get_tensor_model_parallel_group()
    groups.dp_cp = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return groups


def expert_settings(ep: int, etp: int, experts: int) -> dict[str, Any]:
    return {
        "num_moe_experts": experts,
        "moe_ffn_hidden_size": 12,
        "ffn_hidden_size": 12,
        "gated_linear_unit": True,
        "activation_func": silu,
        "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": etp,
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
    }


@pytest.mark.parametrize(("size", "ep", "etp"), DEGREES)
def test_sequential_experts(size: int, ep: int, etp: int) -> None:
    experts, width, hidden = 4, 12, 8
    mesh = expert_mesh(etp=etp, ep=ep, edp=size // (etp * ep))

    def work(rank: int) -> tuple[list[Array], list[Array], Shards]:
        config = configuration(**expert_settings(ep, etp, experts))
        spec = get_gpt_layer_local_spec(num_experts=experts, moe_grouped_gemm=False)
        submodules = spec.submodules.mlp.submodules.experts.submodules
        found = megatron_experts.SequentialMLP(experts // ep, config, submodules, groups_of_experts())
        first = parallel_state.get_expert_model_parallel_rank() * (experts // ep)
        with torch.no_grad():  # every expert was given the same markers: tell them apart
            for place, expert in enumerate(found.local_experts):
                expert.linear_fc1.weight += (first + place) * 2 * width * hidden
                expert.linear_fc2.weight += (first + place) * width * hidden
        return (
            [array(expert.linear_fc1.weight) for expert in found.local_experts],
            [array(expert.linear_fc2.weight) for expert in found.local_experts],
            shards(found.sharded_state_dict("", (), metadata())),
        )

    ranks = every_rank(
        size,
        work,
        tensor_model_parallel_size=2,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
    )
    cases = [
        (0, "linear_fc1", (experts, 2 * width, hidden), gated_steps(width, "etp")),
        (1, "linear_fc2", (experts, hidden, width), row_parallel_steps("etp")),
    ]
    for place, key, shape, steps in cases:
        locals_ = ours(mesh, sequential_expert_steps(steps, experts=experts, ep=ep), shape)
        for theirs, local in zip(ranks, locals_, strict=True):
            np.testing.assert_array_equal(local, np.stack(theirs[place]))
        check_shards([found for *_, found in ranks], f"experts.{key}.weight", model.counter(shape))


@pytest.mark.parametrize(("size", "ep", "etp"), DEGREES)
def test_grouped_experts(size: int, ep: int, etp: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the products need grouped_gemm, which is CUDA's; the layout of the weights does not.
    monkeypatch.setattr(megatron_experts.gg, "assert_grouped_gemm_is_available", lambda: None)
    experts, width, hidden = 4, 12, 8
    mesh = expert_mesh(etp=etp, ep=ep, edp=size // (etp * ep))
    cases = {
        "weight1": (
            "linear_fc1",
            (experts, 2 * width, hidden),
            grouped_expert_steps(width, experts=experts, ep=ep),
        ),
        "weight2": (
            "linear_fc2",
            (experts, hidden, width),
            grouped_expert_steps(None, experts=experts, ep=ep),
        ),
    }
    expected = {name: ours(mesh, steps, shape) for name, (_, shape, steps) in cases.items()}

    def work(rank: int) -> Shards:
        settings = {**expert_settings(ep, etp, experts), "moe_grouped_gemm": True}
        found = megatron_experts.GroupedMLP(experts // ep, configuration(**settings), groups_of_experts())
        with torch.no_grad():
            for name, parameter in found.named_parameters():
                local = torch.from_numpy(expected[name][rank])
                assert local.numel() == parameter.numel()
                parameter.copy_(local.reshape(parameter.shape))
        return shards(found.sharded_state_dict("", (), metadata()))

    ranks = every_rank(
        size,
        work,
        tensor_model_parallel_size=2,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
    )
    # Parameters filled by our lowering become, through Megatron's own views and transposes, the global tensors.
    for key, shape, _ in cases.values():
        check_shards(ranks, f"experts.{key}.weight", model.counter(shape))


def test_transformer_engine_is_not_here() -> None:
    """TEGroupedMLP needs TransformerEngine (CUDA): what follows is read, not run.

    transformer/moe/experts.py, `TEGroupedMLP.sharded_state_dict`: one parameter ``weight{i}`` per local expert, its
    keys made "interchangable with SequentialMLP's", gated ones through `apply_swiglu_sharded_factory`; so
    `sequential_expert_steps` are its steps. This holds the sentence that this rests on.
    """
    source = inspect.getdoc(megatron_experts.TEGroupedMLP.sharded_state_dict)
    assert source is not None
    assert "interchangable with SequentialMLP's" in source


@pytest.mark.parametrize(("size", "degrees"), [(8, (2, 1, 2)), (8, (2, 2, 1)), (12, (2, 1, 3))])
def test_ranks_of_the_meshes(size: int, degrees: tuple[int, int, int]) -> None:
    tp, cp, pp = degrees
    dense = dense_mesh(tp=tp, cp=cp, pp=pp, dp=size // (tp * cp * pp))
    expert = expert_mesh(etp=1, ep=2, pp=pp, edp=size // (2 * pp))

    def work(rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        pipeline = parallel_state.get_pipeline_model_parallel_rank()
        return (
            (
                pipeline,
                parallel_state.get_data_parallel_rank(),
                parallel_state.get_context_parallel_rank(),
                parallel_state.get_tensor_model_parallel_rank(),
            ),
            (
                pipeline,
                parallel_state.get_expert_data_parallel_rank(),
                parallel_state.get_expert_model_parallel_rank(),
                parallel_state.get_expert_tensor_parallel_rank(),
            ),
        )

    ranks = every_rank(
        size,
        work,
        tensor_model_parallel_size=tp,
        context_parallel_size=cp,
        pipeline_model_parallel_size=pp,
        expert_model_parallel_size=2,
        expert_tensor_parallel_size=1,
    )
    assert [coordinates for coordinates, _ in ranks] == list(dense.coordinates())
    assert [coordinates for _, coordinates in ranks] == list(expert.coordinates())


def test_an_uneven_shard_without_a_grid() -> None:
    # axis_fragmentations None: no regular grid (0.15 and later), as dp_reshardable has it.
    facts = [ShardedTensorFacts("k", (size,), (10,), (start,)) for start, size in ((0, 4), (4, 4), (8, 2))]
    holdings = sharded_holdings(enumerate(facts))
    lowered = lower(Layout(dense_mesh(dp=3), (Shard("dp", 0, "ceil"),)), (10,))
    assert holdings.regions() == lowered.regions()
