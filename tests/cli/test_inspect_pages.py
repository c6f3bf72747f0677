"""The pages of ``ucp inspect`` for models of several kinds, and for names of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cli.kept_pages import WIDTHS, compare_page
from ucpformat.geometry import Layout, Mesh, MeshAxis, Shard
from ucpformat.model.dtype import DTYPES
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

MESH = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 4)))
HOSTILE = "red\u202egnp.exe<script>[bold]"


def gpt() -> Iterator[AtomSpec]:
    """Twelve blocks, with moments, split over tensor parallel ranks."""
    shapes = {
        "wte": (512, 64), "wpe": (128, 64), "ln_f.weight": (64,), "ln_f.bias": (64,),
        **{
            f"h.{n}.{name}": shape
            for n in range(12)
            for name, shape in {
                "attn.c_attn.weight": (192, 64), "attn.c_attn.bias": (192,), "attn.c_proj.weight": (64, 64),
                "mlp.c_fc.weight": (256, 64), "mlp.c_proj.weight": (64, 256), "ln_1.weight": (64,),
            }.items()
        },
    }  # fmt: skip
    for name, shape in shapes.items():
        layout = Layout(MESH, (Shard("tp", len(shape) - 1, "ceil"),)) if len(shape) > 1 else Layout(MESH, ())
        slots = {slot: SlotSpec("float32", shape, layout) for slot in ("value", "exp_avg", "exp_avg_sq")}
        yield AtomSpec(name, slots, ("lm_head.weight",) if name == "wte" else ())


def experts() -> Iterator[AtomSpec]:
    """10,000 atoms of a mixture of experts."""
    for layer in range(39):
        yield AtomSpec(f"layers.{layer}.router.weight", {"value": SlotSpec("float32", (64, 8))})
        for expert in range(64):
            for name in ("w1", "w2", "w3", "scale"):
                shape = (8, 4) if name != "scale" else (8,)
                yield AtomSpec(
                    f"layers.{layer}.experts.{expert}.{name}", {"value": SlotSpec("bfloat16", shape)}
                )


def long_names() -> Iterator[AtomSpec]:
    """Names of 1,024 bytes, and such as speak to a terminal or a page."""
    yield AtomSpec("a" * 1024, {"value": SlotSpec("int8", (3,))})
    yield AtomSpec("deep." * 204 + "ende", {"value": SlotSpec("int8", (5,))})
    yield AtomSpec(HOSTILE, {"value": SlotSpec("int8", (7,))})


CASES: dict[str, Callable[[], Iterator[AtomSpec]]] = {
    "gpt": gpt,
    "experts": experts,
    "empty": lambda: iter(()),
    "long-names": long_names,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name, atoms in CASES.items():
        specs = list(atoms())
        path = found[name] = tmp_path_factory.mktemp("pages") / f"{name}.ucp"
        with CheckpointWriter(path, specs, step=1000, attempt="a" * 8, durability="none") as writer:
            for spec in specs:
                for slot, form in spec.slots.items():
                    writer.write(spec.name, slot, np.ones(form.shape, DTYPES[str(form.dtype)].numpy))
            if name == "gpt":
                names = [spec.name for spec in specs]
                writer.set_optimizer("optim", [(names, {"lr": 0.0003, "betas": (0.9, 0.95), "fused": None})])
                writer.set_value("epoch", 3)
                writer.set_value("scheduler", {"last_lr": [0.0003], "warmup": 100})
    return found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", CASES)
def test_the_pages_are_as_they_are_kept(
    saved: dict[str, Path], name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_page(saved[name], name, width, monkeypatch)
