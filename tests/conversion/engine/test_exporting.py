"""Exports that consist of files: parallel, resumable, and no file visible under its name before it is whole."""

from __future__ import annotations

import fnmatch
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ucpformat
from tests.conversion.engine.jobs import Breaks, write_files
from tests.conversion.formats.deepspeed.made import make_checkpoint
from tests.conversion.jobs import job_of
from ucpformat.conversion.contract.content import Content
from ucpformat.conversion.contract.foreign import ImportOptions
from ucpformat.conversion.contract.job import JOURNAL
from ucpformat.conversion.convert import ConversionReport, convert_checkpoint, detect_format
from ucpformat.conversion.engine import exporting, work_order
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.conversion.engine.out_directory import OutDirectory, new_file
from ucpformat.conversion.engine.pool import needed_for
from ucpformat.conversion.engine.work_order import Recipe
from ucpformat.conversion.formats.safetensors.exporter import export_safetensors
from ucpformat.errors import StoreError, UcpError
from ucpformat.tensor_files.out_files import OutFile, OutFiles, text_file
from ucpformat.writer import DEFAULT_CHUNK_BYTES

ROOT = Path(__file__).resolve().parents[3]

WAYS: Mapping[str, Mapping[str, Any]] = {
    "deepspeed": {"settings": {"stage": "3", "world_size": "3", "buffers": ""}},
    "ds-universal": {},
    "dcp": {},
    "megatron": {},
    "safetensors": {
        "settings": {"max_shard_size": "60B"},
        "drop": ("*/exp_avg*", "*/step", "*/master", "optimizers/*", "values/*", "blobs/*"),
    },
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("source") / "source.ucp")


def export(
    source: Path,
    out: Path,
    format_name: str,
    progress: Any = lambda _: None,
    expect: Any = lambda _: None,
    **options: Any,
) -> ConversionReport:
    drop = [glob for glob in WAYS[format_name].get("drop", ()) if matches(source, glob)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_order, "_MIN_BATCH", 1)  # as many files as there are items, for DCP and Megatron
        return convert_checkpoint(
            source,
            out,
            source_format="ucp",
            destination_format=format_name,
            settings=WAYS[format_name].get("settings"),
            drop=drop,
            engine=EngineOptions(durability="none", batch_bytes=1, **options),
            progress=progress,
            expect=expect,
        )


def matches(source: Path, glob: str) -> bool:
    try:
        convert_checkpoint(
            source, "unused", source_format="ucp", destination_format="ucp", drop=[glob], dry_run=True
        )
    except UcpError:
        return False
    return True


class Whole(dict[str, dict[str, bytes]]):
    """What an export that nothing disturbs gives, by format."""

    def __repr__(self) -> str:
        return f"<{', '.join(self)}>"


def content(root: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    found = Whole()
    for format_name in WAYS:
        out = tmp_path_factory.mktemp("whole") / "out"
        export(source, out, format_name)
        found[format_name] = content(out)
    return found


def test_there_are_many_files(whole: Whole) -> None:
    assert {format_name for format_name, files in whole.items() if len(files) > 4} == set(WAYS)
    assert not [name for files in whole.values() for name in files if name.startswith(".ucp")]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    format_name=st.sampled_from(sorted(WAYS)),
    stops=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    where=st.sampled_from(["write", "take", "finish"]),
    is_error=st.booleans(),
)
def test_interrupted_anywhere_and_resumed_it_is_the_same(
    source: Path,
    whole: Whole,
    tmp_path_factory: pytest.TempPathFactory,
    format_name: str,
    stops: list[int],
    where: str,
    is_error: bool,
) -> None:
    out = tmp_path_factory.mktemp("out") / "c"
    for stop in stops:
        failure = OSError(28, "No space left on device") if is_error else KeyboardInterrupt()
        owner: Any = exporting._Counted if where == "write" else OutDirectory
        with pytest.MonkeyPatch.context() as patch:
            breaks = Breaks(0 if where == "finish" else stop, failure)
            patch.setattr(owner, where, breaks(getattr(owner, where)))
            try:
                export(source, out, format_name, resume=True, workers=1)
            except (UcpError, KeyboardInterrupt) as raised:
                assert isinstance(raised, UcpError) == is_error  # noqa: PT017
            else:
                break
        # What has its name is whole, and nobody takes this for a checkpoint.
        left = {name: data for name, data in content(out).items() if name != JOURNAL}
        assert left.items() <= whole[format_name].items()
        with pytest.raises(UcpError, match="not finished"):
            detect_format(out)
    else:
        export(source, out, format_name, resume=True, workers=2)
    assert content(out) == whole[format_name]


@pytest.mark.parametrize("format_name", sorted(WAYS))
def test_finished_files_are_not_written_again(
    source: Path,
    whole: Whole,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format_name: str,
) -> None:
    out = tmp_path / "c"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OutDirectory, "take", Breaks(3, KeyboardInterrupt())(OutDirectory.take))
        with pytest.raises(KeyboardInterrupt):
            export(source, out, format_name, workers=1)  # resumable without having been told so
    done = {name for name in content(out) if name != JOURNAL}
    assert len(done) == 3
    written: list[str] = []
    write = exporting._written

    def recorded(root: Path, file: OutFile, *rest: Any) -> Any:
        written.append(file.name)
        return write(root, file, *rest)

    monkeypatch.setattr(exporting, "_written", recorded)
    told: list[int] = []
    expected: list[int] = []
    report = export(source, out, format_name, told.append, expected.append, resume=True)
    assert expected == [sum(told)]  # what was finished counts as well
    assert sorted(written) == sorted(whole[format_name].keys() - done)
    assert content(out) == whole[format_name]
    again: list[int] = []
    assert export(source, tmp_path / "d", format_name, again.append) == report
    assert sum(told) == sum(again)


@pytest.mark.parametrize(("format_name", "calls"), [("ds-universal", 60), ("safetensors", 8)])
def test_a_process_that_is_killed(
    source: Path, whole: Whole, tmp_path: Path, format_name: str, calls: int
) -> None:
    out = tmp_path / "c"
    script = f"""
import os, signal
from pathlib import Path
from tests.conversion.engine.test_exporting import export
from ucpformat.conversion.engine import exporting
write, calls = exporting._Counted.write, []
def killed(*arguments):
    calls.append(1)
    done = write(*arguments)
    if len(calls) == {calls}:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
exporting._Counted.write = killed
export(Path({str(source)!r}), Path({str(out)!r}), {format_name!r}, workers=1)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        check=False,
        timeout=300,
    )
    assert done.returncode == -signal.SIGKILL
    left = content(out)
    parts = [name for name in left if name.endswith(".ucp-part")]
    assert parts  # what was being written has no name yet
    named = {name: data for name, data in left.items() if name != JOURNAL and name not in parts}
    assert named
    assert named.items() < whole[format_name].items()
    export(source, out, format_name, resume=True)
    assert content(out) == whole[format_name]


def test_without_resume_it_begins_anew_and_leaves_nothing_where_it_fails(
    source: Path, whole: Whole, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    for failure in (KeyboardInterrupt(), OSError(28, "full")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OutDirectory, "take", Breaks(2, failure)(OutDirectory.take))
            with pytest.raises((KeyboardInterrupt, StoreError)):
                export(source, out, "ds-universal")
        assert out.exists() == isinstance(failure, KeyboardInterrupt)
    export(source, out, "ds-universal")
    assert content(out) == whole["ds-universal"]


@pytest.mark.parametrize("what", ["source", "options", "file", "journal", "foreign"])
def test_what_does_not_fit_is_refused_or_done_again(whole: Whole, tmp_path: Path, what: str) -> None:
    mine, out = make_checkpoint(tmp_path / "source.ucp"), tmp_path / "c"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OutDirectory, "take", Breaks(3, KeyboardInterrupt())(OutDirectory.take))
        with pytest.raises(KeyboardInterrupt):
            export(mine, out, "ds-universal", workers=1)
    if what == "source":
        os.utime(mine / "ucp.json", ns=(1, 1))
        with pytest.raises(UcpError, match="changed since"):
            export(mine, out, "ds-universal", resume=True)
        return
    if what == "options":
        with pytest.raises(UcpError, match="another conversion was begun"):
            export(mine, out, "dcp", resume=True)
        return
    if what == "foreign":
        (out / "precious").touch()
        with pytest.raises(UcpError, match="'precious'"):
            export(mine, out, "ds-universal")
        assert [path.name for path in out.iterdir() if path.is_file()] == ["precious"]
        return
    if what == "file":
        (name, *_) = (name for name in content(out) if name != JOURNAL)
        os.truncate(out / name, 3)
    else:
        with (out / JOURNAL).open("r+b") as stream:
            stream.truncate(os.path.getsize(out / JOURNAL) - 3)
    export(mine, out, "ds-universal", resume=True)
    assert content(out) == whole["ds-universal"]


def test_what_is_there_is_not_touched(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "c"
    export(source, out, "ds-universal", resume=True)
    before = content(out)
    for resume in (False, True):
        with pytest.raises(UcpError, match="UCP-E-EXISTS"):
            export(source, out, "ds-universal", resume=resume)
    assert content(out) == before
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        export(source, file, "ds-universal")
    assert file.read_bytes() == b""


def test_two_at_once_do_not_meet(tmp_path: Path) -> None:
    files = OutFiles([text_file("a", "x")])
    first = OutDirectory(tmp_path / "c", {}, resume=False, durable=False)
    with pytest.raises(UcpError, match="another conversion is at work"):
        write_files(files, tmp_path / "c")
    first.undo()
    write_files(files, tmp_path / "c")
    with new_file(tmp_path / "f", durable=False) as stream:
        stream.write(b"1")
        with (
            pytest.raises(UcpError, match="another conversion is at work"),
            new_file(tmp_path / "f", durable=False),
        ):
            pass
    assert (tmp_path / "f").read_bytes() == b"1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "f"]


def test_a_single_file_begins_again(tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    plan = export_safetensors(Content(job_of({"w": {"value": np.arange(9.0)}})), out, settings={})
    assert plan.files is not None
    (tmp_path / ".m.safetensors.ucp-part").write_bytes(b"what an attempt left that was killed" * 99)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting._Counted, "write", Breaks(1, OSError(28, "full"))(exporting._Counted.write))
        with pytest.raises(StoreError, match="full"):
            write_files(plan.files, out)
    assert not list(tmp_path.iterdir())
    write_files(plan.files, out)
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


@pytest.mark.parametrize("name", ["", "/a", "../a", "a/../b", "a//b", "./a", "a\0"])
def test_names_stay_below_the_destination(tmp_path: Path, name: str) -> None:
    with pytest.raises(UcpError, match="UCP-E-NAME"):
        write_files(OutFiles([text_file(name, "x")]), tmp_path / "c")


def test_a_bound_too_small_for_one_worker_is_refused(source: Path, tmp_path: Path) -> None:
    for format_name in ("dcp", "safetensors"):
        with pytest.raises(UcpError, match="UCP-E-LIMIT"):
            export(source, tmp_path / "c", format_name, memory=needed_for(DEFAULT_CHUNK_BYTES) - 1)
        assert not (tmp_path / "c").exists()


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """Of a process of its own, all of it; a matrix four times as long takes as much, but for chunks that are fuller."""
    sizes = []
    for name, rows in (("small", 4608), ("large", 18432)):
        path = make_checkpoint(
            tmp_path / name, shapes={"a": (rows, 1024), "b": (3000,)}, groups=(("a", "b"),), aliases={}
        )
        sizes.append(sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
    one_worker = needed_for(DEFAULT_CHUNK_BYTES)
    said = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.conversion.engine.export_memory",
            *(str(tmp_path / name) for name in ("small", "large", "out")),
            str(one_worker),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    ).stdout
    grown = json.loads(said)
    # Less than the matrix has in float32, of which there are three, and TensorStore's own for Orbax.
    assert sizes[1] - sizes[0] > 2 * one_worker
    assert {
        format_name: grew for format_name, grew in grown.items() if grew > 60 << 20 and format_name != "orbax"
    } == {}
    assert grown["orbax"] < 2 * one_worker


@pytest.mark.distributed
@pytest.mark.xdist_group("converting")
@pytest.mark.parametrize("format_name", ["deepspeed"])
def test_processes_write_what_threads_write(
    source: Path, whole: Whole, tmp_path: Path, format_name: str
) -> None:
    told: list[int] = []
    export(source, tmp_path / "c", format_name, told.append, pool="processes", workers=2)
    assert content(tmp_path / "c") == whole[format_name]
    assert len(told) > 3


def test_another_source_is_refused_by_workers(source: Path, tmp_path: Path) -> None:
    recipe = Recipe(str(source), "ucp", ImportOptions(), is_rewritten=False)
    order = exporting.ExportOrder(recipe, "ds-universal", str(tmp_path / "c"), {}, False, "another digest")
    with pytest.raises(UcpError, match="another worker sees another checkpoint"):
        exporting.write_parts(order, [0])


@pytest.mark.parametrize("limit", [100, 300])
@pytest.mark.parametrize(
    "format_name", ["deepspeed", "ds-universal", "torch-save", "dcp", "megatron", "safetensors", "orbax"]
)
def test_a_medium_that_takes_no_more_is_a_registered_error(
    tmp_path: Path, format_name: str, limit: int
) -> None:
    """By the kernel's limit of a file's length, which comes where a full disk does; archives hid what had happened."""
    source = make_checkpoint(tmp_path / "a.ucp")
    lossy = (
        ["*/exp_avg*", "*/step", "*/master", "optimizers/*", "values/*"]
        if format_name == "safetensors"
        else []
    )
    with ucpformat.open(source) as checkpoint:
        parts = {f"{atom}/{slot}" for atom, view in checkpoint.items() for slot in view}
        parts |= {f"values/{name}" for name in checkpoint.state.values}
        parts |= {f"optimizers/{name}" for name in checkpoint.state.optimizers}
    drop = [glob for glob in lossy if fnmatch.filter(parts, glob)]
    whole = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, whole[1]))
    try:
        with pytest.raises(UcpError) as refusal:
            convert_checkpoint(
                source, tmp_path / "out", source_format="ucp", destination_format=format_name, drop=drop
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, whole)
    assert refusal.value.code in ("UCP-E-STORE", "UCP-E-SOURCE" if format_name == "orbax" else "")
    assert "too large" in refusal.value.message
    assert not (tmp_path / "out").exists()
