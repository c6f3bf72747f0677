"""Orbax itself: what it saves is read bit for bit, what we write it restores sharded otherwise, training goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ucpformat as ucp
from tests.conversion.damage import damaged, outcome, replaced
from tests.conversion.jobs import whole
from tests.frameworks_live.sweep import sweep
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.conversion.formats.orbax.importer import import_orbax
from ucpformat.model.values import decode

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

FORMS = [(True, True), (True, False), (False, True), (False, False)]


def mesh(*sizes: int) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(sizes), ("x", "y"))


def spread(array: Any, where: Mesh, *spec: Any) -> Any:
    return jax.device_put(array, NamedSharding(where, PartitionSpec(*spec)))


def tree(where: Mesh) -> dict[str, Any]:
    """Sharded along both axes, along one, along both at once, and not at all; every kind of leaf."""
    draw = np.random.default_rng(0)
    return {
        "params": {
            "layer.0": {"w": spread(jnp.asarray(draw.normal(size=(16, 8)), jnp.float32), where, "x", "y")},
            "half": spread(jnp.asarray(draw.normal(size=(8, 4)), jnp.bfloat16), where, ("y", "x")),
            "f8": spread(jnp.asarray(draw.normal(size=(8,)), jnp.float8_e4m3fn), where, "y"),
            "f8e5": jnp.asarray(draw.normal(size=(3, 2)), jnp.float8_e5m2),
            "i4": jnp.asarray([-8, -1, 0, 7], jnp.int4),
        },
        "opt": [(jnp.int32(3), {"mu": spread(jnp.zeros((16, 8)), where, None, "x")}), {}],
        "step": 7,
        "lr": 0.5,
        "flag": True,
        "name": "text",
        "none": None,
        "empty": [],
        "host": np.arange(6, dtype=np.int16).reshape(2, 3),
        "number": np.float32(1.25),
    }


def saved(folder: Path, state: Any, *, use_ocdbt: bool = True, use_zarr3: bool = False) -> Path:
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(folder, state)
    return folder


def same(one: Any, other: Any) -> None:
    """Trees of equal leaves, bit by bit; Orbax gives lists where tuples were."""
    first, second = jax.tree.leaves_with_path(one), jax.tree.leaves_with_path(other)
    assert [jax.tree_util.keystr(path) for path, _ in first] == [
        jax.tree_util.keystr(path) for path, _ in second
    ]
    for (path, a), (_, b) in zip(first, second, strict=True):
        if isinstance(a, jax.Array | np.ndarray):
            assert np.asarray(a).dtype == np.asarray(b).dtype, path
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), path
        else:
            assert a == b, path


def convert(source: Path, destination: Path, to: str, **given_settings: str) -> Any:
    return convert_checkpoint(
        source,
        destination,
        source_format=detect_format(source),
        destination_format=to,
        settings=given_settings if to != "ucp" else None,
    )


@pytest.mark.parametrize(("use_ocdbt", "use_zarr3"), FORMS)
def test_in_and_out_in_every_form_under_another_sharding(
    tmp_path: Path, use_ocdbt: bool, use_zarr3: bool
) -> None:
    state = tree(mesh(4, 2))
    saved(tmp_path / "a", state, use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
    assert detect_format(tmp_path / "a") == "orbax"
    convert(tmp_path / "a", tmp_path / "c.ucp", "ucp")
    checkpoint = ucp.open(tmp_path / "c.ucp")
    weight = checkpoint["params.layer.0.w"]["value"]
    assert weight.read().tobytes() == np.asarray(state["params"]["layer.0"]["w"]).tobytes()
    assert weight.layout is not None
    assert [(axis.name, axis.size) for axis in weight.layout.mesh.axes] == [("x", 4), ("y", 2)]
    settings = {"ocdbt": str(use_ocdbt).lower(), "zarr": "3" if use_zarr3 else "2"}
    convert(tmp_path / "c.ucp", tmp_path / "b", "orbax", **settings)
    with ocp.PyTreeCheckpointer() as checkpointer:
        same(checkpointer.restore(tmp_path / "a"), checkpointer.restore(tmp_path / "b"))
    # The arrays again on a mesh of another shape, from what Orbax wrote and from what we did.
    other = tree(mesh(2, 4))
    arrays = {"params": other["params"], "opt": other["opt"]}
    target = jax.tree.map(ocp.utils.to_shape_dtype_struct, arrays)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        found = checkpointer.restore(
            tmp_path / "b",
            ocp.args.PyTreeRestore(
                item=target,
                restore_args=ocp.checkpoint_utils.construct_restore_args(target),
                partial_restore=True,
            ),
        )
    same(arrays, found)
    for wanted, array in zip(jax.tree.leaves(arrays), jax.tree.leaves(found), strict=True):
        assert array.sharding == wanted.sharding


def step(state: dict[str, Any], batch: Any) -> tuple[dict[str, Any], Any]:
    """One step of momentum, the same wherever the arrays are."""

    def loss(weights: Any) -> Any:
        return jnp.mean((jnp.tanh(batch @ weights["a"]) @ weights["b"] - 1.0) ** 2)

    value, gradients = jax.value_and_grad(loss)(state["params"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradients)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}, value


def test_training_goes_on_where_it_was(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    batch = jnp.asarray(draw.normal(size=(8, 16)), jnp.float32)
    weights = {
        "a": draw.normal(size=(16, 8)).astype(np.float32),
        "b": draw.normal(size=(8, 4)).astype(np.float32),
    }

    def on(where: Mesh, arrays: Any) -> Any:
        return {
            name: spread(array, where, "x", "y" if name == "a" else None) for name, array in arrays.items()
        }

    zeros = {name: np.zeros_like(array) for name, array in weights.items()}
    state = {"params": on(mesh(4, 2), weights), "momentum": on(mesh(4, 2), zeros)}
    for _ in range(3):
        state, _ = step(state, batch)
    saved(tmp_path / "a", state)
    convert(tmp_path / "a", tmp_path / "b", "orbax")
    other = {"params": on(mesh(2, 4), weights), "momentum": on(mesh(2, 4), zeros)}
    with ocp.StandardCheckpointer() as checkpointer:
        resumed = checkpointer.restore(tmp_path / "b", jax.tree.map(ocp.utils.to_shape_dtype_struct, other))
    same(state, resumed)
    for _ in range(3):
        state, one = step(state, batch)
        resumed, two = step(resumed, batch)
        np.testing.assert_allclose(one, two, rtol=1e-5)


def test_steps_of_a_manager(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        for number in (3, 12):
            manager.save(
                number,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave({"w": jnp.full(4, number)}),
                    more=ocp.args.StandardSave({"key": jax.random.key(5)}),
                    about=ocp.args.JsonSave({"epoch": number}),
                    odd=ocp.args.ArraySave(jnp.ones(2)),
                ),
            )
        manager.wait_until_finished()
    (tmp_path / "run" / "13.orbax-checkpoint-tmp-0").mkdir()
    job = import_orbax(tmp_path / "run", settings={})
    assert job.step == 12
    found = whole(job)
    assert found["state.w", "value"].tolist() == [12] * 4
    assert found["more.key", "value"].tolist() == jax.random.key_data(jax.random.key(5)).tolist()
    assert job.state.values["about"] == {"epoch": 12}
    assert found["odd.checkpoint", "value"].tolist() == [1, 1]
    assert list(job.dropped) == []
    assert (
        whole(import_orbax(tmp_path / "run", settings={"step": "3"}))["state.w", "value"].tolist() == [3] * 4
    )
    convert(tmp_path / "run", tmp_path / "out", "orbax")
    target = {
        "state": {"w": jnp.zeros(4, jnp.int32)},
        "more": {"key": jax.random.key(0)},
        "about": {"epoch": 0},
    }
    target["odd"] = {"checkpoint": jnp.zeros(2)}
    with ocp.StandardCheckpointer() as checkpointer:
        back = checkpointer.restore(tmp_path / "out", target)
    assert jax.random.key_data(back["more"]["key"]).tolist() == found["more.key", "value"].tolist()
    assert back["about"] == {"epoch": 12}


@pytest.mark.parametrize(("use_ocdbt", "use_zarr3"), FORMS)
def test_every_missing_file_is_refused(tmp_path: Path, use_ocdbt: bool, use_zarr3: bool) -> None:
    """Of the files that hold arrays or say where they are; what is left can be done without."""
    state = {"w": spread(jnp.arange(32.0).reshape(8, 4), mesh(4, 2), "x", "y"), "s": "text"}
    saved(tmp_path / "a", state, use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
    spare = ("_CHECKPOINT_METADATA", "commit_success.txt", "_sharding", "process_0")
    names = sorted(
        str(path.relative_to(tmp_path / "a")) for path in (tmp_path / "a").rglob("*") if path.is_file()
    )
    missed = []
    for name in names:
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        (tmp_path / "b" / name).unlink()
        found = outcome(lambda: import_orbax(tmp_path / "b", settings={}))
        if found is None:
            missed.append(name)
        else:
            assert found.code == "UCP-E-SOURCE"
        shutil.rmtree(tmp_path / "b")
    # What the processes wrote before it was merged: the merged tree points into the files of data, not at all of it.
    assert [n for n in missed if not n.endswith(spare) and not n.endswith("process_0/manifest.ocdbt")] == [
        n for n in missed if n.startswith("ocdbt.process_0/d/")
    ]
    assert len(missed) < len(names) - 2


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One checkpoint of each form."""
    folder = tmp_path_factory.mktemp("originals")
    state = {"w": spread(jnp.arange(32.0).reshape(8, 4), mesh(4, 2), "x", "y"), "s": "text", "n": [1, 2.5]}
    return [
        saved(folder / str(number), state, use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
        for number, (use_ocdbt, use_zarr3) in enumerate(FORMS)
    ]


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_damaged_files_are_refused_or_read(
    originals: list[Path], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    original = data.draw(st.sampled_from(originals))
    folder = tmp_path_factory.mktemp("damage") / "a"
    shutil.copytree(original, folder)
    files = sorted(path.relative_to(original) for path in original.rglob("*") if path.is_file())
    path = folder / data.draw(st.sampled_from(files))
    replaced(path, data.draw(damaged(path.read_bytes())))
    found = outcome(lambda: import_orbax(folder, settings={}))
    assert found is None or found.code.startswith("UCP-E-")


CHUNK = "nothing in a chunk of Zarr's says of which array, or which part of one, it is"


@pytest.mark.parametrize(("use_ocdbt", "use_zarr3"), FORMS)
def test_no_file_is_lost_in_silence(tmp_path: Path, use_ocdbt: bool, use_zarr3: bool) -> None:
    state = tree(mesh(4, 2)) | {"key": jax.random.key(7)}
    saved(tmp_path / "a", state, use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
    found = sweep(
        tmp_path / "a",
        tmp_path / "scratch",
        known_as=lambda name: "in OCDBT database" if "d/" in name else None,
        blind={} if use_ocdbt else {r"[^_].*/[^/]+ <-> [^_].*": CHUNK},
    )
    found.check()
    print(found.counts)


def test_no_file_of_a_manager_is_lost_in_silence(tmp_path: Path) -> None:
    """With metrics, an item of JSON and custom metadata, two steps of it."""
    options = ocp.CheckpointManagerOptions(max_to_keep=2, best_fn=lambda metrics: metrics["loss"])
    with ocp.CheckpointManager(tmp_path / "run", options=options) as manager:
        for step in (1, 2):
            items = ocp.args.Composite(
                state=ocp.args.StandardSave({"w": jnp.arange(6.0) + step}), extra=ocp.args.JsonSave({"a": 1})
            )
            manager.save(step, args=items, metrics={"loss": 2.0 / step}, custom_metadata={"note": step})
        manager.wait_until_finished()
    report = convert(tmp_path / "run", tmp_path / "c.ucp", "ucp")
    assert [lost.what for lost in report.dropped] == ["files/1/"]
    with ucp.open(tmp_path / "c.ucp") as checkpoint:
        assert decode(checkpoint.state.values["metrics"], at="") == {"loss": 1.0}
        assert decode(checkpoint.state.values["orbax.custom_metadata"], at="") == {"note": 2}
    found = sweep(
        tmp_path / "run",
        tmp_path / "scratch",
        known_as=lambda name: "in OCDBT database" if "d/" in name else None,
        blind={
            r"1/(_CHECKPOINT_METADATA|metrics/metrics) <-> 2/.*": "it does not say of which step it is",
        },
    )
    found.check()
    print(found.counts)
