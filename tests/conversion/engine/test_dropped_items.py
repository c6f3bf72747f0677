"""What a conversion may lose: nothing, unless it is named; and one foreign format from another."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ucpformat
from tests.conversion.formats.deepspeed.made import make_checkpoint
from ucpformat.conversion.contract.foreign import PICKLE, ExportPlan, Lost
from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.conversion.contract.registry import registry
from ucpformat.conversion.contract.weights import beside_weights
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.engine.dropped_items import grouped, remedy, told, without
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.conversion.engine.writing import Engine
from ucpformat.errors import UcpError
from ucpformat.model.state import Optimizer, ParameterGroup, StateDocument
from ucpformat.model.values import NamedValue
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec


def job() -> Job:
    slot = SlotSpec("float32", (2,))
    atoms = [
        AtomSpec("a.w", {"value": slot, "exp_avg": slot}, aliases=("tied",)),
        AtomSpec("a.b", {"value": slot}),
        AtomSpec("table", {"value": slot}),
    ]
    sources = [
        SlotSource(atom.name, name, lambda box, out: out.fill(1)) for atom in atoms for name in atom.slots
    ]
    optimizers = {"optim": Optimizer((ParameterGroup(("a.w", "a.b"), {"lr": 0.1}), ParameterGroup((), {})))}
    state = StateDocument({"rng": 1, "epoch": 2}, optimizers, {})
    return Job(atoms, sources, state, blobs={"code": ("text/plain", b"x")})


def names(found: Job) -> set[str]:
    slots = {f"{source.atom}/{source.slot}" for source in found.sources}
    assert slots == {f"{atom.name}/{slot}" for atom in found.atoms for slot in atom.slots}
    return slots


def test_nothing_is_left_out_unless_asked_for() -> None:
    whole = job()
    assert without(whole, ()) == (whole, ())


def test_globs_leave_out_slots_values_optimizers_and_blobs(tmp_path: Path) -> None:
    found, lost = without(job(), ["a.*/exp_*", "values/r*", "blobs/*", "table/*"])
    assert names(found) == {"a.w/value", "a.b/value"}
    assert set(found.state.values) == {"epoch"}
    assert not found.blobs
    assert {loss.what for loss in lost} == {"a.w/exp_avg", "values/rng", "blobs/code", "table/value"}
    assert all(loss.why.startswith("--drop ") for loss in lost)
    Engine(found, tmp_path / "c", EngineOptions(durability="none")).run()
    assert ucpformat.validate(tmp_path / "c") == []


def test_what_is_gone_is_named_nowhere(tmp_path: Path) -> None:
    """An alias goes with its value, a parameter out of its group, a group stays where it stood."""
    found, _ = without(job(), ["a.w/value", "a.b/*"])
    assert names(found) == {"a.w/exp_avg", "table/value"}
    assert found.atoms[0].aliases == ()
    assert [group.atoms for group in found.state.optimizers["optim"].groups] == [("a.w",), ()]
    Engine(found, tmp_path / "c", EngineOptions(durability="none")).run()
    assert ucpformat.validate(tmp_path / "c") == []
    found, _ = without(job(), ["optimizers/optim"])
    assert not found.state.optimizers


def test_a_glob_that_matches_nothing_is_refused() -> None:
    with pytest.raises(UcpError, match=r"--drop 'values/nothing' matches nothing"):
        without(job(), ["values/*", "values/nothing"])


def test_what_an_importer_cannot_carry_is_refused_or_allowed() -> None:
    lossy = replace(job(), dropped=[Lost("callbacks/early", "it is code")])
    with pytest.raises(UcpError, match=r"callbacks/early \(it is code\) would be lost; allow it with --drop"):
        without(lossy, ())
    _, lost = without(lossy, ["callbacks/*"])
    assert lost == (Lost("callbacks/early", "--drop callbacks/*"),)


def test_what_no_job_would_miss_is_reported_and_refuses_nothing() -> None:
    script = Lost("files/zero_to_fp32.py", "a script", matters=False)
    found, lost = without(replace(job(), dropped=[script]), ())
    assert lost == (script,)
    assert names(found) == names(job())
    _, lost = without(replace(job(), dropped=[script]), ["files/*"])
    assert lost == (Lost("files/zero_to_fp32.py", "--drop files/*"),)


def test_minor_losses_of_an_export_are_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_checkpoint(tmp_path / "a.ucp")
    minor, major = Lost("values/scale", "none is used", matters=False), Lost("values/data", "no place")
    plan, formats = ExportPlan(0, write=lambda: None, dropped=[minor]), registry()
    found = replace(formats.format("deepspeed"), export=lambda content, path, options: plan)
    monkeypatch.setattr(formats, "format", lambda name: found)
    report = convert_checkpoint(source, tmp_path / "out", source_format="ucp", destination_format="deepspeed")
    assert report.dropped == (minor,)
    plan = replace(plan, dropped=[minor, major])
    with pytest.raises(UcpError, match=r"cannot hold values/data \(no place\); "):
        convert_checkpoint(source, tmp_path / "out", source_format="ucp", destination_format="deepspeed")


@pytest.mark.parametrize(("first", "second"), [("1", "3"), ("3", "1"), ("2", "2")])
def test_deepspeed_changes_its_stage_without_a_copy_in_between(
    tmp_path: Path, first: str, second: str
) -> None:
    source = make_checkpoint(tmp_path / "a.ucp")
    saved, direct = tmp_path / "saved", tmp_path / "direct"
    convert_checkpoint(
        source,
        saved,
        source_format="ucp",
        destination_format="deepspeed",
        settings={"stage": first, "world_size": "4"},
    )
    report = convert_checkpoint(
        saved,
        direct,
        source_format="deepspeed",
        destination_format="deepspeed",
        settings={"stage": second, "world_size": "3"},
    )
    assert report.tensors > 0
    assert len(list((direct / "global_step5").glob("*optim_states.pt"))) == 3
    convert_checkpoint(direct, tmp_path / "b.ucp", source_format="deepspeed", destination_format="ucp")
    with ucpformat.open(source) as one, ucpformat.open(tmp_path / "b.ucp") as other:
        assert set(one) == set(other)
        for name, atom in one.items():
            for slot, view in atom.items():
                assert np.array_equal(view.read(), other[name][slot].read()), (name, slot)


def test_members_of_flat_buffers_can_be_dropped(tmp_path: Path) -> None:
    source, saved = make_checkpoint(tmp_path / "a.ucp"), tmp_path / "saved"
    convert_checkpoint(source, saved, source_format="ucp", destination_format="deepspeed")
    convert_checkpoint(
        saved,
        tmp_path / "b.ucp",
        source_format="deepspeed",
        destination_format="ucp",
        drop=["*/exp_avg", "up.*/master"],
    )
    assert ucpformat.validate(tmp_path / "b.ucp") == []
    with ucpformat.open(tmp_path / "b.ucp") as checkpoint:
        assert not any("exp_avg" in atom for atom in checkpoint.values())
        assert any("exp_avg_sq" in atom for atom in checkpoint.values())


def test_deepspeed_refuses_what_its_files_cannot_hold(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "a.ucp")
    from tests.conversion.engine.jobs import run_job
    from ucpformat.conversion.engine.rewriting import rewrite_job

    with ucpformat.open(source) as checkpoint:
        whole = rewrite_job(checkpoint)
        slot = SlotSpec("float32", (2,))
        more = replace(
            whole,
            atoms=[*whole.atoms, AtomSpec("lonely", {"exp_avg": slot})],
            sources=[*whole.sources, SlotSource("lonely", "exp_avg", lambda box, out: out.fill(0))],
            blobs={"code": (PICKLE, b"x")},
        )
        run_job(more, tmp_path / "b.ucp")
    for format_name in ("deepspeed", "ds-universal"):
        with pytest.raises(UcpError, match=r"lonely/exp_avg \(DeepSpeed keeps .*blobs/code"):
            convert_checkpoint(
                tmp_path / "b.ucp", tmp_path / "c", source_format="ucp", destination_format=format_name
            )
        assert not (tmp_path / "c").exists()
    report = convert_checkpoint(
        tmp_path / "b.ucp",
        tmp_path / "c",
        source_format="ucp",
        destination_format="deepspeed",
        drop=["lonely/*", "blobs/*"],
    )
    assert {loss.what for loss in report.dropped} == {"lonely/exp_avg", "blobs/code"}
    assert (tmp_path / "c").exists()


@pytest.mark.parametrize("format_name", ["deepspeed", "ds-universal", "dcp", "megatron"])
def test_a_dry_run_plans_and_writes_nothing(tmp_path: Path, format_name: str) -> None:
    source = make_checkpoint(tmp_path / "a.ucp")
    dry = convert_checkpoint(
        source, tmp_path / "out", source_format="ucp", destination_format=format_name, dry_run=True
    )
    assert not (tmp_path / "out").exists()
    wet = convert_checkpoint(source, tmp_path / "out", source_format="ucp", destination_format=format_name)
    assert dry == wet


def test_losses_of_one_reason_are_one_line_with_a_glob_that_names_no_more() -> None:
    lost = [Lost(f"{name}/exp_avg", "no place") for name in ("a", "b", "c.d")]
    lost += [Lost("values/x", "text alone"), Lost("values/y", "text alone"), Lost("w/odd[0]", "no place")]
    parts = ["a/value", "values/x", "values/kept", *(one.what for one in lost)]
    assert [group.glob for group in grouped(lost)] == ["*/exp_avg", "values/*", "w/odd[[]0]"]
    assert [group.glob for group in grouped(lost, parts)] == [
        "*/exp_avg",
        "values/x",
        "values/y",
        "w/odd[[]0]",
    ]
    assert told(lost).startswith("*/exp_avg (3: no place); values/* (2: text alone); ")
    assert remedy(lost[:3]) == "allow it with --drop '*/exp_avg'"
    assert remedy([Lost(f"x{n}/{n}", "no") for n in range(9)]).endswith("and 4 more")


def checkpoint(path: Path) -> Path:
    Engine(job(), path, EngineOptions(durability="none")).run()
    return path


def test_a_refusal_names_options_that_allow_all_of_it(tmp_path: Path) -> None:
    """What it suggests is what works: both ways are tried as they stand in the message."""
    source = checkpoint(tmp_path / "c.ucp")

    def convert(**options: object) -> list[str]:
        report = convert_checkpoint(
            source,
            tmp_path / "out.safetensors",
            source_format="ucp",
            destination_format="safetensors",
            dry_run=True,
            **options,  # type: ignore[arg-type]
        )
        return sorted(loss.what for loss in report.dropped)

    with pytest.raises(UcpError) as caught:
        convert()
    message = caught.value.message
    globs = re.findall("--drop '([^']*)'", message)
    assert "carry the weights alone with --weights-only, or allow it with --drop" in message
    everything = ["a.w/exp_avg", "blobs/code", "optimizers/optim", "values/epoch", "values/rng"]
    assert convert(drop=globs) == everything
    assert convert(weights_only=True) == everything


@pytest.mark.parametrize("format_name", ["ucp", "dcp", "torch-save"])
def test_weights_alone_go_to_any_format(tmp_path: Path, format_name: str) -> None:
    source = checkpoint(tmp_path / "c.ucp")
    convert_checkpoint(
        source, tmp_path / "out", source_format="ucp", destination_format=format_name, weights_only=True
    )
    convert_checkpoint(
        tmp_path / "out", tmp_path / "back.ucp", source_format=format_name, destination_format="ucp"
    )
    with ucpformat.open(tmp_path / "back.ucp") as back:
        assert {f"{name}/{slot}" for name in back for slot in back[name]} >= {"a.w/value", "table/value"}
        assert not [slot for name in back for slot in back[name] if slot != "value"]
        assert not back.state.optimizers
        assert not set(back.state.values) & {"rng", "epoch"}


def test_weights_alone_never_leave_a_weight_out() -> None:
    lost = [Lost("a.w/value", "no type"), Lost("a.w/exp_avg", "no place"), Lost("files/part.pt", "unknown")]
    assert beside_weights(lost, job()) == [lost[1]]
    slot = SlotSpec("float32", (2,))
    masters = replace(
        job(), atoms=[AtomSpec("a", {"value": slot, "master": slot}), AtomSpec("b", {"value": slot})]
    )
    lost = [Lost("a/value", "rounded"), Lost("a/master", "rounded"), Lost("b/value", "rounded")]
    assert beside_weights(lost, masters, "master") == [lost[0]]


@pytest.mark.parametrize("format_name", ["dcp", "torch-save", "megatron"])
def test_values_that_torch_has_no_class_for_are_named_before_anything_is_written(
    tmp_path: Path, format_name: str
) -> None:
    """As DeepSpeed's ``zero_optimizer`` is."""
    wrapped = {"wrapped": [NamedValue("org.example.State", {"a": 1})]}
    with CheckpointWriter(tmp_path / "c", [AtomSpec("w", {"value": SlotSpec("float64", (2,))})]) as writer:
        writer.write("w", "value", np.ones(2))
        writer.set_value("zero_optimizer", wrapped)
    with pytest.raises(UcpError) as caught:
        convert_checkpoint(
            tmp_path / "c", tmp_path / "out", source_format="ucp", destination_format=format_name
        )
    assert caught.value.message == (
        f"{format_name} cannot hold values/zero_optimizer (torch has no class for org.example.State); carry the "
        "weights alone with --weights-only, or allow it with --drop 'values/zero_optimizer'"
    )
    assert not (tmp_path / "out").exists()
    convert_checkpoint(
        tmp_path / "c",
        tmp_path / "out",
        source_format="ucp",
        destination_format=format_name,
        drop=["values/zero_optimizer"],
    )
