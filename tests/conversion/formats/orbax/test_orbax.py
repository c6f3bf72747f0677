"""Orbax's form through TensorStore alone; tests/frameworks_live/jax has it from Orbax itself."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ucpformat
from tests.conversion.damage import damaged, outcome, replaced
from tests.conversion.engine.jobs import carry_out
from tests.conversion.jobs import job_of, whole
from tests.frameworks_live.sweep import sweep
from ucpformat.conversion.contract.casting import cast_job
from ucpformat.conversion.contract.content import Content
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.conversion.engine.writing import Engine
from ucpformat.conversion.formats.orbax.arrays import _unbounded
from ucpformat.conversion.formats.orbax.exporter import export_orbax
from ucpformat.conversion.formats.orbax.importer import detect, import_orbax
from ucpformat.errors import UcpError
from ucpformat.model.state import Optimizer, ParameterGroup, StateDocument
from ucpformat.model.values import decode, encode

FORMS = [{"ocdbt": ocdbt, "zarr": zarr} for ocdbt in ("true", "false") for zarr in ("2", "3")]
VALUES: dict[str, object] = {
    "number": 7,
    "rate": 0.5,
    "on": True,
    "text": "ü",
    "nothing": None,
    "empty": {},
    "list": [1, [2.5, "x"], []],
    "half": np.float16(1.5),
    "array": np.arange(3, dtype=np.int32),
    "by number": {1: 2},
}
FLOATS = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]
KINDS = [*FLOATS, "int4", "bool", "uint8", "int64", "complex64"]


def state(values: dict[str, object]) -> StateDocument:
    options = {"lr": encode(0.1, at=""), "betas": encode((0.9, 0.99), at="")}
    encoded = {name: encode(value, at=name) for name, value in values.items()}
    return StateDocument(encoded, {"optim": Optimizer((ParameterGroup(("w",), options),))}, {})


def arrays() -> dict[str, dict[str, Any]]:
    draw = np.random.default_rng(0)
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        native = np.dtype(kind if hasattr(np, kind) or kind == "bool" else getattr(ml_dtypes, kind))
        found[kind] = {"value": draw.integers(0, 2, (5, 3)).astype(native)}
    found["w"] = {"value": np.arange(6, dtype=np.float32), "exp_avg": np.ones(6), "step": np.asarray(3.0)}
    return found


@pytest.mark.parametrize("settings", FORMS, ids=str)
def test_out_and_in(tmp_path: Path, settings: dict[str, str]) -> None:
    job = job_of(arrays(), aliases={"w": ["tied"]}, state=state(VALUES))
    plan = export_orbax(Content(job), tmp_path / "a", settings=settings)
    assert list(plan.dropped) == []
    carry_out(plan, tmp_path)
    assert detect_format(tmp_path / "a") == "orbax"
    back = import_orbax(tmp_path / "a", settings={})
    found = whole(back, 2)
    for name, slots in arrays().items():
        assert found[f"model.{name}", "value"].tobytes() == slots["value"].tobytes()
    assert found["model.tied", "value"].tolist() == list(range(6))
    assert found["optim.state.w.exp_avg", "value"].tolist() == [1] * 6
    values = {name: decode(value, at=name) for name, value in back.state.values.items()}
    assert values["number"] == 7
    assert values["text"] == "ü"
    assert values["list.1.1"] == "x"
    assert values["list.2"] == []
    assert values["half"] == np.float16(1.5)
    assert values["optim.param_groups.0.betas.1"] == 0.99
    assert values["optim.param_groups.0.params.0"] == "w"
    assert found["array", "value"].tolist() == [0, 1, 2]
    with pytest.raises(UcpError) as refusal:
        carry_out(plan, tmp_path)
    assert refusal.value.code == "UCP-E-EXISTS"


def test_what_a_tree_cannot_hold_is_named(tmp_path: Path) -> None:
    job = job_of(
        {"w": {"value": np.ones(2)}, "none": {"value": np.ones((0, 3))}},
        state=state({"bytes": b"1", "big": 2**70, "in a list": [1, b"2"], "complex": 1j}),
        blobs={"b": ("text/plain", b"")},
    )
    plan = export_orbax(Content(job), tmp_path / "a", settings={})
    assert sorted(lost.what for lost in plan.dropped) == [
        "blobs/b",
        "none/value",
        "values/big",
        "values/bytes",
        "values/complex",
        "values/in a list",
    ]
    for settings in ({"zarr": "4"}, {"ocdbt": "maybe"}):
        with pytest.raises(UcpError) as refusal:
            export_orbax(Content(job), tmp_path / "a", settings=settings)
        assert refusal.value.code == "UCP-E-MISMATCH"


def test_what_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    job, _ = cast_job(job_of({"w": {"value": np.ones(2)}, "x": {"value": np.full(2, 1e9)}}), "float16")
    for number, settings in enumerate(FORMS):
        plan = export_orbax(Content(job), tmp_path / f"{number}", settings=settings)
        with pytest.raises(UcpError, match="leave the range"):
            carry_out(plan, tmp_path)
        assert not (tmp_path / f"{number}").exists()


def made(folder: Path, settings: dict[str, str]) -> Path:
    job = job_of({"w": {"value": np.arange(6.0)}}, state=state({"text": "x", "n": 1}))
    carry_out(export_orbax(Content(job), folder, settings=settings), folder)
    return folder


def _metadata(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        document = json.loads((folder / "_METADATA").read_bytes())
        change(document)
        (folder / "_METADATA").write_text(json.dumps(document))

    return apply


def _first(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(document["tree_metadata"].values()))
    return found


def _key(**change: object) -> Callable[[Path], object]:
    return _metadata(lambda d: _first(d)["key_metadata"][0].update(change))


REFUSED: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no tree": (_metadata(lambda d: d.pop("tree_metadata")), "UCP-E-SOURCE", "_METADATA"),
    "no keys": (_metadata(lambda d: _first(d).pop("key_metadata")), "UCP-E-SOURCE", "_METADATA"),
    "kind of key": (_key(key_type=3), "UCP-E-SOURCE", "_METADATA"),
    "no number": (_key(key_type=1), "UCP-E-SOURCE", "_METADATA"),
    "out of the directory": (_key(key="../x"), "UCP-E-KEY", "_METADATA"),
    "absolute": (_key(key="/etc/x"), "UCP-E-KEY", "_METADATA"),
    "flag": (_metadata(lambda d: d.update(use_zarr3=1)), "UCP-E-SOURCE", "_METADATA"),
    "another version of Zarr": (_metadata(lambda d: d.update(use_zarr3=False)), "UCP-E-SOURCE", "model.w"),
    "other storage": (_metadata(lambda d: d.update(use_ocdbt=True)), "UCP-E-SOURCE", "manifest.ocdbt"),
    "foreign type": (
        _metadata(lambda d: _first(d)["value_metadata"].update(value_type="Mine")),
        "UCP-E-OBJECT",
        "_METADATA",
    ),
    "a name twice": (
        _metadata(lambda d: d["tree_metadata"].update(again=_first(d))),
        "UCP-E-SOURCE",
        "_METADATA",
    ),
    "missing text": (lambda f: (f / "_strings.json").write_text("{}"), "UCP-E-SOURCE", "_strings.json"),
    "missing chunk": (lambda f: (f / "model.w/c/0").unlink(), "UCP-E-SOURCE", "model.w"),
    "missing array": (lambda f: shutil.rmtree(f / "model.w"), "UCP-E-SOURCE", "model.w"),
    "sharding": (lambda f: (f / "_sharding").write_text('{"?": "{}"}'), "UCP-E-SOURCE", "_sharding"),
    "sharding no text": (lambda f: (f / "_sharding").write_text('{"dw==": 1}'), "UCP-E-SOURCE", "_sharding"),
    "cut chunk": (lambda f: (f / "model.w/c/0").write_bytes(b"12"), "UCP-E-SOURCE", "model.w"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_whole_is_refused_naming_the_place(tmp_path: Path, case: str) -> None:
    change, code, at = REFUSED[case]
    folder = made(tmp_path / "a", {"ocdbt": "false", "zarr": "3"})
    change(folder)
    found = outcome(lambda: import_orbax(folder, settings={}))
    assert found is not None
    assert (found.code, found.at) == (code, at)


@pytest.mark.parametrize(
    "sharding",
    [
        {"sharding_type": "SingleDeviceSharding"},
        {"sharding_type": "NamedSharding"},
        {"sharding_type": "NamedSharding", "shape": [4], "axis_names": ["x"], "partition_spec": ["x"]},
        {"sharding_type": "NamedSharding", "shape": [2], "axis_names": ["x"], "partition_spec": ["y"]},
        {"sharding_type": "NamedSharding", "shape": [2.5], "axis_names": ["x"], "partition_spec": ["x"]},
        {"sharding_type": "NamedSharding", "shape": [2], "axis_names": ["x"], "partition_spec": [3]},
        {"sharding_type": "NamedSharding", "shape": [2], "axis_names": ["x"], "partition_spec": [None]},
    ],
    ids=str,
)
def test_a_sharding_that_does_not_fit_is_left_out(tmp_path: Path, sharding: dict[str, Any]) -> None:
    folder = made(tmp_path / "a", {"ocdbt": "false"})
    name = base64.b64encode(b"model.w").decode()
    (folder / "_sharding").write_text(json.dumps({name: json.dumps(sharding)}))
    assert import_orbax(folder, settings={}).atoms[0].slots["value"].layout is None


def test_devices_in_another_order_are_kept(tmp_path: Path) -> None:
    folder = made(tmp_path / "a", {"ocdbt": "false"})
    sharding = {
        "sharding_type": "NamedSharding",
        "shape": [2],
        "axis_names": ["x"],
        "partition_spec": ["x"],
        "device_mesh": {"mesh": [{"id": 1}, {"id": 0}]},
    }
    (folder / "_sharding").write_text(
        json.dumps({base64.b64encode(b"model.w").decode(): json.dumps(sharding)})
    )
    layout = import_orbax(folder, settings={}).atoms[0].slots["value"].layout
    assert layout is not None
    assert layout.mesh.ranks == (1, 0)


def test_steps_and_items(tmp_path: Path) -> None:
    made(tmp_path / "run" / "4" / "default", {})
    step = tmp_path / "run" / "4"
    handlers = {"default": "x.PyTreeCheckpointHandler", "about": "x.JsonCheckpointHandler", "mine": "x.Mine"}
    (step / "_CHECKPOINT_METADATA").write_text(json.dumps({"item_handlers": handlers}))
    (step / "about").mkdir()
    (step / "about" / "metadata").write_text('{"a": 1}')
    (step / "mine").mkdir()
    (step / "mine" / "data").touch()
    (step / "notes").touch()
    assert detect(tmp_path / "run")
    job = import_orbax(tmp_path / "run", settings={})
    assert job.step == 4
    assert whole(job)["default.model.w", "value"].tolist() == list(range(6))
    assert job.state.values["about"] == {"a": 1}
    assert [lost.what for lost in job.dropped] == ["items/mine"]
    report = convert_checkpoint(
        tmp_path / "run",
        tmp_path / "run.ucp",
        source_format="orbax",
        destination_format="ucp",
        drop=["items/mine"],
    )
    assert {lost.what for lost in report.dropped} == {
        "items/mine",
        "files/4/notes",
        "files/4/default/_CHECKPOINT_METADATA",
    }
    for path, settings in ((tmp_path / "run", {"step": "5"}), (tmp_path / "none", {}), (tmp_path, {})):
        found = outcome(lambda path=path, settings=settings: import_orbax(path, settings=settings))  # type: ignore[misc]
        assert found is not None
        assert found.code == "UCP-E-SOURCE"
    for handlers in ({"gone": "x.Mine"}, {"../x": "x.Mine"}):
        (step / "_CHECKPOINT_METADATA").write_text(json.dumps({"item_handlers": handlers}))
        assert outcome(lambda: import_orbax(step, settings={})) is not None
    (step / "_CHECKPOINT_METADATA").write_text("{}")
    assert outcome(lambda: import_orbax(step, settings={})) is not None
    assert not detect(tmp_path)
    assert not detect(tmp_path / "none")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One of each form."""
    folder = tmp_path_factory.mktemp("originals")
    return [made(folder / str(number), settings) for number, settings in enumerate(FORMS)]


@given(st.data())
def test_damaged_files_are_refused_or_read(
    originals: list[Path], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, len(originals) - 1))
    folder = tmp_path_factory.mktemp("damage") / "a"
    shutil.copytree(originals[number], folder)
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    path = folder / files[data.draw(st.integers(0, 99)) % len(files)]
    replaced(path, data.draw(damaged(path.read_bytes())))
    found = outcome(lambda: import_orbax(folder, settings={}))
    assert found is None or found.code.startswith("UCP-E-")
    detect(folder)


def test_it_is_not_resumed(tmp_path: Path) -> None:
    Engine(job_of({"w": {"value": np.ones(2)}}), tmp_path / "a", EngineOptions(durability="none")).run()
    with pytest.raises(UcpError, match="cannot be resumed"):
        convert_checkpoint(
            tmp_path / "a",
            tmp_path / "b",
            source_format="ucp",
            destination_format="orbax",
            engine=EngineOptions(resume=True),
        )
    assert not (tmp_path / "b").exists()


def manager(root: Path) -> Path:
    """A manager's directory as Orbax writes it, with metrics, a tree, JSON of two file names, and metadata of all."""
    for step in (4, 10):
        folder = root / f"{step}"
        made(folder / "state", {"ocdbt": "false"})
        (folder / "state" / "_CHECKPOINT_METADATA").unlink()
        for item, name, data in (("metrics", "metrics", {"loss": step}), ("cfg", "mine.json", {"a": [step]})):
            (folder / item).mkdir()
            (folder / item / name).write_text(json.dumps(data))
            (folder / item / "commit_success.txt").write_text("Checkpoint commit was successful")
        handlers = {"state": "x.StandardCheckpointHandler", "metrics": f"x.{JSON}", "cfg": f"x.{JSON}"}
        document = {
            "item_handlers": handlers,
            "custom_metadata": {"note": f"of {step}", "n": [1, {"b": None}]},
        }
        (folder / "_CHECKPOINT_METADATA").write_text(json.dumps(document))
    (root / "metadata").mkdir()
    (root / "metadata" / "metadata").write_text('{"run": 7}')
    return root


JSON = "JsonCheckpointHandler"


def test_metrics_and_metadata_of_a_manager_are_carried(tmp_path: Path) -> None:
    manager(tmp_path / "run")
    report = convert_checkpoint(
        tmp_path / "run", tmp_path / "run.ucp", source_format="orbax", destination_format="ucp"
    )
    assert [lost.what for lost in report.dropped] == ["files/4/"]
    job = import_orbax(tmp_path / "run", settings={"step": "4"})
    values = {name: decode(value, at=name) for name, value in job.state.values.items()}
    assert values["metrics"] == {"loss": 4}
    assert values["cfg"] == {"a": [4]}
    assert values["orbax.custom_metadata"] == {"note": "of 4", "n": [1, {"b": None}]}
    assert values["orbax.root_metadata"] == {"run": 7}
    convert_checkpoint(
        tmp_path / "run.ucp", tmp_path / "back", source_format="ucp", destination_format="orbax"
    )
    written = json.loads((tmp_path / "back" / "_CHECKPOINT_METADATA").read_bytes())
    assert written["custom_metadata"]["note"] == "of 10"


def test_the_last_step_is_not_passed_over(tmp_path: Path) -> None:
    manager(tmp_path / "run")
    (tmp_path / "run" / "10" / "_CHECKPOINT_METADATA").unlink()
    with pytest.raises(UcpError, match=r"at 10: .*--from-set step=4 reads the one before"):
        import_orbax(tmp_path / "run", settings={})
    assert import_orbax(tmp_path / "run", settings={"step": "4"}).step == 4


@pytest.mark.parametrize("form", [{"ocdbt": "true"}, {"ocdbt": "false"}])
def test_links_out_of_the_source_are_refused_before_tensorstore_follows_them(
    tmp_path: Path, form: dict[str, str]
) -> None:
    folder = made(tmp_path / "a", form)
    victim = next(
        path for path in sorted((folder / ("d" if form["ocdbt"] == "true" else "model.w")).rglob("*"))
    )
    victim.rename(tmp_path / "outside")
    victim.symlink_to(tmp_path / "outside")
    with pytest.raises(UcpError) as refusal:
        import_orbax(folder, settings={})
    assert refusal.value.code == "UCP-E-LINK"
    assert victim.name in refusal.value.at


def test_codecs_within_codecs_are_looked_at() -> None:
    def nested(members: str, codec: object) -> dict[str, Any]:
        inner = {"name": "sharding_indexed", "configuration": {members: [{"name": "bytes"}, codec]}}
        return {"codecs": [{"name": "sharding_indexed", "configuration": {"codecs": [inner]}}]}

    for members in ("codecs", "index_codecs"):
        assert [*_unbounded(nested(members, {"name": "blosc"}), is_zarr3=True)] == ["blosc"]
        assert [*_unbounded(nested(members, "vlen"), is_zarr3=True)] == ["vlen"]
        assert [*_unbounded(nested(members, {"name": "zstd"}), is_zarr3=True)] == []


def test_places_in_sequences_are_no_keys(tmp_path: Path) -> None:
    job = job_of(
        {"w": {"value": np.arange(6.0)}}, state=state({"list": [1, ["x"]], "keys": {"0": 1, "1": 2}})
    )
    carry_out(export_orbax(Content(job), tmp_path / "a", settings={}), tmp_path)
    convert_checkpoint(tmp_path / "a", tmp_path / "b.ucp", source_format="orbax", destination_format="ucp")
    back: Any = ucpformat.load(tmp_path / "b.ucp")
    assert (back["list"], back["keys"]) == ([1, ["x"]], {"0": 1, "1": 2})


def test_what_decompresses_to_far_more_is_refused(tmp_path: Path) -> None:
    """3 GiB of zeros in a few KB: as one array, and as a chunk that is larger than its array."""
    folder = made(tmp_path / "a", {"ocdbt": "false", "zarr": "2"})
    place = folder / "model.w" / ".zarray"
    document = json.loads(place.read_bytes())
    place.write_text(json.dumps(document | {"shape": [2**40], "chunks": [2**22]}))
    with pytest.raises(UcpError) as refusal:
        convert_checkpoint(folder, tmp_path / "b.ucp", source_format="orbax", destination_format="ucp")
    assert (refusal.value.code, refusal.value.at) == ("UCP-E-LIMIT", "model.w/value")
    place.write_text(json.dumps(document | {"chunks": [3 << 27]}))
    with pytest.raises(UcpError, match="larger than the array") as refusal:
        convert_checkpoint(folder, tmp_path / "b.ucp", source_format="orbax", destination_format="ucp")
    assert refusal.value.code == "UCP-E-LIMIT"


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_no_file_is_lost_in_silence(tmp_path: Path, form: dict[str, str]) -> None:
    """Of OCDBT's nodes, TensorStore says to which array they belong, and not their names."""
    swap = {
        r".*betas\.0/(0|c) <-> .*": "Zarr keeps no checksum of chunks, and nothing in one says of which array it is"
    }
    found = sweep(
        made(tmp_path / "a", form),
        tmp_path / "scratch",
        known_as=lambda name: "in OCDBT" if name.startswith("d/") else None,
        blind=swap if form["ocdbt"] == "false" else {},
    )
    found.check()


def test_no_file_of_a_manager_is_lost_in_silence(tmp_path: Path) -> None:
    root = manager(tmp_path / "run")
    shutil.rmtree(root / "4")
    sweep(
        root,
        tmp_path / "scratch",
        family=lambda name: None,
        known_as=lambda name: "at cfg/" if "cfg" in name else None,
    ).check()
