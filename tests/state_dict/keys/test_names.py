from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.conversion.formats.dcp.cases import DcpCase
from ucpformat.conversion.formats.dcp import DcpDirectory, KeyPath
from ucpformat.state_dict.keys.names import Assignment, Names, recognise

Paths = dict[str, KeyPath | None]


def keyed(*paths: KeyPath) -> Paths:
    return {".".join(map(str, path)): path for path in paths}


def found(names: Names) -> dict[str, tuple[str, str]]:
    return {key: (place.name, place.slot) for key, place in names.assignments.items()}


words = st.sampled_from(
    (
        *(
            "model",
            "optim",
            "state",
            "param_groups",
            "w",
            "a",
            "a.w",
            "exp_avg",
            "model.w",
            "state.w.exp_avg",
        ),
        *("value", "state.a.w.m", "param_groups.w.lr", "model_state_dict", "", ".", "step"),
    )
)
paths = st.lists(words | st.integers(0, 2), min_size=1, max_size=5).map(tuple)


@given(st.lists(paths, max_size=25), st.lists(paths, max_size=8), st.booleans())
def test_the_map_is_injective(tensors: list[KeyPath], objects: list[KeyPath], known: bool) -> None:
    tensor_paths = keyed(*tensors)
    object_paths = {key: path for key, path in keyed(*objects).items() if key not in tensor_paths}
    if not known:
        tensor_paths = dict.fromkeys(tensor_paths)
        object_paths = dict.fromkeys(object_paths)
    names = recognise(tensor_paths, object_paths)
    assert names.assignments.keys() == tensor_paths.keys()
    taken = [*names.assignments.values()]
    taken += [Assignment(name, slot) for found in names.optimizers for _, name, slot in found.object_states]
    assert len(set(taken)) == len(taken)
    # A state stands beside a value, and what is not recognised keeps its key.
    values = {place.name for place in names.assignments.values() if place.slot == "value"}
    for key, place in names.assignments.items():
        assert place.name in values
        assert place.slot
        assert place == Assignment(key, "value") or key.endswith((place.name, place.slot))
    assert recognise(tensor_paths, object_paths) == names


def test_the_nested_form() -> None:
    tensors = keyed(
        ("model", "a.w"),
        ("model", "a.count"),
        ("optim", "state", "a.w", "exp_avg"),
        ("optim", "state", "a.w", "precondition", "0"),
        ("optim", "state", "gone", "exp_avg"),
        ("rng",),
    )
    objects = keyed(
        ("optim", "state", "a.w", "step"),
        ("optim", "param_groups", 0, "lr"),
        ("optim", "param_groups", 0, "params"),
        ("optim", "param_groups", 1, "lr"),
    )
    names = recognise(tensors, objects)
    assert found(names) == {
        "model.a.w": ("a.w", "value"),
        "model.a.count": ("a.count", "value"),
        "optim.state.a.w.exp_avg": ("a.w", "exp_avg"),
        "optim.state.a.w.precondition.0": ("a.w", "precondition.0"),
        "optim.state.gone.exp_avg": ("optim.state.gone.exp_avg", "value"),
        "rng": ("rng", "value"),
    }
    (optimizer,) = names.optimizers
    assert (optimizer.name, optimizer.path, optimizer.form) == ("optim", ("optim",), "nested")
    assert optimizer.object_states == (("optim.state.a.w.step", "a.w", "step"),)
    assert [(group.of, dict(group.options)) for group in optimizer.groups] == [
        (0, {"lr": "optim.param_groups.0.lr", "params": "optim.param_groups.0.params"}),
        (1, {"lr": "optim.param_groups.1.lr"}),
    ]


@pytest.mark.parametrize("known", [True, False])
def test_the_flattened_form_with_and_without_paths(known: bool) -> None:
    tensors = keyed(
        ("model", "a"), ("model", "a.w"), ("optim", "state.a.w.exp_avg"), ("optim", "state.a.exp_avg")
    )
    objects = keyed(("optim", "param_groups.a.w.lr"), ("optim", "param_groups.a.lr"))
    if not known:
        tensors, objects = dict.fromkeys(tensors), dict.fromkeys(objects)
    names = recognise(tensors, objects)
    assert found(names) == {
        "model.a": ("a", "value"),
        "model.a.w": ("a.w", "value"),
        "optim.state.a.w.exp_avg": ("a.w", "exp_avg"),
        "optim.state.a.exp_avg": ("a", "exp_avg"),
    }
    (optimizer,) = names.optimizers
    assert optimizer.form == "flattened"
    assert [(group.of, group.options) for group in optimizer.groups] == [
        ("a.w", (("lr", "optim.param_groups.a.w.lr"),)),
        ("a", (("lr", "optim.param_groups.a.lr"),)),
    ]


def test_deeper_in_the_application_state() -> None:
    names = recognise(keyed(("app", "model", "w"), ("app", "optim", "state", "w", "exp_avg")), {})
    assert found(names)["app.model.w"] == ("w", "value")
    assert found(names)["app.optim.state.w.exp_avg"] == ("w", "exp_avg")


def test_a_model_of_another_name_is_found_by_its_optimizer() -> None:
    tensors = keyed(("net", "w"), ("net", "b"), ("opt", "state", "w", "m"), ("other", "x"))
    assert found(recognise(tensors, {})) == {
        "net.w": ("w", "value"),
        "net.b": ("b", "value"),
        "opt.state.w.m": ("w", "m"),
        "other.x": ("other.x", "value"),
    }


def test_a_plain_model_at_the_top_keeps_its_names() -> None:
    tensors = keyed(("layers.0.w",), ("model.b",), ("optim", "state", "layers.0.w", "m"))
    assert found(recognise(tensors, {})) == {
        "layers.0.w": ("layers.0.w", "value"),
        "model.b": ("model.b", "value"),
        "optim.state.layers.0.w.m": ("layers.0.w", "m"),
    }
    assert found(recognise({"model.b": None, "model.layers.0": None}, {})) == {
        "model.b": ("model.b", "value"),
        "model.layers.0": ("model.layers.0", "value"),
    }


def test_an_average_beside_the_model_keeps_its_keys() -> None:
    tensors = keyed(("model", "w"), ("ema", "w"), ("optim", "state", "w", "m"))
    assert found(recognise(tensors, {})) == {
        "model.w": ("w", "value"),
        "ema.w": ("ema.w", "value"),
        "optim.state.w.m": ("w", "m"),
    }


@pytest.mark.parametrize(
    "tensors",
    [
        # Two models with one name, with and without optimizers.
        keyed(("a", "model", "w"), ("b", "model", "w")),
        keyed(("g", "model", "w"), ("g", "optim", "state", "w", "m"), ("d", "model", "w")),
        keyed(("g", "w"), ("d", "w"), ("optim", "state", "w", "m")),
        # A plain tensor of the same name.
        keyed(("model", "w"), ("w",)),
        # Two optimizers for one parameter's state leave both unrecognised, but not the model.
    ],
)
def test_what_is_ambiguous_keeps_its_keys(tensors: Paths) -> None:
    assert found(recognise(tensors, {})) == {key: (key, "value") for key in tensors}


def test_two_optimizers_with_the_same_states() -> None:
    tensors = keyed(("model", "w"), ("o1", "state", "w", "m"), ("o2", "state", "w", "m"))
    names = recognise(tensors, {})
    assert found(names)["model.w"] == ("w", "value")
    assert found(names)["o1.state.w.m"] == ("o1.state.w.m", "value")
    assert names.optimizers == ()


def test_two_optimizers_with_parameters_of_their_own() -> None:
    tensors = keyed(("model", "w"), ("model", "b"), ("o1", "state", "w", "m"), ("o2", "state", "b", "m"))
    names = recognise(tensors, {})
    assert found(names)["o1.state.w.m"] == ("w", "m")
    assert found(names)["o2.state.b.m"] == ("b", "m")
    assert [optimizer.name for optimizer in names.optimizers] == ["o1", "o2"]


def test_optimizers_in_a_list() -> None:
    names = recognise(
        keyed(
            ("model", "a.w"),
            ("model", "b.w"),
            ("optims", 0, "state", "a.w", "exp_avg"),
            ("optims", 1, "state", "b.w", "momentum_buffer"),
        ),
        keyed(("optims", 0, "param_groups", 0, "lr")),
    )
    assert sorted(found(names).values()) == [
        ("a.w", "exp_avg"), ("a.w", "value"), ("b.w", "momentum_buffer"), ("b.w", "value")
    ]  # fmt: skip
    assert len(names.optimizers) == 2


def test_an_optimizer_without_states() -> None:
    names = recognise(keyed(("model", "w")), keyed(("optim", "param_groups", 0, "lr")))
    assert [optimizer.name for optimizer in names.optimizers] == ["optim"]
    names = recognise(keyed(("model", "w")), keyed(("optim", "param_groups.w.lr")))
    assert names.optimizers[0].groups[0].of == "w"


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("name", "form", "groups"), [("fsdp_4", "nested", 2), ("fsdp_tp_2x2_flattened", "flattened", 7)]
)
def test_real_checkpoints(dcp_case: DcpCase, name: str, form: str, groups: int) -> None:
    directory = DcpDirectory.open(dcp_case(name).path)
    names = recognise(
        {key: tensor.path for key, tensor in directory.tensors.items()},
        {key: item.path for key, item in directory.objects.items()},
    )
    (optimizer,) = names.optimizers
    assert (optimizer.form, len(optimizer.groups)) == (form, groups)
    assert found(names)["optim.state.up.weight.exp_avg_sq"] == ("up.weight", "exp_avg_sq")
    assert {place.slot for place in names.assignments.values()} == {"value", "exp_avg", "exp_avg_sq", "step"}
    kept = {key for key, place in names.assignments.items() if place == Assignment(key, "value")}
    assert kept == {"rng.torch"}


def test_a_state_whose_name_is_no_component_has_a_slot_all_the_same() -> None:
    def names(*states: str) -> list[tuple[str, str]]:
        tensors: dict[str, KeyPath | None] = {"model.w": ("model", "w")}
        tensors |= {f"optim.state.w.{state}": ("optim", "state", "w", state) for state in states}
        found = recognise(tensors, {}).assignments
        return [
            (found[f"optim.state.w.{state}"].name, found[f"optim.state.w.{state}"].slot) for state in states
        ]

    assert names("__hidden__", "with space") == [("w", "hidden__"), ("w", "with_space")]
    # Two of one name are left where they were, and what has nothing of a name.
    assert names("__m", "m") == [("optim.state.w.__m", "value"), ("optim.state.w.m", "value")]
    assert names("...") == [("optim.state.w....", "value")]
