"""Pipelines, with ZeRO-1 and without: read by stages, resumed by stock DeepSpeed with other stages and degrees."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import ucpformat
from tests.frameworks_live.deepspeed import jobs
from tests.frameworks_live.deepspeed.make_pipe import MADE, PIPES
from tests.frameworks_live.deepspeed.test_import import array_of
from tests.frameworks_live.deepspeed.test_pipeline_universal import by_stock
from tests.frameworks_live.harm import flip, poison, remove, truncate
from tests.frameworks_live.mutations import is_read_or_refused
from tests.processes import Ranks, launch_in_turn
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.errors import UcpError

pytestmark = pytest.mark.distributed


TIED = {"tied_layers": "embed:0,7"}
"""What no file says of a pipeline without ZeRO, except in bf16."""
OWN = "tied_modules.embed.positions@stage1"
LOST = {"pipe2-z0-fp32-positions": [OWN]}
HALF_SAVED = "pipe2-z0-fp16-positions"
"""DeepSpeed saves of `OWN` the optimizer's copy alone, and a job that loads it begins with weights of its own."""
"""What DeepSpeed writes into no file."""


@dataclass(frozen=True)
class Way:
    """A resumption: of what, as what, on how many ranks."""

    source: str
    target: str
    world: int
    pipeline: str = ""
    ties: str = ""
    via: str = ""

    def __str__(self) -> str:
        arrow = "native" if self.pipeline else "universal"
        return f"{self.source}-{self.via + '-' if self.via else ''}{arrow}-{self.target}-{self.world}"

    def middle(self, made: Path, folder: Path) -> Path:
        """The checkpoint of ours in between: of what DeepSpeed saved, or of what its converter made of that."""
        path = folder / f"{self.source}{self.via}.ucp"
        if not path.exists():
            if self.via:
                source = by_stock(made / self.source / "ckpt", folder / f"{self.source}{self.via}", self.via)
                convert_checkpoint(source, path, source_format="ds-universal", destination_format="ucp")
            else:
                converted(made / self.source / "ckpt", path)
        return path

    @property
    def settings(self) -> dict[str, str]:
        if not self.pipeline:
            return {}
        case = PIPES[self.target]
        found = {
            "pipeline": self.pipeline,
            "world_size": str(self.world // case.stages),
            "stage": str(case.zero),
        }
        return found | ({"ties": self.ties} if self.ties else {})


WAYS = (
    Way("pipe2-bf16", "pipe1-bf16", 3, "0"),
    Way("pipe2-bf16", "pipe3-bf16", 3, "0,3,6"),
    Way("pipe2-fp32", "pipe1-fp32", 3, "0"),
    Way("pipe2-fp32", "pipe3-fp32", 3, "0,3,6", "embed:0,2"),
    Way("pipe2-z0-fp32", "pipe3-z0-fp32", 3, "0,3,6"),
    Way("pipe2-fp32", "pipe3-z0-fp32", 3, "0,3,6"),
    Way("pipe2-z0-fp32", "pipe3-fp32", 3, "0,3,6"),
    Way("pipe2-z0-fp16", "pipe1-z0-fp16", 3, "0"),
    Way("pipe2-z0-fp16", "pipe3-fp16", 3, "0,3,6"),
    Way("pipe2-z0-bf16", "pipe1-bf16", 3, "0"),
    Way("pipe2-bf16", "pipe3-z0-bf16", 3, "0,3,6"),
    Way("pipe2-z0-bf16", "pipe3-z0-bf16", 3, "0,3,6"),
    Way("pipe2-z0-bf16", "pipe2-z0-bf16", 4, "0,4"),
    Way("pipe2-z0-fp16", "pipe2-z0-fp16", 4, "0,4"),
    Way("pipe2-z0-fp32", "pipe2-z0-fp32", 4, "0,4"),
    Way("pipe2-z0-fp16-positions", "pipe2-z0-fp16-positions", 4, "0,4"),
    Way("pipe2-z0-fp32-positions-files", "pipe2-z0-fp32-positions-files", 4, "0,4"),
    Way("pipe2-bf16", "pipe1-bf16", 3),
    Way("pipe2-z0-fp32", "pipe1-fp32", 3),
    Way("pipe2-fp32", "pipe3-fp32", 3),
    Way("pipe2-bf16", "pipe3-bf16", 3, via="stock"),
    Way("pipe2-bf16", "pipe3-bf16", 3, "0,3,6", via="stock-layers"),
    Way("pipe2-fp32", "pipe1-fp32", 3, "0", via="stock-layers"),
)


ALTERED = Way("pipe2-z0-bf16", "pipe2-z0-bf16", 4, "0,4")


def alter(source: Path, out: Path) -> None:
    """A copy with one rank's master weights changed: what an exporter would do that confuses them."""
    shutil.copytree(source, out)
    (victim,) = out.rglob("bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt")
    tree = torch.load(victim, weights_only=False)
    tree["optimizer_state_dict"]["single_partition_of_fp32_groups"][0] += 1.0
    torch.save(tree, victim)


@pytest.fixture(scope="module")
def made(pipes: Path) -> Path:
    return pipes


def reference(folder: Path) -> dict[str, Any]:
    """What all stages gathered, as one; what several hold is the same."""
    stages = [torch.load(path, weights_only=True) for path in sorted(folder.glob("reference-*.pt"))]
    joined: dict[str, dict[str, dict[str, torch.Tensor]]] = {"tensors": {}, "later": {}}
    for when, tensors in joined.items():
        for number, stage in enumerate(stages):
            for shared, held in stage[when].items():
                # Of the tied layer's weights one is tied; each stage trains the other by itself.
                name = f"{shared}@stage{number}" if number and shared.endswith("positions") else shared
                for slot, tensor in held.items():
                    assert torch.equal(tensors.setdefault(name, {}).setdefault(slot, tensor), tensor)
    return {**stages[0], **joined}


def converted(source: Path, out: Path) -> Path:
    is_unnamed = "z0" in str(source) and "z0-bf16" not in str(source)
    lost = LOST.get(source.parent.name, ())
    return jobs.converted(source, out, TIED if is_unnamed else {}, lost)


@pytest.mark.parametrize("name", MADE)
def test_every_tensor_is_what_the_stages_hold(made: Path, name: str, tmp_path: Path) -> None:
    path = converted(made / name / "ckpt", tmp_path / "out.ucp")
    wanted = reference(made / name)
    for lost in LOST.get(name, ()):
        del wanted["tensors"][lost]
    assert ucpformat.validate(path) == []
    with ucpformat.open(path) as checkpoint:
        assert set(checkpoint) == set(wanted["tensors"])
        for atom, held in wanted["tensors"].items():
            has_master = PIPES[name].dtype != torch.float32
            slots = {slot for slot in held if slot != "master" or has_master}
            assert set(checkpoint[atom]) - {"step"} == slots
            for slot in slots:
                assert checkpoint[atom][slot].read().tobytes() == array_of(held[slot]).tobytes(), (atom, slot)
            if "exp_avg" in held:
                # Without ZeRO, DeepSpeed makes the states of fp16 training by a step of their own.
                assert checkpoint[atom]["step"].read() == (4 if "z0-fp16" in name else 3)
        both = PIPES[name].has_head_file
        assert checkpoint["tied_modules.embed.weight"].atom.aliases == (
            ("0.weight", "7.weight") if both else ("0.weight",)
        )
        if OWN in checkpoint:
            assert checkpoint[OWN].atom.aliases == (("7.positions",) if both else ())
        assert checkpoint["2.weight"].atom.aliases == ()
        assert checkpoint.objects["epoch"] == 3
        groups = checkpoint.state.optimizers["optim"].groups
        names = [atom for group in groups for atom in group.atoms]
        assert len(set(names)) == len(names)
        assert set(names) == {atom for atom, held in wanted["tensors"].items() if "exp_avg" in held}
        assert [len(checkpoint[group.atoms[0]]["value"].shape) for group in groups] == [2, 1]
        assert [group.options["lr"] for group in groups] == [0.01, 0.02]


@pytest.fixture(scope="module")
def resumed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stock DeepSpeed has after loading each way, all in one launch."""
    folder = tmp_path_factory.mktemp("resumed")
    loads: dict[int, list[str]] = {}
    for number, way in enumerate(WAYS):
        middle = way.middle(made, folder)
        out = folder / f"{number}.{'native' if way.pipeline else 'uni'}"
        format_name = "deepspeed" if way.pipeline else "ds-universal"
        convert_checkpoint(
            middle, out, source_format="ucp", destination_format=format_name, settings=way.settings
        )
        loads.setdefault(way.world, []).append(f"load:{way.target}:{out}:{folder / str(number)}")
        if way == ALTERED:
            alter(out, folder / "altered.native")
            job = f"load:{way.target}:{folder / 'altered.native'}:{folder / 'altered'}"
            loads[way.world].append(job)
    own = made / ALTERED.source / "ckpt"
    loads[ALTERED.world].append(f"load:{ALTERED.target}:{own}:{folder / 'own'}")
    loads[4].append(f"load:{HALF_SAVED}:{made / HALF_SAVED / 'ckpt'}:{folder / HALF_SAVED}")
    ranks = [Ranks(jobs, world) for world, jobs in loads.items()]
    launch_in_turn("tests.frameworks_live.deepspeed.make_pipe", ranks, timeout=280)
    return folder


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_stock_deepspeed_resumes_with_other_stages(made: Path, resumed: Path, way: Way) -> None:
    wanted = reference(resumed / HALF_SAVED if way.source == HALF_SAVED else made / way.source)
    found = reference(resumed / str(WAYS.index(way)))
    assert set(found["tensors"]) == set(wanted["tensors"])
    for name, held in wanted["tensors"].items():
        if not way.pipeline and "exp_avg" not in held:
            continue  # stock DeepSpeed restores neither frozen parameters nor buffers from universal files
        after = found["tensors"][name]
        for slot, tensor in held.items():
            # Without ZeRO, fp32 has no copy beside the value.
            other = after.get("master", after["value"]) if slot == "master" else after[slot]
            assert torch.equal(other, tensor), (name, slot)
    assert found["global_steps"] == wanted["global_steps"] == 3
    assert found["loss_scale"] == wanted["loss_scale"]
    if way.source == way.target:
        # Nothing has changed: the run goes on as if it had never stopped, to the bit.
        assert found["losses"] == wanted["losses"]
        later = {name: held for name, held in wanted["later"].items() if name in found["later"]}
        assert len(later) == len(wanted["later"])
        for name, held in later.items():
            assert held.keys() == found["later"][name].keys()
            assert all(torch.equal(found["later"][name][slot], tensor) for slot, tensor in held.items()), name
    tolerance = 1e-5 if PIPES[way.source].dtype == torch.float32 else 2e-2
    assert found["losses"] == pytest.approx(wanted["losses"], rel=tolerance)


def test_a_bf16_pipeline_without_zero_resumes_as_from_its_own_files(made: Path, resumed: Path) -> None:
    """DeepSpeed's own need the same second step, and end the same; with other masters, training goes elsewhere."""
    wanted = reference(made / ALTERED.source)
    own = reference(resumed / "own")
    assert own["losses"] == wanted["losses"]
    altered = reference(resumed / "altered")
    assert altered["losses"] != wanted["losses"]
    differing = {
        name
        for name, held in wanted["tensors"].items()
        if not all(torch.equal(altered["tensors"][name][slot], tensor) for slot, tensor in held.items())
    }
    assert differing
    assert all(
        not torch.equal(altered["tensors"][name]["master"], wanted["tensors"][name]["master"])
        for name in differing
    )


def test_what_deepspeed_did_not_save_is_not_made_up(made: Path, tmp_path: Path) -> None:
    """Without ZeRO, in float32, of a tied layer that is called through a function."""
    for name, lost in LOST.items():
        with pytest.raises(
            UcpError, match=r"layer_07-model_states\.pt.*without ZeRO nothing else"
        ) as refusal:
            jobs.converted(made / name / "ckpt", tmp_path / "no.ucp", TIED)
        assert refusal.value.code == "UCP-E-MISMATCH"
        assert all(f"--drop '{what}'" in str(refusal.value) for what in lost)


def test_a_pipeline_becomes_a_plain_module(made: Path, tmp_path: Path) -> None:
    """Under the names of the layers, as a job without `PipelineModule` would load them."""
    middle = converted(made / "pipe2-bf16" / "ckpt", tmp_path / "middle.ucp")
    settings = {"pipeline": "", "stage": "3", "world_size": "3"}
    out = tmp_path / "plain"
    convert_checkpoint(middle, out, source_format="ucp", destination_format="deepspeed", settings=settings)
    again = converted(out, tmp_path / "again.ucp")
    with ucpformat.open(middle) as one, ucpformat.open(again) as other:
        for name, view in one.items():
            assert {slot: item.read().tobytes() for slot, item in view.items()} == {
                slot: item.read().tobytes() for slot, item in other[name].items()
            }, name


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"pipeline": "0,2,5", "ties": "embed:0,7"}, "stages from 0 to 2"),
        ({"pipeline": "1,4"}, "ascending from 0"),
        ({"pipeline": "0,x"}, "joined by commas"),
        ({"pipeline": "0,4", "stage": "2"}, "ZeRO-1 and without"),
        ({"pipeline": "0,4,5,7"}, "train nothing"),
    ],
)
def test_divisions_that_cannot_be_are_refused(
    made: Path, settings: dict[str, str], text: str, tmp_path: Path
) -> None:
    middle = converted(made / "pipe2-bf16" / "ckpt", tmp_path / "middle.ucp")
    if text == "train nothing":
        settings = settings | {"ties": "embed:0"}
    with pytest.raises(UcpError, match=text) as refusal:
        convert_checkpoint(
            middle, tmp_path / "out", source_format="ucp", destination_format="deepspeed", settings=settings
        )
    assert refusal.value.code == "UCP-E-MISMATCH"


LAYER = "layer_03-model_states.pt"
OPTIMIZER = "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt"


@pytest.mark.parametrize(
    ("victim", "harm", "code"),
    [
        (LAYER, truncate, "UCP-E-SOURCE"),
        (LAYER, flip, "UCP-E-SOURCE"),
        (LAYER, poison, "UCP-E-PICKLE"),
        ("mp_rank_01_model_states.pt", remove, "UCP-E-SOURCE"),
        ("mp_rank_01_model_states.pt", poison, "UCP-E-PICKLE"),
        (OPTIMIZER, remove, "UCP-E-SOURCE"),
        (OPTIMIZER, flip, "UCP-E-SOURCE"),
        (OPTIMIZER, poison, "UCP-E-PICKLE"),
    ],
)
def test_harm_is_found(
    made: Path,
    victim: str,
    harm: Callable[[Path], None],
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UCP_EVIL", str(tmp_path / "evil"))
    copy = tmp_path / "copy"
    shutil.copytree(made / "pipe2-bf16" / "ckpt", copy)
    harm(copy / "step3" / victim)
    with pytest.raises(UcpError) as refusal:
        converted(copy, tmp_path / "out.ucp")
    assert refusal.value.code == code
    assert victim.removeprefix("bf16_") in str(refusal.value)
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "out.ucp" / "ucp.json").exists()


@pytest.mark.parametrize(
    ("layer", "text"), [(LAYER, "no layer file holds '3."), ("layer_00-model_states.pt", "tied_modules")]
)
def test_a_missing_layer_is_refused(made: Path, layer: str, text: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made / "pipe2-bf16" / "ckpt", copy)
    os.remove(copy / "step3" / layer)
    with pytest.raises(UcpError, match=text) as refusal:
        converted(copy, tmp_path / "out.ucp")
    assert "model_states.pt" in refusal.value.at


def test_stages_and_layers_of_two_saves_are_refused(made: Path, tmp_path: Path) -> None:
    for number, victim in enumerate(("mp_rank_01_model_states.pt", LAYER)):
        copy = tmp_path / str(number)
        shutil.copytree(made / "pipe2-fp32" / "ckpt", copy)
        tree = torch.load(copy / "step3" / victim, weights_only=False)
        if "global_steps" in tree:
            tree["global_steps"] += 1
        else:
            tree["up.weight"] += 1
        torch.save(tree, copy / "step3" / victim)
        with pytest.raises(UcpError, match="two saves"):
            converted(copy, tmp_path / f"{number}.ucp")


def test_without_zero_what_no_file_says_has_to_be_said(made: Path, tmp_path: Path) -> None:
    source, out = made / "pipe2-z0-fp32" / "ckpt", tmp_path / "out.ucp"
    for number, (said, code, text) in enumerate(
        [
            ({}, "UCP-E-SOURCE", "tied_layers=NAME"),
            ({"tied_layers": "embed:0"}, "UCP-E-SOURCE", "are not those"),
            ({"tied_layers": "embed:4,7"}, "UCP-E-SOURCE", "no layer file holds"),
            ({**TIED, "pipeline": "0,2"}, "UCP-E-SOURCE", "are not those"),
            ({**TIED, "pipeline": "0,2,5"}, "UCP-E-MISMATCH", "there are 2"),
            ({**TIED, "pipeline": "1,4"}, "UCP-E-MISMATCH", "ascending from 0"),
            ({"tied_layers": "0,7"}, "UCP-E-MISMATCH", "NAME:0,7"),
        ]
    ):
        with pytest.raises(UcpError, match=text) as refusal:
            convert_checkpoint(
                source,
                tmp_path / f"{number}.ucp",
                source_format="deepspeed",
                destination_format="ucp",
                source_settings=said,
            )
        assert refusal.value.code == code
    convert_checkpoint(
        source,
        out,
        source_format="deepspeed",
        destination_format="ucp",
        source_settings={**TIED, "pipeline": "0,4"},
    )
    converted(source, tmp_path / "found.ucp")
    with ucpformat.open(out) as one, ucpformat.open(tmp_path / "found.ucp") as other:
        assert one.state.optimizers == other.state.optimizers


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(["pipe2-bf16", "pipe2-z0-bf16", "pipe2-z0-fp16"]))
def test_a_file_that_was_changed_is_read_or_refused(
    made: Path, tmp_path: Path, data: st.DataObject, name: str
) -> None:
    """One byte or one value of one file: nothing but an error of ours may come of it."""
    known = {} if name.endswith("bf16") else TIED
    is_read_or_refused(made / name / "ckpt", "deepspeed", tmp_path, data, known)
