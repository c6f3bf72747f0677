"""The driver of the reference implementation: `ucpformat` speaks the protocol of PROTOCOL.md."""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import ucpformat as ucp
from log_writer import begin_epoch, forget_epochs, write_batch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.geometry import Box, BufferPlace, Layout, Partial, Piece, Scale, Strided, lower
from ucpformat.image_files import SourceFile
from ucpformat.model.atom import place_from_json, place_to_json
from ucpformat.model.compressor import Compressor
from ucpformat.model.dtype import DTYPES
from ucpformat.model.layout_json import (
    LayoutRecord,
    MeshRecord,
    mesh_to_json,
    resolve,
    step_to_json,
)
from ucpformat.model.pipeline import Pipeline
from ucpformat.model.state import Optimizer, StateDocument
from ucpformat.model.values import decode
from ucpformat.storage.arithmetic import reduced, scaled
from ucpformat.update_log.place import SUFFIX
from ucpformat.update_log.reading import StoredLog
from ucpformat.update_log.small_optimizer import replay_small
from ucpformat.update_log.validation import log_problems

Json = dict[str, Any]


def library_version() -> str:
    try:
        return version("ucpformat")
    except PackageNotFoundError:
        return "0"


def hello(params: Json) -> Json:
    return {
        "protocol": 1,
        "implementation": {"name": "ucpformat", "version": library_version(), "language": "python"},
        "roles": ["validator", "reader", "writer", "rewriter"],
        "format_versions": [0],
        "storages": ["plain", "packed"],
        "read_features": [
            "blosc",
            "incremental",
            "process-images",
            "row-overwrite",
            "update-log",
            "weight-versions",
            "zstd",
        ],
        "write_features": [],
        "writes_features": ["incremental", "process-images", "update-log", "weight-versions"],
        "compressors": ["blosc", "gzip", "zstd"],
        "dtypes": list(DTYPES),
        "profiles": ["core", "buffers", "views", "ragged", "reductions"],
    }


def validate(params: Json) -> Json:
    # An option is refused at a level where it has no effect.
    level = params["level"]
    if params["path"].endswith(SUFFIX):
        found = log_problems(params["path"])
        return {"problems": [{"code": p.code, "at": p.at, "detail": p.message} for p in found]}
    unbounded = {"layout_work": level != "structure", "expand": level == "integrity"}
    bounds = {name: 1 << 62 for name, has_effect in unbounded.items() if has_effect}
    problems = ucp.validate(params["path"], level, **bounds)
    return {"problems": [{"code": p.code, "at": p.at, "detail": p.message} for p in problems]}


def layout_of(params: Mapping[str, Any]) -> Layout:
    mesh = MeshRecord.from_json(params["mesh"], at="mesh")
    record = LayoutRecord.from_json({"mesh": 0, "steps": params["steps"]}, at="layout")
    resolved = resolve([mesh], [record], at="layout")
    if resolved.problems:
        first = resolved.problems[0]
        raise RefusalError(first.code, first.at, first.message)
    return resolved.layouts[0]


class RefusalError(Exception):
    """A refusal that the library states as data."""


def place_of(params: Mapping[str, Any]) -> BufferPlace | None:
    return place_from_json(params["place"], "place") if "place" in params else None


def layout_json(layout: Layout | None) -> Json | None:
    if layout is None:
        return None
    return {"mesh": mesh_to_json(layout.mesh), "steps": [step_to_json(step) for step in layout.steps]}


def inspect(params: Json) -> Json:
    with ucp.open(params["path"]) as checkpoint:
        atoms = []
        for name, atom in checkpoint.items():
            slots = {
                slot: {
                    "dtype": view.dtype.name,
                    "shape": list(view.shape),
                    "chunk_shape": list(view.chunk_shape),
                    "layout": layout_json(view.layout),
                    **({} if view.place is None else {"place": place_to_json(view.place)}),
                }
                for slot, view in atom.items()
            }
            atoms.append(
                {"name": name, "key": atom.atom.key, "aliases": list(atom.atom.aliases), "slots": slots}
            )
        state = checkpoint.state
        # Reading means decoding: a value that is not canonical is refused here.
        reference = checkpoint.root.state
        if reference is not None:
            for at, value in state.tagged_values(at=reference.key):
                decode(value, at=at)
        return {
            "storage": checkpoint.root.storage,
            "chunk_bytes": checkpoint.root.chunk_bytes,
            "step": checkpoint.root.step,
            "atoms": atoms,
            "values": dict(state.values),
            "optimizers": {name: optimizer.to_json() for name, optimizer in state.optimizers.items()},
            "blobs": {
                name: {"media_type": blob.media_type, "length": blob.object.length}
                for name, blob in state.blobs.items()
            },
        }


def piece_json(piece: Piece) -> Json:
    local = piece.local
    if not isinstance(local, Strided):
        raise TypeError("a piece without strides")
    return {
        "offset": list(piece.box.offset),
        "shape": list(piece.box.shape),
        "local": local.offset,
        "strides": list(local.strides),
    }


def lower_method(params: Json) -> Json:
    layout = layout_of(params)
    lowering = lower(layout, tuple(params["shape"]), place=place_of(params))
    found = []
    for coordinate in layout.mesh.coordinates():
        local = lowering.at(coordinate)
        found.append(
            {
                "coordinate": list(coordinate),
                "shape": None if local is None else list(local.shape),
                "pieces": [] if local is None else [piece_json(piece) for piece in local.pieces],
            }
        )
    return {"locals": found}


def save_array(data: NDArray[Any], path: str) -> None:
    Path(path).write_bytes(np.ascontiguousarray(data).tobytes())


def read(params: Json) -> Json:
    with ucp.open(params["path"], restored=params.get("restored", ())) as checkpoint:
        view = checkpoint[params["atom"]][params["slot"]]
        if "mesh" in params:
            return read_layout(checkpoint, view.dtype.name, params)
        if "box" in params:
            box = params["box"]
            data = np.empty(tuple(box["shape"]), view.dtype)
            checkpoint.read_box(view.stored, Box(tuple(box["offset"]), tuple(box["shape"])), data)
        else:
            data = view.read()
        save_array(data, params["out"])
        return {"dtype": view.dtype.name, "shape": list(data.shape)}


def read_layout(checkpoint: ucp.Checkpoint, dtype: str, params: Json) -> Json:
    layout = layout_of(params)
    names = [axis.name for axis in layout.mesh.axes]
    found = []
    for out in params["outs"]:
        where = dict(zip(names, out["coordinate"], strict=True))
        data = checkpoint.read(
            params["atom"], params["slot"], layout=layout, coord=where, place=place_of(params)
        )
        found.append({"coordinate": out["coordinate"], "shape": None if data is None else list(data.shape)})
        if data is not None:
            save_array(data, out["out"])
    return {"dtype": dtype, "locals": found}


def read_blob(params: Json) -> Json:
    with ucp.open(params["path"]) as checkpoint:
        Path(params["out"]).write_bytes(checkpoint.blobs[params["blob"]])
        return {"media_type": checkpoint.state.blobs[params["blob"]].media_type}


def slot_spec(slot: Json) -> ucp.SlotSpec:
    compressor = Compressor.from_json(slot["compressor"], at="compressor") if "compressor" in slot else None
    layout = layout_of(slot) if "mesh" in slot else None
    return ucp.SlotSpec(slot["dtype"], tuple(slot["shape"]), layout, compressor, place=place_of(slot))


def elements(path: str, kind: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the elements in a file, which are to be as many as the shape says."""
    data = Path(path).read_bytes()
    if len(data) != math.prod(shape) * kind.itemsize:
        raise RefusalError("UCP-E-MISMATCH", "", f"{len(data)} bytes for a tensor of the shape {shape}")
    return np.frombuffer(data, kind).reshape(shape)


def gathered(slot: Json) -> NDArray[Any]:
    """Return the whole tensor of a slot, from its file or its local tensors."""
    kind, shape = DTYPES[slot["dtype"]].numpy, tuple(slot["shape"])
    if "in" in slot:
        return elements(slot["in"], kind, shape)
    # Elements as opaque bytes: strides of extension types are numpy's weak side.
    opaque = np.dtype(f"V{kind.itemsize}")
    lowering = lower(layout_of(slot), shape, place=place_of(slot))
    mesh, reduce = lowering.layout.mesh, lowering.reduce
    summed = [step.axis for step in lowering.layout.steps if isinstance(step, Partial)]
    places = [number for number, axis in enumerate(mesh.axes) if axis.name in summed]
    # Pieces are boxes of the view, whose elements stand in the same row-major order.
    contributions: dict[tuple[int, ...], NDArray[Any]] = {}
    held: dict[tuple[int, ...], NDArray[np.bool_]] = {}
    for given in slot["ins"]:
        coordinate = tuple(given["coordinate"])
        which = tuple(coordinate[number] for number in places)
        whole = contributions.setdefault(which, np.zeros(lowering.view, opaque))
        is_held = held.setdefault(which, np.zeros(lowering.view, bool))
        local = lowering.at(coordinate)
        if local is None:
            raise RefusalError("UCP-E-MISMATCH", "", f"the coordinate {coordinate} holds nothing")
        data = elements(given["in"], opaque, local.shape).reshape(-1)
        for piece in local.pieces:
            box, place = piece.box, piece_json(piece)
            strides = [stride * kind.itemsize for stride in place["strides"]]
            region = tuple(slice(low, low + size) for low, size in zip(box.offset, box.shape, strict=True))
            whole[(*region, ...)] = as_strided(data[place["local"] :], box.shape, strides)
            is_held[(*region, ...)] = True
    wanted = math.prod(mesh.shape[number] for number in places)
    if len(held) < wanted or not all(found.all() for found in held.values()):
        raise RefusalError("UCP-E-COVER", "", "the local tensors leave elements out")
    found = [data.reshape(shape).view(kind) for _, data in sorted(contributions.items())]
    data = found[0] if reduce is None else reduced(found, DTYPES[slot["dtype"]], reduce)
    exponent = sum(step.exponent or 0 for step in lowering.layout.steps if isinstance(step, Scale))
    return scaled(data, DTYPES[slot["dtype"]], -exponent) if exponent else data


def image_of(image: Json) -> ucp.ImageSource:
    files = [
        SourceFile(
            file["path"], lambda place=file["in"]: iter([Path(place).read_bytes()]), "executable" in file
        )
        for file in image["files"]
    ]
    producer = image["producer"]["name"], image["producer"]["version"]
    return ucp.ImageSource(
        image["media_type"], producer, files, image["host"], image["required"], image.get("rank")
    )


def write(params: Json) -> Json:
    specs = [
        ucp.AtomSpec(
            atom["name"],
            {name: slot_spec(slot) for name, slot in atom["slots"].items()},
            tuple(atom.get("aliases", ())),
        )
        for atom in params["atoms"]
    ]
    writer = ucp.CheckpointWriter(
        params["path"],
        specs,
        storage=params["storage"],
        chunk_bytes=params["chunk_bytes"],
        step=params.get("step"),
        base=params.get("base"),
    )
    try:
        optimizers = {
            name: Optimizer.from_json(value, at=name) for name, value in params.get("optimizers", {}).items()
        }
        pipeline = Pipeline.from_json(params["pipeline"], at="pipeline") if "pipeline" in params else None
        writer.set_state(StateDocument(params.get("values", {}), optimizers, {}, pipeline=pipeline))
        for name, blob in params.get("blobs", {}).items():
            writer.add_blob(name, Path(blob["in"]).read_bytes(), blob["media_type"])
        for name, image in params.get("images", {}).items():
            writer.add_image(name, image_of(image))
        for atom in params["atoms"]:
            for name, slot in atom["slots"].items():
                writer.write(atom["name"], name, gathered(slot))
    except BaseException:
        writer.abort()
        raise
    return {"digest": writer.commit()}


def described(log: StoredLog) -> Json:
    """Return what a log has, as far as it counts."""
    branch = []
    for stored, stop in log.branch():
        epoch = stored.epoch
        chains = [log.chain(epoch.epoch, rank) for rank in range(epoch.ranks)]
        branch.append(
            {
                "epoch": epoch.epoch,
                "first_step": epoch.first_step,
                "stop_step": stop,
                "durable_step": min(chain.stop_step for chain in chains),
                "batches": [
                    [[batch.header.first_step, batch.header.stop_step] for batch in chain.batches]
                    for chain in chains
                ],
            }
        )
    return {"id": log.document.id, "epochs": log.keys.epochs, "branch": branch}


def log_method(params: Json) -> Json:
    with StoredLog(params["path"]) as log:
        found = described(log)
        if "checkpoint" not in params:
            return found
        with ucp.open(params["checkpoint"]) as checkpoint:
            position, step = checkpoint.root.log, checkpoint.root.step
            if step is None or position is None or position.id != log.document.id:
                raise RefusalError("UCP-E-LOG", "ucp.json", "the checkpoint is of no log, or of another one")
            values = {
                name: np.array(atom["value"].read()) for name, atom in checkpoint.items() if "value" in atom
            }
        recovery = replay_small(
            log, values, (position.epoch, step), allow_loss=params.get("allow_loss", False)
        )
        for out in params.get("outs", ()):
            save_array(values[out["atom"]], out["out"])
        return {**found, "recovery": {"step": recovery.step, "exactness": recovery.exactness}}


def rewrite(params: Json) -> Json:
    report = convert_checkpoint(
        params["source"],
        params["path"],
        source_format="ucp",
        destination_format="ucp",
        storage=params["storage"],
    )
    return {"digest": report.digest}


def nothing(params: Json) -> Json:
    return {}


METHODS: dict[str, Callable[[Json], Json]] = {
    "hello": hello,
    "validate": validate,
    "inspect": inspect,
    "lower": lower_method,
    "read": read,
    "read-blob": read_blob,
    "write": write,
    "log": log_method,
    "begin-epoch": begin_epoch,
    "write-batch": write_batch,
    "rewrite": rewrite,
    "reset": forget_epochs,
    "shutdown": nothing,
}


def answer(method: str, params: Json) -> Json:
    try:
        return {"result": METHODS[method](params)}
    except ucp.UcpError as refusal:
        return {"error": {"code": refusal.code, "at": refusal.at, "detail": refusal.message}}
    except RefusalError as refusal:
        code, at, detail = refusal.args
        return {"error": {"code": code, "at": at, "detail": detail}}
    except Exception:  # a defect of any kind is told as such
        traceback.print_exc()
        return {"internal": {"detail": traceback.format_exc()[-800:]}}


def main(arguments: Sequence[str] = ()) -> None:
    replies = sys.stdout
    # Nothing but replies goes to standard output, whatever a library prints.
    sys.stdout = sys.stderr
    for line in sys.stdin.buffer:
        request = json.loads(line)
        reply = {"id": request["id"], **answer(request["method"], request["params"])}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        if request["method"] == "shutdown":
            return


if __name__ == "__main__":
    main(sys.argv)
