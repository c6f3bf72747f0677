"""A driver made of the oracle itself: what the mutants deviate from. Slow, small shapes only."""

from __future__ import annotations

import json
import math
import secrets
import sys
import traceback
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ucp_conformance.drafting import AtomDraft, Draft, SlotDraft
from ucp_conformance.oracle import documents, images
from ucp_conformance.oracle.arithmetic import reduced, scaled, spread_dtype
from ucp_conformance.oracle.bytes_of import ITEM_BYTES, boxes_of, linear, unused_bits
from ucp_conformance.oracle.examine import Examination, Logical, examine
from ucp_conformance.oracle.layouts import Local, coordinates, local_bytes, lower, pieces, view_of
from ucp_conformance.oracle.levels import at_level
from ucp_conformance.oracle.problem import Problem, RefusalError
from ucp_conformance.oracle.store import is_component
from ucp_conformance.profiles import PROFILES

# What a reader meets in the order of SPEC 17 and what only a validator looks for.
WRITE_FEATURES = "ucp.json#/write_features"
VALIDATOR_ONLY = {"UCP-E-PADDING", "UCP-E-CONTENT", "UCP-E-ZARR", "UCP-E-COVER"}


class OracleDriver:
    """Right by definition. Mutants override one method each."""

    name = "oracle"
    checked_before_rewriting: frozenset[str] = frozenset({"UCP-E-CONTENT"})
    state_kept: tuple[str, ...] = ("values", "optimizers", "pipeline", "images", "annotations")

    def hello(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "protocol": 1,
            "implementation": {"name": self.name, "version": "0", "language": "python"},
            "roles": ["validator", "reader", "writer", "rewriter"],
            "format_versions": [0],
            "storages": ["plain", "packed"],
            "read_features": [],
            "write_features": [],
            "compressors": ["gzip"],
            "dtypes": list(ITEM_BYTES),
            "profiles": list(PROFILES),
        }

    def examined(self, path: str) -> Examination:
        return examine(Path(path))

    def validate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        problems = at_level(self.examined(params["path"]).problems, params["level"])
        return {"problems": [{"code": problem.code, "at": problem.at} for problem in problems]}

    def opened(self, path: str, touched: Sequence[str] = ()) -> Logical:
        """Return a checkpoint that a reader of the objects that begin with ``touched`` accepts."""
        seen = self.examined(path)
        for problem in seen.errors:
            if self.concerns(problem, touched):
                raise RefusalError(problem.code, problem.at, problem.why)
        if seen.logical is None:
            problem = seen.errors[0]
            raise RefusalError(problem.code, problem.at, problem.why)
        return seen.logical

    def concerns(self, problem: Problem, touched: Sequence[str]) -> bool:
        if problem.code in VALIDATOR_ONLY or problem.at == WRITE_FEATURES:
            return False
        stored = problem.at.startswith(("atoms/", "packs/", "blobs/"))
        return not stored or problem.at.startswith(tuple(touched)) if touched else not stored

    def inspect(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return self.opened(params["path"]).inspect()

    def lower(self, params: Mapping[str, Any]) -> dict[str, Any]:
        shape = params["shape"]
        return {
            "locals": [
                {
                    "coordinate": list(coordinate),
                    "shape": None if local is None else list(local.shape),
                    "pieces": [] if local is None else self.pieces(local, view_of(params["steps"], shape)),
                }
                for coordinate, local in self.lowered(
                    params["mesh"], params["steps"], shape, params.get("place")
                ).items()
            ]
        }

    def pieces(self, local: Local, shape: Sequence[int]) -> list[dict[str, Any]]:
        return pieces(local, shape)

    def lowered(
        self,
        mesh: Mapping[str, Any],
        steps: Sequence[Mapping[str, Any]],
        shape: Sequence[int],
        place: Mapping[str, Any] | None = None,
    ) -> dict[tuple[int, ...], Local | None]:
        return lower(mesh, steps, shape, place)

    def read(self, params: Mapping[str, Any]) -> dict[str, Any]:
        logical = self.opened(params["path"], ("atoms/", "packs/"))
        name = params["atom"]
        atom = next(a for a in logical.atoms if name in (a["name"], *a.get("aliases", ())))
        slot = atom["slots"][params["slot"]]
        data, shape, item = (
            logical.data[atom["name"], params["slot"]],
            slot["shape"],
            ITEM_BYTES[slot["dtype"]],
        )
        if "mesh" in params:
            images.require_restored(logical.state, params.get("restored", ()))
            exponent = self.readable(params, logical.layout(slot.get("layout")), slot["dtype"])
            found = self.lowered(params["mesh"], params["steps"], shape, params.get("place"))
            answers = []
            for out in params["outs"]:
                local = found[tuple(out["coordinate"])]
                answers.append(
                    {"coordinate": out["coordinate"], "shape": None if local is None else list(local.shape)}
                )
                if local is not None:
                    raw = local_bytes(data, item, local)
                    Path(out["out"]).write_bytes(scaled(raw, slot["dtype"], exponent) if exponent else raw)
            return {"dtype": slot["dtype"], "locals": answers}
        if "box" in params:
            box = params["box"]
            places = (linear(index, shape) for index in boxes_of(box["offset"], box["shape"]))
            data, shape = b"".join(data[item * place : item * place + item] for place in places), box["shape"]
        Path(params["out"]).write_bytes(self.bytes_read(data, shape, item))
        return {"dtype": slot["dtype"], "shape": shape}

    def readable(self, target: Mapping[str, Any], source: Mapping[str, Any] | None, dtype: str) -> int:
        """Return the exponent of a target layout; refuses what is not for reading."""
        exponent = 0
        for step in target["steps"]:
            if step["kind"] == "partial":
                raise RefusalError("UCP-E-LAYOUT", "", "partial is of sources alone")
            if step["kind"] == "scale":
                spread_dtype(dtype, "scale")
                exponent = step["exponent"]
        if source is None or not source["steps"] or source["steps"][0]["kind"] != "local":
            return exponent
        same = source["mesh"]["axes"] == target["mesh"]["axes"]
        count = len(list(coordinates(source["mesh"])))
        kept = source["steps"][0]["resize"] == "keep" and count == len(list(coordinates(target["mesh"])))
        if [step["kind"] for step in target["steps"]] != ["local"] or not (same or kept):
            raise RefusalError("UCP-E-MISMATCH", "", "entries of other coordinates")
        return exponent

    def bytes_read(self, data: bytes, shape: Sequence[int], item: int) -> bytes:
        return data

    def read_blob(self, params: Mapping[str, Any]) -> dict[str, Any]:
        logical = self.opened(params["path"], ("blobs/",))
        Path(params["out"]).write_bytes(logical.blobs[params["blob"]])
        return {"media_type": logical.state["blobs"][params["blob"]]["media_type"]}

    def write(self, params: Mapping[str, Any]) -> dict[str, Any]:
        if not 16 <= params["chunk_bytes"] <= 2**30:
            raise RefusalError("UCP-E-LIMIT", "chunk_bytes")
        meshes: list[Any] = []
        layouts: list[Any] = []
        atoms = []
        for number, atom in enumerate(sorted(params["atoms"], key=lambda atom: atom["name"].encode())):
            slots = {name: self.slot(slot, meshes, layouts) for name, slot in atom["slots"].items()}
            plain = is_component(atom["name"]) and atom["name"].islower() and atom["name"] != "zarr.json"
            key = atom["name"] if plain else f"K{number}"
            atoms.append(AtomDraft(atom["name"], slots, key, tuple(atom.get("aliases", ()))))
        found = documents.Collected()
        documents.atom_problems([atom.document() for atom in atoms], len(layouts), "", found)
        for problem in found.problems:
            raise RefusalError(problem.code, problem.at, problem.why)
        root: dict[str, Any] = {"meshes": meshes, "layouts": layouts}
        if "step" in params:
            root["progress"] = {"step": params["step"]}
        blobs = {
            name: (b["media_type"], Path(b["in"]).read_bytes()) for name, b in params.get("blobs", {}).items()
        }
        state = {name: params[name] for name in ("values", "optimizers") if name in params}
        return self.published(
            Path(params["path"]), atoms, storage=params["storage"], chunk_bytes=params["chunk_bytes"], root=root,
            state=state, blobs=blobs,
        )  # fmt: skip

    def slot(self, slot: Mapping[str, Any], meshes: list[Any], layouts: list[Any]) -> SlotDraft:
        if slot["dtype"] not in ITEM_BYTES:
            raise RefusalError("UCP-E-DTYPE")
        item = ITEM_BYTES[slot["dtype"]]
        if "in" in slot:
            raw = self.given(slot["in"], item, slot["shape"])
            self.check_bits(raw, slot["dtype"])
            return SlotDraft(slot["dtype"], tuple(slot["shape"]), raw, compressor=slot.get("compressor"))
        data = bytearray(item * math.prod(slot["shape"]))
        found = self.lowered(slot["mesh"], slot["steps"], slot["shape"], slot.get("place"))
        steps = {step["kind"]: step for step in slot["steps"]}
        summed = [step["axis"] for step in slot["steps"] if step["kind"] == "partial"]
        axes = [axis["name"] for axis in slot["mesh"]["axes"]]
        contributions: dict[tuple[int, ...], bytearray] = {}
        held: dict[tuple[int, ...], set[int]] = {}
        for given in slot["ins"]:
            local = found[tuple(given["coordinate"])]
            raw = self.given(given["in"], item, () if local is None else local.shape)
            which = tuple(at for axis, at in zip(axes, given["coordinate"], strict=True) if axis in summed)
            mine = contributions.setdefault(which, bytearray(len(data)))
            for place, cell in enumerate(local.cells if local is not None else ()):
                if cell >= 0:
                    mine[item * cell : item * cell + item] = raw[item * place : item * place + item]
                    held.setdefault(which, set()).add(cell)
        count = math.prod(axis["size"] for axis in slot["mesh"]["axes"] if axis["name"] in summed)
        self.check_cover([len(held.get(which, ())) for which in contributions], count, slot["shape"])
        if summed:
            ordered = [bytes(mine) for _, mine in sorted(contributions.items())]
            data = bytearray(self.reduced(ordered, slot["dtype"], steps["partial"]["reduce"]))
        elif contributions:
            data = contributions[()]
        if "scale" in steps:
            data = bytearray(scaled(bytes(data), slot["dtype"], -steps["scale"]["exponent"]))
        self.check_bits(data, slot["dtype"])
        if slot["mesh"] not in meshes:
            meshes.append(slot["mesh"])
        layout = {"mesh": meshes.index(slot["mesh"]), "steps": slot["steps"]}
        if layout not in layouts:
            layouts.append(layout)
        return SlotDraft(
            slot["dtype"], tuple(slot["shape"]), bytes(data), layout=layouts.index(layout),
            compressor=slot.get("compressor"), place=slot.get("place"),
        )  # fmt: skip

    def given(self, path: str, item: int, shape: Sequence[int]) -> bytes:
        """Return the elements of a file; refuses another number of them than the shape says."""
        raw = Path(path).read_bytes()
        if len(raw) != item * math.prod(shape):
            raise RefusalError("UCP-E-MISMATCH", "", f"{len(raw)} bytes")
        return raw

    def check_bits(self, raw: bytes | bytearray, dtype: str) -> None:
        """Refuse bits that the data type does not use."""
        if any(byte & unused_bits(dtype) for byte in raw):
            raise RefusalError("UCP-E-PADDING", "", "unused bits")

    def check_cover(self, held: Sequence[int], count: int, shape: Sequence[int]) -> None:
        """Refuse contributions, as many elements of each as are held, that leave something out."""
        if len(held) < count or min(held) < math.prod(shape):
            raise RefusalError("UCP-E-COVER", "", "elements are left out")

    def reduced(self, contributions: Sequence[bytes], dtype: str, reduce: str) -> bytes:
        return reduced(contributions, dtype, reduce)

    def check_place(self, path: Path) -> None:
        """Refuse a place where anything is (UCP-W-004, UCP-W-007)."""
        if path.exists() and any(path.iterdir()):
            raise RefusalError("UCP-E-EXISTS", "ucp.json")

    def publish(self, root: bytes, path: Path) -> None:
        hidden = path / f".ucp.json.{secrets.token_hex(4)}"
        hidden.write_bytes(root)
        hidden.rename(path / "ucp.json")

    def published(self, path: Path, atoms: Sequence[AtomDraft], **options: Any) -> dict[str, Any]:
        self.check_place(path)
        draft = Draft(atoms, attempt=secrets.token_hex(4), **options)
        files = draft.files()
        root = files.pop("ucp.json")
        for key, data in files.items():
            target = path / key
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        path.mkdir(parents=True, exist_ok=True)
        self.publish(root, path)
        return {"digest": json.loads(root)["digest"]}

    def rewrite(self, params: Mapping[str, Any]) -> dict[str, Any]:
        seen = self.examined(params["source"])
        for problem in seen.errors:
            if problem.code in self.checked_before_rewriting:
                raise RefusalError(problem.code, problem.at, problem.why)
        unknown = [p for p in seen.errors if p.code == "UCP-E-FEATURE-SET" and "write_features" in p.at]
        if unknown:
            raise RefusalError("UCP-E-FEATURE", unknown[0].at)
        logical = self.opened(params["source"], ("atoms/", "packs/", "blobs/"))
        atoms = [
            AtomDraft(
                atom["name"],
                {
                    name: SlotDraft(
                        slot["dtype"], tuple(slot["shape"]), logical.data[atom["name"], name], slot.get("layout"),
                        slot.get("compressor"), place=slot.get("place"), annotations=slot.get("annotations"),
                    )
                    for name, slot in atom["slots"].items()
                },
                atom["key"],
                tuple(atom.get("aliases", ())),
                atom.get("annotations"),
            )
            for atom in logical.atoms
        ]  # fmt: skip
        kept = ("meshes", "layouts", "annotations", "progress")
        root = {name: logical.root[name] for name in kept if name in logical.root}
        root["extensions"] = self.copied(logical.root["extensions"])
        state = {name: deepcopy(logical.state[name]) for name in self.state_kept if name in logical.state}
        for name, number, file in images.files(state):
            file["data"] = logical.images[name, number]
        blobs = {name: (b["media_type"], logical.blobs[name]) for name, b in logical.state["blobs"].items()}
        size = logical.root["chunk_bytes"]
        return self.published(
            Path(params["path"]), atoms, storage=params["storage"], chunk_bytes=size, root=root, state=state, blobs=blobs
        )  # fmt: skip

    def copied(self, extensions: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in extensions.items() if value.get("safe_to_copy") is True}

    def reset(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def shutdown(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"result": getattr(self, method.replace("-", "_"))(params)}
        except RefusalError as refusal:
            problem = refusal.problem
            return {"error": {"code": problem.code, "at": problem.at, "detail": problem.why}}
        except Exception:  # a defect of any kind is told as such
            return {"internal": {"detail": traceback.format_exc()[-500:]}}

    def send(self, reply: Mapping[str, Any]) -> None:
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()

    def serve(self) -> None:
        for line in sys.stdin:
            request = json.loads(line)
            self.send({"id": request["id"], **self.answer(request["method"], request["params"])})
            if request["method"] == "shutdown":
                return


if __name__ == "__main__":
    OracleDriver().serve()
