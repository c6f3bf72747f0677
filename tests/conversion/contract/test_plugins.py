"""Formats by entry point: the example of docs/plugins.md as an installed distribution, and broken ones beside it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch

import ucpformat
from tests.documentation.markdown import page
from tests.documentation.running import commands_of
from ucpformat.conversion.contract.foreign import ForeignFormat
from ucpformat.conversion.contract.registry import BUILT_IN, GROUP, Registered, Registry, registry
from ucpformat.errors import UcpError

ROOT = Path(__file__).resolve().parents[3]


def blocks(language: str) -> list[str]:
    return [block.text for block in page("docs/plugins.md").blocks if block.language == language]


def install(site: Path, name: str, entry_points: dict[str, str], modules: dict[str, str]) -> None:
    """What an installer leaves in a site directory."""
    metadata = site / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
    for module, text in modules.items():
        (site / f"{module}.py").write_text(text)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    project = tomllib.loads(blocks("toml")[0])["project"]
    install(site, project["name"], project["entry-points"][GROUP], {"ucp_arrays": blocks("python")[0]})
    return site


def ucp(site: Path, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    paths = [str(site), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), str(ROOT)]
    return subprocess.run(
        [sys.executable, "-m", "ucpformat", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_example_of_the_guide(site: Path, tmp_path: Path) -> None:
    source = tmp_path / "weights"
    source.mkdir()
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(source / "w.npy", w)
    (source / "arrays.json").write_text('{"step": 7}')
    listed = ucp(site, "formats")
    assert listed.returncode == 0, listed.stderr
    assert "arrays (reads, writes) [ucp-arrays]: a directory of numpy arrays" in listed.stdout
    assert "    prefix, where read: what names begin with" in listed.stdout

    model = torch.nn.Linear(3, 2, bias=False)
    state = {"model": model, "optim": torch.optim.AdamW(model.parameters()), "epoch": 3}
    ucpformat.save(tmp_path / "step-1000.ucp", state)
    for command in commands_of(blocks("sh")[0]):
        made = ucp(site, *shlex.split(command)[1:], cwd=tmp_path)
        assert made.returncode == 0, made.stderr
    assert np.array_equal(np.load(tmp_path / "arrays" / "weight.npy"), model.weight.detach().numpy())
    with ucpformat.open(tmp_path / "weights.ucp") as checkpoint:
        assert np.array_equal(checkpoint["model.w"]["value"][:], w)
        assert checkpoint.root.progress is not None
        assert checkpoint.root.progress.step == 7

    refused = ucp(site, "convert", source, tmp_path / "d", "--set", "perfix=x")
    assert refused.returncode == 1
    assert "no setting 'perfix' of arrays where that is read; there are prefix" in refused.stderr
    # From one foreign format into another, and both sides have settings.
    both = ucp(site, "convert", source, tmp_path / "d", "--to", "arrays", "--set", "prefix=x")
    assert both.returncode == 1
    assert "settings may be of arrays or of arrays" in both.stderr
    chosen = ("--from-set", "prefix=x.")
    dry = ucp(
        site, "convert", source, tmp_path / "d", "--to", "arrays", *chosen, "--dry-run", "--format", "json"
    )
    assert dry.returncode == 0, dry.stderr
    assert json.loads(dry.stdout)["renamed"] == {"x.w/value": "x.w.npy"}
    assert not (tmp_path / "d").exists()
    assert ucp(site, "convert", source, tmp_path / "d", "--to", "arrays", *chosen).returncode == 0
    assert np.array_equal(np.load(tmp_path / "d" / "x.w.npy"), w)


def test_what_a_plug_in_cannot_hold_is_refused_and_dropped_on_request(site: Path, tmp_path: Path) -> None:
    state = {
        "model": {"w": np.ones(3, np.float32)},
        "optim": {"state": {"w": {"exp_avg": np.ones(3)}}},
        "rng": 1,
    }
    ucpformat.save(tmp_path / "c", state)
    refused = ucp(site, "convert", tmp_path / "c", tmp_path / "out", "--to", "arrays")
    assert refused.returncode == 1
    assert "w/exp_avg (an array has one value)" in refused.stderr
    assert "values/rng (only the step is kept)" in refused.stderr
    assert not (tmp_path / "out").exists()
    drops = ("--drop", "*/exp_avg*", "--drop", "values/*")
    made = ucp(site, "convert", tmp_path / "c", tmp_path / "out", "--to", "arrays", *drops)
    assert made.returncode == 0, made.stderr
    assert "dropped w/exp_avg (--drop */exp_avg*)" in made.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"w.npy", "arrays.json"}
    unused = ucp(site, "convert", tmp_path / "c", tmp_path / "more", "--drop", "nothing/*", "--to", "ucp")
    assert unused.returncode == 1
    assert "matches nothing" in unused.stderr


def test_a_broken_plug_in_is_named_and_breaks_nothing(site: Path, tmp_path: Path) -> None:
    install(
        site,
        "ucp-broken",
        {
            "explodes": "ucp_broken:KIND",
            "absent": "ucp_broken_and_gone:KIND",
            "odd": "ucp_odd:NUMBER",
            "other": "ucp_odd:MISNAMED",
            "dcp": "ucp_odd:NUMBER",
        },
        {
            "ucp_broken": "raise RuntimeError('out of order')",
            "ucp_odd": "from ucpformat.plugins import ForeignFormat\nNUMBER = 1\n"
            "MISNAMED = ForeignFormat('another', lambda path: False)",
        },
    )
    listed = ucp(site, "formats")
    assert listed.returncode == 1
    for line in (
        "explodes (ucp-broken) cannot be used: RuntimeError: out of order",
        "absent (ucp-broken) cannot be used: ModuleNotFoundError: No module named 'ucp_broken_and_gone'",
        "odd (ucp-broken) cannot be used: ucp_odd:NUMBER is no ForeignFormat",
        "other (ucp-broken) cannot be used: ucp_odd:MISNAMED is named 'another'",
        "dcp (ucp-broken) cannot be used: 'ucpformat' has the name already",
        "dcp (reads, writes): torch.distributed.checkpoint",
        "arrays (reads, writes) [ucp-arrays]",
    ):
        assert line in listed.stdout
    ucpformat.save(tmp_path / "c", {"w": np.ones(3)})
    made = ucp(site, "convert", tmp_path / "c", tmp_path / "out", "--to", "arrays")
    assert made.returncode == 0, made.stderr
    refused = ucp(site, "convert", tmp_path / "c", tmp_path / "more", "--to", "explodes")
    assert refused.returncode == 1
    assert "'explodes' of the distribution 'ucp-broken' cannot be used: RuntimeError" in refused.stderr
    (tmp_path / "nothing").mkdir()
    unknown = ucp(site, "convert", tmp_path / "nothing", tmp_path / "more")
    assert unknown.returncode == 1
    assert "the format 'absent' of 'ucp-broken' cannot be used" in unknown.stderr


def test_the_project_declares_its_formats_as_plug_ins_do() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    assert declared == BUILT_IN
    for name in BUILT_IN:
        foreign = registry().format(name)
        assert foreign.title
        assert foreign.plan is not None or foreign.export is not None
        settings = [*foreign.import_settings, *foreign.export_settings]
        assert all(setting.name and setting.help for setting in settings)


def ordered(formats: dict[str, tuple[str, ...]]) -> list[str]:
    entries = {name: ("d", EntryPoint(name, "m:a", GROUP)) for name in formats}
    found = Registry(entries, ())
    for name, before in formats.items():
        foreign = ForeignFormat(name, lambda _: False, before=before)
        found._loaded[name] = Registered(entries[name][1], "d", foreign)
    return [foreign.name for foreign in found.in_order()]


def test_formats_come_before_those_that_would_take_them_for_theirs() -> None:
    assert ordered({"a": (), "b": (), "c": ("a",), "d": ("c",)}) == ["b", "d", "c", "a"]
    assert ordered({"a": ("b",), "b": ("a",), "c": ()}) == ["c", "a", "b"]


def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(UcpError, match="'dpc' is none of ucp, accelerate, dcp, deepspeed"):
        registry().format("dpc")
