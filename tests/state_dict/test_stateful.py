"""Objects in a state: a fresh optimizer stays fresh, and what cannot be stored is refused with what to do."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ucpformat
from ucpformat import UcpError

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, lr=0.1),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "ASGD": lambda parameters: torch.optim.ASGD(parameters, lr=0.1),
}


def job(kind: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return {"model": model, "optim": OPTIMIZERS[kind](model.parameters())}


def train(state: dict[str, Any]) -> list[float]:
    """Two steps; the weights then."""
    for _ in range(2):
        state["optim"].zero_grad()
        state["model"](torch.ones(4, 3)).square().mean().backward()
        state["optim"].step()
    found: list[float] = state["model"].weight.flatten().tolist()
    return found


@pytest.mark.parametrize("kind", [*OPTIMIZERS])
def test_a_save_before_the_first_step_changes_nothing(tmp_path: Path, kind: str) -> None:
    """Torch makes states of a fresh optimizer by a step: it must count neither here nor in the checkpoint."""
    wanted = train(job(kind))
    saving = job(kind)
    ucpformat.save(tmp_path / "s", saving)
    assert not saving["optim"].state
    assert train(saving) == wanted
    if kind != "ASGD":  # which keeps its learning rate among its states, and torch sets that to zero
        loaded = job(kind)
        ucpformat.load(tmp_path / "s", loaded)
        assert train(loaded) == wanted


def test_an_optimizer_that_nothing_is_loaded_into_stays_fresh(tmp_path: Path) -> None:
    wanted = train(job("AdamW"))
    ucpformat.save(tmp_path / "s", job("AdamW"))
    part = job("AdamW")
    ucpformat.load(tmp_path / "s", part, only="model")
    assert not part["optim"].state
    assert train(part) == wanted
    refused = job("AdamW") | {"absent": 1}
    with pytest.raises(UcpError, match="absent: missing"):
        ucpformat.load(tmp_path / "s", refused)
    assert train(refused) == wanted


def test_new_parameters_keep_their_fresh_states(tmp_path: Path) -> None:
    """A base model under a new head, with one optimizer for both: as torch's strict=False."""
    begun = job("AdamW")
    train(begun)
    ucpformat.save(tmp_path / "s", begun)
    state = job("AdamW")
    state["model"].head = torch.nn.Linear(2, 2)
    before = state["model"].head.weight.tolist()
    state["optim"] = OPTIMIZERS["AdamW"](state["model"].parameters())
    said: list[Any] = []
    ucpformat.load(tmp_path / "s", state, strict=False, report=said.append)
    assert {name for name in said[0].missing if name.startswith("model.")} == {
        "model.head.weight",
        "model.head.bias",
    }
    assert state["model"].weight.tolist() == begun["model"].weight.tolist()
    assert state["model"].head.weight.tolist() == before
    steps = [int(states["step"]) for states in state["optim"].state.values()]
    assert steps == [2, 2, 0, 0]
    assert len(state["optim"].param_groups[0]["params"]) == 4


@pytest.mark.parametrize(
    ("thing", "remedy"),
    [
        (torch.Generator(), "save its get_state()"),
        (torch.nn.Linear(1, 1), "put it at the top level of the state, or give its state_dict()"),
        (torch.optim.SGD([torch.zeros(1)]), "with its module beside it, or give its state_dict()"),
        (np.random.default_rng(), "bit_generator.state is a dict of plain data"),
        (random.Random(), "save its getstate()"),
        (train, "code is not stored"),
    ],
    ids=lambda thing: "" if isinstance(thing, str) else type(thing).__name__,
)
def test_objects_are_refused_with_what_to_do(tmp_path: Path, thing: object, remedy: str) -> None:
    ucpformat.save(tmp_path / "s", {"a": 1})
    for act in (ucpformat.save, ucpformat.load):
        for inside in (thing, [thing]):
            with pytest.raises(UcpError) as caught:
                act(tmp_path / ("s" if act is ucpformat.load else "t"), {"x": {"y": inside}})
            if act is ucpformat.save:
                at = "x.y" if inside is thing else "x.y#/0"
                assert (caught.value.code, caught.value.at) == ("UCP-E-OBJECT", at)
            if act is ucpformat.save or inside is thing:
                assert remedy in caught.value.message
    assert not (tmp_path / "t").exists()


def test_jax_arrays_are_refused_with_what_to_do(tmp_path: Path) -> None:
    array = type("ArrayImpl", (), {"__module__": "jaxlib._jax"})()
    with pytest.raises(UcpError, match=r"a jaxlib\._jax\.ArrayImpl is no plain data; give numpy\.asarray"):
        ucpformat.save(tmp_path / "s", {"w": array})


def test_a_module_alone_is_a_state(tmp_path: Path) -> None:
    saved = torch.nn.Linear(3, 2)
    report = ucpformat.save(tmp_path / "a", saved)
    ucpformat.async_save(tmp_path / "b", saved).wait()
    ucpformat.CheckpointManager(tmp_path / "run").save(1, saved)
    assert (report.nbytes, list(ucpformat.load(tmp_path / "a"))) == (32, ["model"])
    fills: list[Callable[[torch.nn.Module], object]] = [
        lambda module: ucpformat.load(tmp_path / "a", module),
        lambda module: ucpformat.load(tmp_path / "b", {"model": module}),
        lambda module: ucpformat.CheckpointManager(tmp_path / "run").restore(module),
    ]
    for fill in fills:
        filled = torch.nn.Linear(3, 2)
        fill(filled)
        assert torch.equal(filled.weight, saved.weight)


@pytest.mark.parametrize("given", [[1, 2], None, 3], ids=["list", "none", "number"])
def test_a_state_is_a_dict(tmp_path: Path, given: Any) -> None:
    acts: list[Any] = [ucpformat.save, lambda path, state: ucpformat.async_save(path, state).wait()]
    if given is not None:
        acts.append(ucpformat.load)
    for act in acts:
        ucpformat.save(tmp_path / str(len(list(tmp_path.iterdir()))), {"a": 1})
        with pytest.raises(UcpError, match=r"a state is a dict, such as .*, and not a "):
            act(tmp_path / "0", given)


def test_tensors_without_memory_are_refused_with_what_to_do(tmp_path: Path) -> None:
    ucpformat.save(tmp_path / "s", {"w": torch.zeros(2, 3)})
    for act, tensor, remedy in (
        (ucpformat.save, torch.empty(2, device="meta"), "to_empty(device='cpu')"),
        (ucpformat.load, torch.empty(2, 3, device="meta"), "to_empty(device='cpu')"),
        (
            ucpformat.save,
            torch.eye(2).to_sparse(),
            "a sparse_coo tensor has no dense memory; give to_dense()",
        ),
        (
            ucpformat.load,
            torch.zeros(1).expand(2, 3),
            "several elements share one place in memory; give a clone()",
        ),
    ):
        with pytest.raises(UcpError) as caught:
            act(tmp_path / ("s" if act is ucpformat.load else "t"), {"w": tensor})
        assert (caught.value.code, caught.value.at) == ("UCP-E-MISMATCH", "w")
        assert remedy in caught.value.message


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"compressor": "zst"}, "compressor= is \"auto\" or a ucpformat.Compressor, not 'zst'"),
        (
            {"annotations": {"a": object()}},
            "annotations are JSON: Object of type object is not JSON serializable",
        ),
        ({"annotations": "a"}, "annotations= is a dict, not 'a'"),
        ({"step": -1}, "a step is an integer from 0 on, not -1"),
        ({"step": 1.0}, "a step is an integer from 0 on, not 1.0"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_options_of_saves_are_looked_at(tmp_path: Path, option: dict[str, Any], said: str) -> None:
    for save in (ucpformat.save, ucpformat.async_save):
        with pytest.raises(UcpError) as caught:
            save(tmp_path / "s", {"a": 1}, **option)
        assert caught.value.message == said
    assert not (tmp_path / "s").exists()


def test_when_busy_and_arenas_are_looked_at(tmp_path: Path) -> None:
    with pytest.raises(UcpError, match="when_busy= is one of wait, raise, skip, not 'later'"):
        ucpformat.async_save(tmp_path / "s", {"a": 1}, when_busy="later")  # type: ignore[arg-type]
    with pytest.raises(UcpError, match="an arena has room for a chunk at least, not 0 bytes"):
        ucpformat.AsyncSaver(arena_bytes=0)
