"""`python mutants NAME`: a deliberately wrong driver. The suite that does not catch it is the wrong one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from oracle_driver import OracleDriver
from planted import PLANTED

from ucp_conformance.oracle import layouts
from ucp_conformance.oracle.examine import Examination, Logical, examine
from ucp_conformance.oracle.layouts import Local
from ucp_conformance.oracle.problem import Problem, RefusalError
from ucp_conformance.vectors import Vector, all_vectors


class AcceptsAll(OracleDriver):
    """Finds no problem anywhere."""

    def validate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"problems": []}


class RefusesAll(OracleDriver):
    """Refuses everything, always with one code."""

    def validate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"problems": [{"code": "UCP-E-SCHEMA", "at": "ucp.json"}]}

    def opened(self, path: str, touched: Sequence[str] = ()) -> Logical:
        raise RefusalError("UCP-E-SCHEMA", "ucp.json")


class FloorDivision(OracleDriver):
    """Divides down where parts are to be rounded up: the rest is lost."""

    def lowered(
        self,
        mesh: Mapping[str, Any],
        steps: Sequence[Mapping[str, Any]],
        shape: Sequence[int],
        place: Mapping[str, Any] | None = None,
    ) -> dict[tuple[int, ...], Local | None]:
        right = layouts._part

        def part(
            extent: int, step: Mapping[str, Any], mesh: Mapping[str, Any], where: Mapping[str, int]
        ) -> tuple[int, int]:
            if step.get("rule") != "ceil":
                return right(extent, step, mesh, where)
            n = next(axis["size"] for axis in mesh["axes"] if axis["name"] == step["axis"])
            i = where[step["axis"]]
            return i * (extent // n), (i + 1) * (extent // n)

        layouts._part = part
        try:
            return super().lowered(mesh, steps, shape, place)
        finally:
            layouts._part = right


class Transposes(OracleDriver):
    """Reads matrices column by column."""

    def bytes_read(self, data: bytes, shape: Sequence[int], item: int) -> bytes:
        if len(shape) != 2:
            return data
        rows, columns = shape
        places = (row * columns + column for column in range(columns) for row in range(rows))
        return b"".join(data[item * place : item * place + item] for place in places)


class DropsPiece(OracleDriver):
    """Forgets the last of several pieces."""

    def pieces(self, local: Local, shape: Sequence[int]) -> list[dict[str, Any]]:
        found = super().pieces(local, shape)
        return found[:-1] if len(found) > 1 else found


class Forgiving(OracleDriver):
    """Leaves some codes out."""

    forgiven: frozenset[str] = frozenset()

    def examined(self, path: str) -> Examination:
        seen = examine(Path(path))
        return Examination([p for p in seen.problems if p.code not in self.forgiven], seen.logical)

    def opened(self, path: str, touched: Sequence[str] = ()) -> Logical:
        try:
            return super().opened(path, touched)
        except (RefusalError, IndexError):
            seen = examine(Path(path))
            if {problem.code for problem in seen.errors} <= self.forgiven:
                return seen.logical or Logical({"storage": "packed", "chunk_bytes": 16})
            raise


class IgnoresFeatures(Forgiving):
    """Reads on, whatever features and extensions there are."""

    forgiven = frozenset({"UCP-E-FEATURE", "UCP-E-EXTENSION"})


class SkipsChecksums(Forgiving):
    """Never looks at a checksum."""

    forgiven = frozenset({"UCP-E-CHECKSUM"})


class SkipsDigests(Forgiving):
    """Never looks at a digest."""

    forgiven = frozenset({"UCP-E-DIGEST"})


class WrongPlace(OracleDriver):
    """Finds everything, and tells another place."""

    def examined(self, path: str) -> Examination:
        seen = super().examined(path)
        return Examination([Problem(p.code, "ucp.json#/digest", p.why) for p in seen.problems], seen.logical)


class Crashes(OracleDriver):
    """Ends in the middle of a read."""

    def read(self, params: Mapping[str, Any]) -> dict[str, Any]:
        os._exit(3)


class Hangs(OracleDriver):
    """Never answers a read."""

    def read(self, params: Mapping[str, Any]) -> dict[str, Any]:
        time.sleep(3600)
        return {}


class PrintsNoise(OracleDriver):
    """Prints beside its replies."""

    def send(self, reply: Mapping[str, Any]) -> None:
        sys.stdout.write("reading...\n")
        super().send(reply)


class WrongId(OracleDriver):
    """Answers the last request but one."""

    def send(self, reply: Mapping[str, Any]) -> None:
        super().send({**reply, "id": max(1, reply["id"] - 1)})


class TearsWrites(OracleDriver):
    """Publishes the root document first."""

    def published(self, path: Path, atoms: Sequence[Any], **options: Any) -> dict[str, Any]:
        self.check_place(path)
        path.mkdir(parents=True, exist_ok=True)
        spare = path.with_name(path.name + "x")
        result = super().published(spare, atoms, **options)
        (path / "ucp.json").write_bytes((spare / "ucp.json").read_bytes())
        time.sleep(0.02)
        for file in sorted(spare.rglob("*")):
            if file.is_file():
                target = path / file.relative_to(spare)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())
        return result


class Overwrites(OracleDriver):
    """Writes over a checkpoint that is there."""

    def published(self, path: Path, atoms: Sequence[Any], **options: Any) -> dict[str, Any]:
        (path / "ucp.json").unlink(missing_ok=True)
        return super().published(path, atoms, **options)


class CopiesExtensions(OracleDriver):
    """Carries unknown extensions over, safe or not."""

    def copied(self, extensions: Mapping[str, Any]) -> dict[str, Any]:
        return dict(extensions)


class Executes(OracleDriver):
    """Loads the pickles that it finds."""

    def read_blob(self, params: Mapping[str, Any]) -> dict[str, Any]:
        found = super().read_blob(params)
        if b"executed" in Path(params["out"]).read_bytes():
            Path("executed").touch()
        return found


class Peeks(OracleDriver):
    """Knows the vectors by heart and nothing else."""

    def __init__(self) -> None:
        self.known: dict[bytes, Vector] = {}
        for vector in all_vectors():
            if "ucp.json" in vector.checkpoint:
                self.known[vector.checkpoint["ucp.json"]] = vector

    def looked_up(self, op: str, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        root = Path(params["path"]) / "ucp.json"
        vector = self.known.get(root.read_bytes()) if root.exists() else None
        if vector is None:
            return None
        for check in vector.case["checks"]:
            if check["op"] == op and all(
                params.get(name) == value for name, value in check["params"].items()
            ):
                return check["expect"], vector.expected
        return None

    def validate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        found = self.looked_up("validate", params)
        expect = found[0]["problems"] if found is not None else {"codes": []}
        return {"problems": [{"code": code, "at": expect.get("at", [""])[0]} for code in expect["codes"][:1]]}

    def read(self, params: Mapping[str, Any]) -> dict[str, Any]:
        found = self.looked_up("read", params)
        if found is None or "tensor" not in found[0]:
            Path(params["out"]).write_bytes(b"") if "out" in params else None
            return {"dtype": "uint8", "shape": []}
        expect, files = found
        Path(params["out"]).write_bytes(files[expect["file"]])
        return dict(expect["tensor"])


MUTANTS: dict[str, type[OracleDriver]] = {
    "accepts-all": AcceptsAll,
    "refuses-all": RefusesAll,
    "floor-division": FloorDivision,
    "transposes": Transposes,
    "drops-piece": DropsPiece,
    "ignores-features": IgnoresFeatures,
    "skips-checksums": SkipsChecksums,
    "skips-digests": SkipsDigests,
    "wrong-place": WrongPlace,
    "crashes": Crashes,
    "hangs": Hangs,
    "prints-noise": PrintsNoise,
    "wrong-id": WrongId,
    "tears-writes": TearsWrites,
    "overwrites": Overwrites,
    "copies-extensions": CopiesExtensions,
    "executes": Executes,
    "peeks": Peeks,
    **PLANTED,
}


if __name__ == "__main__" and sys.argv[1] == "--list":
    print("\n".join(MUTANTS))
elif __name__ == "__main__":
    MUTANTS[sys.argv[1]]().serve()
