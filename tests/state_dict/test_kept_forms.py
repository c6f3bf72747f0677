"""One saver saves one state after another: what it keeps of the last must not show in the next."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ucpformat as ucp

_NAMES = ("a", "b", "c.w")
_ZSTD = ucp.Compressor("zstd", {"level": 1, "checksum": False})
_CHANGES = [
    "tied",
    "gone",
    "shape",
    "swapped",
    "order",
    "type",
    "storage",
    "chunks",
    "packed",
    "nested",
    "group",
]


@st.composite
def _states(draw: st.DrawFn) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return states with the options of their saves: each is the one before, with something changed."""
    memory = [torch.arange(600.0) + 1000 * number for number in range(2)]
    model: dict[str, Any] = {"a": memory[0], "b": memory[1]}
    step = torch.tensor(4.0)
    group: dict[str, Any] = {"lr": 0.1}
    options: dict[str, Any] = {}
    nested = False
    states = []
    for number in range(draw(st.integers(2, 5))):
        name, other = draw(st.sampled_from(_NAMES)), draw(st.sampled_from(_NAMES))
        one, another = model.get(name), model.get(other)
        match draw(st.sampled_from(_CHANGES)):
            case "tied":
                model = {**model, name: draw(st.sampled_from(memory))}
            case "gone" if len(model) > 1:
                model.pop(name, None)
            case "shape" if one is not None:
                model = {**model, name: one.reshape(30, 20) if one.ndim == 1 else one.reshape(600)}
            case "swapped" if one is not None and another is not None:
                model = {**model, name: another, other: one}
            case "order":
                model = dict(reversed(model.items()))
            case "type" if one is not None:
                model = {**model, name: one.to(draw(st.sampled_from([torch.float64, torch.int32])))}
            case "storage":
                options = {**options, "storage": draw(st.sampled_from(["packed", "plain"]))}
            case "chunks":
                options = {**options, "chunk_bytes": draw(st.sampled_from([512, 1024]))}
            case "packed":
                options = {**options, "compressor": draw(st.sampled_from([None, _ZSTD]))}
            case "nested":
                nested = not nested
            case "group":
                group = {"lr": 0.2} if len(group) > 1 else {"lr": 0.1, "eps": number}
        content = dict(model)
        if nested and "c.w" in content:
            content["c"] = {"w": content.pop("c.w")}
        state = {
            "model": content,
            "optim": {
                "state": {"a": {"step": step}} if "a" in model else {},
                "param_groups": [{**group, "params": [*model]}],
            },
            "epoch": number,
        }
        states.append((state, dict(options)))
    return states


def _documents(path: Path) -> dict[str, str]:
    """Return the documents of atoms and of the state, without the name of the attempt that wrote them."""
    found = {}
    for one in (path / "index").glob("*-*.json"):
        attempt, _, name = one.name.partition("-")
        if name != "packs.json":
            found[name] = one.read_text(encoding="utf-8").replace(attempt, "attempt")
    return found


@settings(max_examples=100, deadline=None)
@given(_states())
def test_each_is_saved_as_if_it_were_the_first(states: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    with tempfile.TemporaryDirectory() as room, ucp.AsyncSaver() as saver:
        for number, (state, options) in enumerate(states):
            kept, fresh = Path(room, f"kept-{number}.ucp"), Path(room, f"fresh-{number}.ucp")
            saver.save(kept, state, **options).wait()
            ucp.save(fresh, state, **options)
            assert ucp.validate(kept) == []
            assert ucp.diff(fresh, kept).is_equal
            assert _documents(kept) == _documents(fresh)
