"""Pipelines in universal checkpoints and with experts, without DeepSpeed; its own are in tests/frameworks_live."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ucpformat
from tests.conversion.formats.deepspeed.made import make_checkpoint
from tests.conversion.formats.deepspeed.test_pipeline import GROUPS, SHAPES, same
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.errors import UcpError

ALIASES = {"tied_modules.embed.weight": "0.weight"}
MARK = "deepspeed_moe.experts.deepspeed_experts"
EXPERTS = {f"{layer}.{MARK}.{number}.w": (3, 2) for layer in (1, 3) for number in range(4)}
DENSE = {"0.embed": (7, 3), "1.norm": (3,), "3.norm": (3,), "tied_modules.head.weight": (2, 3)}


def written(source: Path, out: Path, format_name: str = "deepspeed", **settings: str) -> Path:
    convert_checkpoint(source, out, source_format="ucp", destination_format=format_name, settings=settings)
    return out


def read(source: Path, out: Path, format_name: str, **settings: str) -> Path:
    convert_checkpoint(
        source, out, source_format=format_name, destination_format="ucp", source_settings=settings
    )
    assert ucpformat.validate(out) == []
    return out


def universal(folder: Path, *, has_layers: bool, kind: str = "bfloat16") -> Path:
    """As DeepSpeed's converter leaves it: states of all stages, and the model files of each."""
    values = {"ds_config": {"bf16" if kind == "bfloat16" else "fp16": {"enabled": True}}}
    source = make_checkpoint(
        folder / "in.ucp",
        shapes=SHAPES,
        groups=GROUPS,
        aliases=ALIASES,
        prefix="2.",
        values=values,
        kind=kind,
    )
    out = written(source, folder / "uni", "ds-universal")
    native = written(source, folder / "ds", stage="1", world_size="2", pipeline="0,2", ties="embed:0,1")
    for path in (out / "universal").glob("*model_states.pt"):
        path.unlink()
    for path in (native / "global_step5").glob("*model_states.pt"):
        if has_layers or not path.name.startswith("layer"):
            shutil.copy(path, out / "universal")
    return out


def test_a_universal_checkpoint_of_a_pipeline_comes_in_whole(tmp_path: Path) -> None:
    path = read(universal(tmp_path, has_layers=True), tmp_path / "out.ucp", "ds-universal")
    same(tmp_path / "in.ucp", path)
    again = read(written(path, tmp_path / "again"), tmp_path / "again.ucp", "deepspeed")
    same(tmp_path / "in.ucp", again)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_without_layers_it_has_what_was_trained(tmp_path: Path, kind: str) -> None:
    """Weights are masters, rounded to the type that the configuration says."""
    source = universal(tmp_path, has_layers=False, kind=kind)
    path = read(source, tmp_path / "out.ucp", "ds-universal", tied_layers="embed:0")
    with ucpformat.open(tmp_path / "in.ucp") as one, ucpformat.open(path) as other:
        assert set(other) == set(SHAPES)
        for name, view in other.items():
            assert view.atom.aliases == one[name].atom.aliases
            assert {slot: item.read().tobytes() for slot, item in view.items()} == {
                slot: item.read().tobytes() for slot, item in one[name].items()
            }
    nameless = read(source, tmp_path / "nameless.ucp", "ds-universal")
    with pytest.raises(UcpError, match="tied_layers=embed:LAYER") as refusal:
        written(nameless, tmp_path / "no")
    assert refusal.value.code == "UCP-E-MISMATCH"
    with pytest.raises(UcpError, match="no stage has") as refusal:
        read(source, tmp_path / "no.ucp", "ds-universal", tied_layers="head:0")
    assert refusal.value.code == "UCP-E-SOURCE"
    (source / "universal" / "mp_rank_01_model_states.pt").unlink()
    with pytest.raises(UcpError, match=r"mp_rank_01_model_states\.pt is missing") as refusal:
        read(source, tmp_path / "less.ucp", "ds-universal")
    assert refusal.value.code == "UCP-E-SOURCE"


@pytest.mark.parametrize(("stage", "degree"), [("1", "1"), ("1", "2"), ("0", "1"), ("0", "4")])
def test_experts_in_a_pipeline_come_back(tmp_path: Path, stage: str, degree: str) -> None:
    source = make_checkpoint(
        tmp_path / "in.ucp",
        shapes=DENSE | EXPERTS,
        groups=[list(DENSE), list(EXPERTS)],
        kind="float32",
        aliases={},
        prefix="3.",
    )
    settings = {"pipeline": "0,2", "ties": "head:0,1", "world_size": "4", "ep_size": degree, "stage": stage}
    out = written(source, tmp_path / "ds", **settings)
    folder = out / "global_step5"
    assert not list(folder.glob("layer_*-model_states.pt"))
    assert len(list(folder.glob("layer_0_expert_*"))) == 8  # the first mixture of each stage
    found = read(out, tmp_path / "out.ucp", "deepspeed", frozen="3.fixed")
    with ucpformat.open(source) as one, ucpformat.open(found) as other:
        assert set(one) == set(other)
        for name, view in one.items():
            for slot, item in view.items():
                assert other[name][slot].read().tobytes() == item.read().tobytes(), (name, slot)
    with pytest.raises(UcpError, match="stage 1 would have no experts") as refusal:
        written(source, tmp_path / "no", **{**settings, "pipeline": "0,2,3", "ties": "head:0,1"})
    assert refusal.value.code == "UCP-E-MISMATCH"
