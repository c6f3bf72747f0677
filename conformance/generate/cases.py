"""Cases and how they become folders."""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ucp_conformance.drafting import Draft, dump, gzip
from ucp_conformance.oracle.bytes_of import CORE_DTYPES, cut
from ucp_conformance.oracle.bytes_of import ITEM_BYTES as ITEM
from ucp_conformance.oracle.examine import Logical, examine
from ucp_conformance.profiles import with_profiles
from ucp_conformance.vectors import Vector, vector_of

__all__ = [
    "Case",
    "Check",
    "bad_case",
    "checks_of_good",
    "frozen_encoder",
    "refusal",
    "validation",
]

FROZEN = Path(__file__).with_name("frozen.json")

Check = dict[str, Any]
_LEVELS = ("inspect", "dense", "reshard", "full")


@dataclass
class Case:
    """One of the vectors."""

    id: str
    title: str
    requirements: Sequence[str]
    checks: list[Check]
    files: Mapping[str, bytes] | None = None
    expected: Mapping[str, bytes] = field(default_factory=dict)
    setup: list[dict[str, Any]] = field(default_factory=list)
    features: Sequence[str] = ()
    mutates: str | None = None
    mutation: str | None = None

    def vector(self) -> Vector:
        """Return what is written."""
        return vector_of(self.document(), self.files or {}, self.expected)

    def document(self) -> dict[str, Any]:
        """Return the content of case.json."""
        value: dict[str, Any] = {
            "id": self.id,
            "title": self.title,
            "requirements": sorted(set(self.requirements)),
            "features": list(self.features),
            "checks": [with_profiles(check) for check in self.checks],
        }
        if self.setup:
            value["setup"] = self.setup
        if self.mutates is not None:
            value |= {"mutates": self.mutates, "mutation": self.mutation}
        return value


def frozen_encoder(compressor: Mapping[str, Any], raw: bytes) -> bytes:
    """Return compressed bytes as they were first made: encoders differ from version to version."""
    name = hashlib.sha256(dump([compressor["name"], compressor["configuration"]]) + raw).hexdigest()
    known = json.loads(FROZEN.read_text()) if FROZEN.exists() else {}
    if name not in known:
        known[name] = base64.b64encode(_encode_now(compressor, raw)).decode()
        FROZEN.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return base64.b64decode(known[name])


def _encode_now(compressor: Mapping[str, Any], raw: bytes) -> bytes:
    if compressor["name"] == "gzip":
        return gzip(compressor, raw)
    import importlib

    configuration = dict(compressor["configuration"])
    if compressor["name"] == "zstd":
        zstandard = importlib.import_module("zstandard")
        maker = zstandard.ZstdCompressor(
            level=configuration["level"], write_checksum=configuration["checksum"]
        )
        return bytes(maker.compress(raw))
    blosc = importlib.import_module("numcodecs.blosc")
    shuffle = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}[configuration["shuffle"]]
    numpy = importlib.import_module("numpy")
    data = numpy.frombuffer(raw, numpy.uint8).view(f"V{configuration['typesize']}")
    return bytes(blosc.compress(data, configuration["cname"].encode(), configuration["clevel"], shuffle))


def validation(
    codes: Sequence[str],
    at: Sequence[str] = (),
    *,
    also: bool = False,
    level: str = "inspect",
    never: Sequence[str] = (),
) -> Check:
    """Return the check that a validator finds these codes, nothing else unless ``also``, and none of ``never``."""
    expect: dict[str, Any] = {"codes": list(codes), "also": also}
    if never:
        expect["never"] = list(never)
    if at:
        expect["at"] = list(at)
    return {
        "name": "validate",
        "role": "validator",
        "level": level,
        "op": "validate",
        "params": {"level": "integrity"},
        "expect": {"problems": expect},
    }


def refusal(
    op: str,
    codes: Sequence[str],
    at: Sequence[str] = (),
    *,
    params: Mapping[str, Any] | None = None,
    level: str = "inspect",
    role: str = "reader",
    name: str = "",
) -> Check:
    """Return the check that a reader or rewriter refuses with one of these codes."""
    expect: dict[str, Any] = {"codes": list(codes)}
    if at:
        expect["at"] = list(at)
    given = dict(params or {})
    if op == "read" and not given:
        given = {"atom": "alpha", "slot": "value"}
    return {
        "name": name or op,
        "role": role,
        "level": level,
        "op": op,
        "params": given,
        "expect": {"error": expect},
    }


def bad_case(
    path: str,
    title: str,
    requirements: Sequence[str],
    codes: str | Sequence[str],
    draft: Draft,
    mutate: Callable[[Draft], object],
    *,
    parent: str,
    at: str | Sequence[str] = (),
    ops: Sequence[str] = ("inspect",),
    params: Mapping[str, Any] | None = None,
    also: bool = False,
    level: str = "inspect",
    setup: Sequence[dict[str, Any]] = (),
    features: Sequence[str] = (),
    never: Sequence[str] = (),
) -> Case:
    """Return a mutation of a good parent: the validator names it, a reader refuses it at each of ``ops``."""
    wanted = [codes] if isinstance(codes, str) else list(codes)
    places = [at] if isinstance(at, str) else list(at)
    mutate(draft)
    # Only what is said in words has a place that all implementations share.
    checks = (
        [validation(wanted, places, also=also, level=level, never=never)] if "no-validate" not in ops else []
    )
    for op in ops:
        if op != "no-validate":
            checks.append(
                refusal(op, wanted, places, params=params, level="dense" if op == "read" else level)
            )
    return Case(
        f"bad/{path}",
        title,
        requirements,
        checks,
        files=draft.files(),
        mutates=f"good/parents/{parent}",
        mutation=title,
        setup=list(setup),
        features=features,
    )


def level_of(slot: Mapping[str, Any]) -> str:
    """Return the level at which a slot is read whole."""
    return "dense" if slot["dtype"] in CORE_DTYPES and "compressor" not in slot else "full"


def checks_of_good(
    draft: Draft, *, warnings: Sequence[str] = (), reads: bool = True, rewrite: bool = True
) -> tuple[list[Check], dict[str, bytes], Logical]:
    """Return what follows from a good checkpoint: no problems, its description, every slot and blob, a rewrite."""
    with tempfile.TemporaryDirectory() as folder:
        draft.write(Path(folder) / "x")
        seen = examine(Path(folder) / "x")
    if seen.errors or seen.logical is None:
        raise AssertionError(f"not good: {seen.problems}")
    logical = seen.logical
    expected = {"inspect.json": json.dumps(logical.inspect(), indent=1).encode() + b"\n"}
    checks = [
        validation(warnings),
        {
            "name": "inspect", "role": "reader", "level": "inspect", "op": "inspect", "params": {},
            "expect": {"file": "inspect.json"},
        },
    ]  # fmt: skip
    worst = "dense"
    for atom in logical.atoms if reads else ():
        for name, slot in atom["slots"].items():
            data = logical.data.get((atom["name"], name))
            if data is None:
                continue
            file = f"{len(expected) - 1}.bin"
            expected[file] = data
            mine = level_of(slot)
            worst = max(worst, mine, key=_LEVELS.index)
            base = {"role": "reader", "op": "read"}
            params = {"atom": atom["name"], "slot": name}
            whole = {"dtype": slot["dtype"], "shape": slot["shape"]}
            checks.append(
                base
                | {
                    "name": f"read-{file[:-4]}",
                    "level": mine,
                    "params": params,
                    "expect": {"tensor": whole, "file": file},
                }
            )
            if len(slot["shape"]) and len(data) and len(data) <= 4096:
                box = {
                    "offset": [d // 3 for d in slot["shape"]],
                    "shape": [(d + 1) // 2 for d in slot["shape"]],
                }
                box["shape"] = [
                    min(s, d - o) for s, d, o in zip(box["shape"], slot["shape"], box["offset"], strict=True)
                ]
                part = f"{file[:-4]}-box.bin"
                expected[part] = cut(data, ITEM[slot["dtype"]], slot["shape"], box["offset"], box["shape"])
                checks.append(
                    base | {
                        "name": f"box-{file[:-4]}", "level": max(mine, "reshard", key=_LEVELS.index),
                        "params": params | {"box": box},
                        "expect": {"tensor": whole | {"shape": box["shape"]}, "file": part},
                    }
                )  # fmt: skip
    for number, (name, blob) in enumerate(logical.state["blobs"].items()):
        expected[f"blob-{number}.bin"] = logical.blobs[name]
        checks.append(
            {
                "name": f"blob-{number}", "role": "reader", "level": "full", "op": "read-blob",
                "params": {"blob": name}, "expect": {"media_type": blob["media_type"], "file": f"blob-{number}.bin"},
            }
        )  # fmt: skip
    if rewrite:
        values = {**logical.state["values"], **logical.state["optimizers"], **logical.state["blobs"]}
        mine = "full" if values else worst
        for storage in ("plain", "packed"):
            checks.append(
                {
                    "name": f"rewrite-{storage}", "role": "rewriter", "level": mine, "op": "rewrite",
                    "params": {"storage": storage}, "expect": {"rewritten": {}},
                }
            )  # fmt: skip
    return checks, expected, logical
