"""Good checkpoints: every feature of the format, small."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from generate.cases import Case, checks_of_good, frozen_encoder
from generate.parents import GZIP, LAYOUTS, MESHES, PARENTS, floats, share
from ucp_conformance.drafting import AtomDraft, Draft, SlotDraft
from ucp_conformance.oracle.bytes_of import ITEM_BYTES, unused_bits

__all__ = ["good_cases"]

STORAGES = ("plain", "packed")


def good(path: str, title: str, requirements: tuple[str, ...], draft: Draft, **options: Any) -> Case:
    """Return a good case with all checks that follow."""
    setup = options.pop("setup", [])
    features = options.pop(
        "features", [one for one in draft.root["read_features"] if one not in ("blosc", "zstd")]
    )
    checks, expected, _ = checks_of_good(draft, **options)
    return Case(
        f"good/{path}", title, requirements, checks, draft.files(), expected, setup=setup, features=features
    )


def one(slot: SlotDraft, **options: Any) -> Draft:
    """Return a checkpoint of one slot."""
    return Draft([AtomDraft("w", {"value": slot})], **options)


def good_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    for name, make in PARENTS.items():
        features = {"features": [name.partition("-")[0]]} if name.startswith(("zstd", "blosc")) else {}
        yield good(f"parents/{name}", f"Parent of mutations: {name}", ("UCP-R-004",), make(), **features)
    for storage in STORAGES:
        yield from _storage_cases(storage)
    yield from _spellings()
    yield from _names()
    yield from _limits()
    yield from _state()
    yield from _segments()
    yield from _zstd()
    yield from _increments()


def _increments() -> Iterator[Case]:
    draft = PARENTS["gzip-packed"]()
    share(draft, 0)
    draft.root["read_features"] = ["incremental"]
    yield good("increments/gzip", "Compressed chunks in a shared pack", ("UCP-D-108", "UCP-D-136"), draft)
    slot = SlotDraft("float32", (16,), floats(4) + bytes(16) + floats(8, 9))
    draft = one(slot, chunk_bytes=16)
    share(draft, 0)
    draft.root["read_features"] = ["incremental"]
    yield good("increments/nothing-own", "All packs are shared", ("UCP-D-009", "UCP-D-136"), draft)
    wide = SlotDraft("complex128", (3,), _counting("complex128", 3))
    draft = Draft([AtomDraft("a", {"value": wide, "small": SlotDraft("int8", (3,), b"\1\2\3")})], packs=2)
    assert draft.packs is not None
    draft.packs["packs"][0]["shared"] = draft.packs["packs"][1]["shared"] = True
    draft.root["read_features"] = ["incremental"]
    yield good(
        "increments/two-shared", "Two shared packs, aligned as their writer left them", ("UCP-D-136",), draft
    )


def _counting(dtype: str, count: int) -> bytes:
    """Return bytes that differ from element to element, unused bits zero."""
    mask = 0xFF & ~unused_bits(dtype)
    return bytes((7 * number + 1) & mask for number in range(count * ITEM_BYTES[dtype]))


def _storage_cases(storage: str) -> Iterator[Case]:
    options: dict[str, Any] = {"storage": storage}
    yield good(f"basic/empty-{storage}", "No atoms at all", ("UCP-D-085",), Draft(**options))
    yield good(
        f"basic/minimal-{storage}", "One small tensor", ("UCP-D-036", "UCP-D-085"), one(SlotDraft("float32", (3,), floats(3)), **options)
    )  # fmt: skip
    slots = {name: SlotDraft(name, (3, 2), _counting(name, 6)) for name in sorted(ITEM_BYTES)}
    draft = Draft([AtomDraft(name, {"value": slot}) for name, slot in slots.items()], **options)
    yield good(f"dtypes/all-{storage}", "Every data type", ("UCP-D-036", "UCP-D-037", "UCP-D-094"), draft)
    nans = struct.pack("<8I", 0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000, 0, 0x7F800000, 0xFF800000, 1)
    yield good(
        f"dtypes/nan-payloads-{storage}", "NaN payloads and the sign of zero are kept", ("UCP-W-027",),
        one(SlotDraft("float32", (8,), nans), **options),
    )  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "scalar": (), "empty-vector": (0,), "empty-inside": (3, 0, 2), "ones": (1, 1, 1), "prime": (13,),
        "matrix": (7, 5), "cube": (3, 5, 2), "long-rows": (2, 40), "deep": (2, 1, 3, 1, 2),
    }  # fmt: skip
    for name, shape in shapes.items():
        count = 1
        for extent in shape:
            count *= extent
        draft = one(SlotDraft("float32", shape, floats(count)), chunk_bytes=32, **options)
        yield good(
            f"grid/{name}-{storage}",
            f"Chunk grid of the shape {list(shape)}",
            ("UCP-D-092", "UCP-D-113"),
            draft,
        )
    dims = one(SlotDraft("uint8", (1,) * 32, b"\x05"), **options)
    yield good(f"grid/thirty-two-{storage}", "As many dimensions as there may be", ("UCP-D-033",), dims)
    zeros = floats(4) + bytes(16) + floats(4, 9) + bytes(16)
    yield good(
        f"chunks/zero-entries-{storage}", "Chunks of zero bytes alone have zero entries", ("UCP-D-093", "UCP-D-096"),
        one(SlotDraft("float32", (16,), zeros), chunk_bytes=16, **options),
    )  # fmt: skip
    yield good(
        f"chunks/edge-{storage}", "Edge chunks", ("UCP-D-095", "UCP-D-098", "UCP-D-104"),
        one(SlotDraft("int64", (5, 2), bytes(range(1, 81))), chunk_bytes=32, **options),
    )  # fmt: skip
    for level in (0, 1, 9):
        compressor = {"name": "gzip", "configuration": {"level": level}}
        slot = SlotDraft("float32", (6, 4), floats(24), compressor=compressor)
        draft = one(slot, chunk_bytes=64, encoder=frozen_encoder, **options)
        yield good(
            f"gzip/level-{level}-{storage}", f"gzip at level {level}", ("UCP-R-005", "UCP-D-102"), draft
        )
    large = SlotDraft("uint8", ((1 << 20) + 64,), bytes(1 << 20) + b"\x01" * 64, compressor=GZIP)
    yield good(
        f"gzip/two-blocks-{storage}", "More than a MiB in one chunk", ("UCP-D-038",),
        one(large, chunk_bytes=1 << 22, encoder=frozen_encoder, **options), reads=False,
    )  # fmt: skip
    slot = SlotDraft("float32", (4, 4), floats(16), layout=0, annotations={"org.example": {"shape": [1]}})
    extensions = {"org.example.a": {"must_understand": False, "configuration": {"dtype": "int8"}}}
    annotations = {"org.example": {"format_version": 9, "parts": [], "storage": "zip"}}
    draft = Draft(
        [AtomDraft("w", {"value": slot}, annotations={"org.example/name": "v"})],
        root={"meshes": MESHES, "layouts": LAYOUTS, "extensions": extensions, "annotations": annotations},
        state={"annotations": {"org.example": [None]}},
        **options,
    )
    yield good(
        f"envelope/ignorable-{storage}", "Annotations and an extension that may be ignored", ("UCP-R-030", "UCP-R-031"), draft
    )  # fmt: skip
    draft = PARENTS[storage]()
    draft.objects["index/b2-0.json"] = b"debris"
    draft.objects["packs/b2-0-0.pack"] = b"more"
    yield good(
        f"commit/debris-{storage}", "Objects of an attempt that failed", ("UCP-R-011", "UCP-V-002"), draft, warnings=["UCP-W-UNREFERENCED"]
    )  # fmt: skip
    draft = Draft(
        [AtomDraft(name, {"value": SlotDraft("uint8", (2,), name.encode() * 2)}) for name in "abcde"],
        per_part=2, **options,
    )  # fmt: skip
    yield good(f"parts/three-{storage}", "Three index parts", ("UCP-D-026", "UCP-D-027", "UCP-D-025"), draft)


def _spellings() -> Iterator[Case]:
    """Yield cases of spelling: a number is its value; text is its characters; members stand in any order."""

    def other(data: bytes) -> bytes:
        for old, new in (
            (b'"format_version":0,', b'"format_version":-0.0e0,'), (b'"chunk_bytes":32', b'"chunk_bytes":3.2e1'),
            (b'"step":12', b'"step":12.0'), (b'"format":', b'\n\t"f\\u006frmat" : '),
            (b'"annotations":{}', b'"annotations":{"a.b":[1e300,9007199254740992.0,1e-400,"\\ud83d\\ude42"]}'),
        ):  # fmt: skip
            if old not in data:
                raise AssertionError(old)
            data = data.replace(old, new)
        return data

    for storage in STORAGES:
        draft = PARENTS[storage]()
        draft.bytes_of["root"] = other
        yield good(
            f"json/spellings-{storage}", "Numbers and text spelt otherwise", ("UCP-D-003", "UCP-D-004"), draft
        )


def _limits() -> Iterator[Case]:
    """Yield cases at the limits."""
    draft = Draft(state={"values": {}, "optimizers": {}, "blobs": {}})
    deep: Any = []
    for _ in range(61):
        deep = [deep]
    assert draft.state is not None
    draft.root["annotations"] = draft.state["annotations"] = {"org.example": deep}
    yield good("limits/nesting", "Documents as deep as they may be", ("UCP-D-005",), draft)
    # What is rewritten has a chunk target of the rewriter's own choice.
    draft = one(SlotDraft("uint8", (3,), b"\1\2\3"), chunk_bytes=1 << 30)
    yield good(
        "limits/chunk-bytes", "A chunk target as large as it may be", ("UCP-D-092",), draft, rewrite=False
    )
    draft = one(SlotDraft("uint8", (3,), b"\1\2\3"))
    draft.root["meshes"] = [{"axes": [{"name": "a", "size": 1024}, {"name": "b", "size": 1024}]}]
    yield good("limits/mesh", "A mesh as large as it may be", ("UCP-D-041",), draft)
    for storage in STORAGES:
        draft = one(SlotDraft("uint8", (0, 2**53 - 1), b""), storage=storage)
        yield good(
            f"limits/shape-{storage}", "A shape as large as it may be, of nothing", ("UCP-D-034",), draft
        )


def _names() -> Iterator[Case]:
    names = {
        "A": "A",
        "a": "a-2",
        "con": "con-1",
        "layers.0.weight": "layers.0.weight",
        "x y/z": "x-y-z",
        "é": "e",
    }
    names |= {
        "zarr.json": "z",
        "\U0001f642": "smile",
        "￿": "last",
        "..": "dots",
        "n" * 1024: "n" * 200,
        " ": "space",
    }
    ordered = sorted(names.items(), key=lambda item: item[0].encode())
    atoms = [AtomDraft(name, {"value": SlotDraft("uint8", (), b"\1")}, key=key) for name, key in ordered]
    for storage in STORAGES:
        yield good(
            f"names/unusual-{storage}", "Names of every kind, keys of their own, UTF-8 order",
            ("UCP-D-010", "UCP-D-023", "UCP-D-024", "UCP-D-015", "UCP-R-001"), Draft(atoms, storage=storage),
        )  # fmt: skip
    slots = {
        name: SlotDraft("uint8", (1,), bytes([number + 1]))
        for number, name in enumerate(["B", "a", "s" * 64, "0"])
    }
    draft = Draft([AtomDraft("w", slots)])
    first = draft.parts[0].index["atoms"][0]
    first["slots"] = dict(reversed(first["slots"].items()))
    yield good(
        "names/slots-any-order", "Table rows follow names, not members", ("UCP-D-029", "UCP-D-030"), draft
    )
    aliases = Draft([AtomDraft("w", {"value": SlotDraft("uint8", (2,), b"\1\2")}, aliases=("tied", "a"))])
    case = good("names/aliases", "An alias reads as its atom", ("UCP-D-028",), aliases)
    case.expected = {**case.expected, "alias.bin": b"\1\2"}
    case.checks.append(
        {
            "name": "alias", "role": "reader", "level": "dense", "op": "read",
            "params": {"atom": "tied", "slot": "value"},
            "expect": {"tensor": {"dtype": "uint8", "shape": [2]}, "file": "alias.bin"},
        }
    )  # fmt: skip
    yield case


VALUES: dict[str, Any] = {
    "null": None, "true": True, "integer": -7, "largest": 2**53 - 1, "fraction": 0.1, "tiny": 5e-324, "text": "ü\u0000",
    "list": [1, [2, []]], "object": {"a": {"": 1}},
    "float": [{"$float": text} for text in ("nan", "inf", "-inf", "-0.0", "0.0", "1.0", "1200.0", "1e+16", "-1.5e+300", "9007199254740992.0")],
    "int": [{"$int": "9007199254740992"}, {"$int": "-" + "9" * 4096}],
    "bytes": [{"$bytes": ""}, {"$bytes": "AA=="}, {"$bytes": "AAECAw=="}],
    "complex": {"$complex": [0.5, {"$float": "-0.0"}]},
    "tuple": {"$tuple": [{"$tuple": []}, [1]]},
    "set": {"$set": ["a", 1, {"$bytes": "AA=="}]},
    "set-of-characters": {"$set": ["\uffff", "\U0001f642"]},
    "set-of-frozensets": {"$set": [{"$frozenset": [1, 2]}, {"$frozenset": [1, 3]}]},
    "midnight": {"$object": {"type": "datetime.datetime", "value": "2016-12-31T23:59:59.999999-23:59"}},
    "frozenset": {"$frozenset": [{"$tuple": [1]}]},
    "dict": {"$dict": [["$a", 1], [2, {"b": None}], [{"$tuple": [1, "x"]}, []]]},
    "array": {"$array": {"dtype": "int16", "shape": [2], "data": "AQACAA=="}},
    "tensor": {"$tensor": {"dtype": "bfloat16", "shape": [], "data": "gD8="}},
    "object-unknown": {"$object": {"type": "os.system", "value": "touch executed"}},
    "ordered": {"$object": {"type": "collections.OrderedDict", "value": [["a", 1], [2, 3]]}},
    "datetime": {"$object": {"type": "datetime.datetime", "value": "2024-02-29T12:30:45.000001+05:30"}},
    "date": {"$object": {"type": "datetime.date", "value": "2024-02-29"}},
    "time": {"$object": {"type": "datetime.time", "value": "23:59:59"}},
    "timedelta": {"$object": {"type": "datetime.timedelta", "value": {"$tuple": [-1, 86399, 999999]}}},
    "scalar": {"$object": {"type": "numpy.scalar", "value": {"$tuple": ["float32", {"$bytes": "AACAPw=="}]}}},
    "path": {"$object": {"type": "pathlib.PurePosixPath", "value": "a/b"}},
    "path-dots": {"$object": {"type": "pathlib.PurePosixPath", "value": "a//b/."}},
    "path-windows": {"$object": {"type": "pathlib.WindowsPath", "value": "c:/a\\b"}},
    "per-rank": {"$object": {"type": "ucp.PerRank", "value": {
        "axis": "rank", "entries": [{"$tuple": [1]}, None], "on_resize": "reseed"}}},
    "per-rank-counters": {"$object": {"type": "ucp.PerRank", "value": {
        "axis": "dp", "entries": [0, {"$int": "9007199254740992"}, 7], "on_resize": "resplit"}}},
}  # fmt: skip


def _state() -> Iterator[Case]:
    for name, value in VALUES.items():
        if name == "set":
            value = {"$set": ["a", 1, {"$bytes": "AA=="}]}  # '"a"' < '1' < '{' in bytes
        draft = Draft(state={"values": {name: value}})
        requirements: tuple[str, ...] = ("UCP-D-088",)
        if name == "object-unknown":
            requirements = ("UCP-D-088", "UCP-S-004")
        elif name.startswith("per-rank"):
            requirements = ("UCP-D-088", "UCP-D-090", "UCP-D-091")
        case = good(f"values/{name}", f"Tagged value: {name}", requirements, draft, rewrite=False)
        for check in case.checks:
            check["level"] = "full"
        yield case
    draft = Draft(state={"values": VALUES})
    yield good("values/all", "Every tag in one document, rewritten", ("UCP-D-088", "UCP-W-027"), draft)
    deep: Any = []
    for _ in range(55):
        deep = [deep]
    yield good(
        "values/deep",
        "A value as deep as it may be",
        ("UCP-D-005", "UCP-D-088"),
        Draft(state={"values": {"deep": deep}}),
    )
    atoms = [AtomDraft(name, {"value": SlotDraft("uint8", (1,), b"\1")}) for name in "ab"]
    groups = [
        {"atoms": ["b"], "options": {"lr": 0.5}},
        {"atoms": ["a"], "options": {"betas": {"$tuple": [0.9, 0.95]}}},
    ]
    state = {
        "optimizers": {
            "one": {"groups": groups},
            "two": {"groups": [{"atoms": ["a", "b"], "options": {}}]},
            "none": {"groups": []},
        }
    }
    yield good(
        "state/optimizers",
        "Groups in order, atoms in order",
        ("UCP-D-086", "UCP-D-087"),
        Draft(atoms, state=state),
    )
    blobs = {
        "empty": ("text/plain", b""),
        "pickle": ("application/octet-stream", PICKLE),
        "same": ("text/plain", b""),
    }
    yield good(
        "state/blobs",
        "Blobs, one of them a pickle that nobody may load",
        ("UCP-S-004",),
        Draft(blobs=blobs),
    )


# Loading it would make the file `executed` in the working directory.
PICKLE = b"cos\nsystem\n(S'touch executed'\ntR."


def _segments() -> Iterator[Case]:
    shared = SlotDraft("float32", (4,), floats(4))
    atoms = [AtomDraft(name, {"value": shared, "copy": shared}) for name in "ab"]
    yield good("segments/shared", "Equal chunks share their bytes", ("UCP-D-106",), Draft(atoms, share=True))
    boxes = {(0, 0): [((0, 0), (3, 1)), ((0, 1), (1, 2)), ((1, 1), (2, 2))], (1, 0): [((0, 0), (2, 3))]}
    slot = SlotDraft("float32", (5, 3), floats(15), boxes=boxes)
    draft = one(slot, chunk_bytes=36)
    yield good(
        "segments/boxes", "Boxes tile a chunk", ("UCP-D-101", "UCP-D-103", "UCP-D-117", "UCP-D-109"), draft
    )
    big = SlotDraft("uint8", (70000,), b"\1" * 70000)
    small = SlotDraft("uint8", (70,), b"\2" * 70)
    draft = Draft([AtomDraft("a", {"value": small}), AtomDraft("b", {"value": big})], chunk_bytes=1 << 20)
    yield good(
        "segments/alignment", "Large segments begin at multiples of 4096", ("UCP-D-107", "UCP-D-108"), draft
    )
    dense = [
        AtomDraft("a", {"boxes": slot, "rows": SlotDraft("float32", (7, 3), floats(21))}),
        AtomDraft("b", {"value": SlotDraft("uint8", (50,), b"\3" * 50)}),
    ]
    for packs in (1, 2):
        yield good(
            f"segments/dense-{packs}",
            f"Segments without gaps between those of a slot, in packs: {packs}",
            ("UCP-D-107", "UCP-D-108"),
            Draft(dense, chunk_bytes=36, packs=packs, dense=True),
        )
    halves = SlotDraft("uint8", (140_002,), b"\1" * 140_002)
    yield good(
        "segments/dense-large",
        "A large segment right behind another one of its slot",
        ("UCP-D-107", "UCP-D-108"),
        one(halves, chunk_bytes=1 << 17, dense=True),
    )
    atoms = [AtomDraft(name, {"value": SlotDraft("float32", (4,), floats(4, ord(name)))}) for name in "abcd"]
    yield good(
        "segments/two-packs",
        "Chunks in two packs",
        ("UCP-D-116", "UCP-D-118", "UCP-D-100"),
        Draft(atoms, packs=2),
    )


def _repeating(count: int) -> bytes:
    """Return little-endian float32 with repetitions near and far, and bytes of which some are frequent."""
    return b"".join(
        struct.pack("<f", (number * number) % 7 + (number // 500) % 3 / 4 + (number % 97 == 0) * number)
        for number in range(count)
    )


def _zstd() -> Iterator[Case]:
    configurations: dict[str, list[dict[str, Any]]] = {
        "zstd": [
            {"checksum": False, "level": 3},
            {"checksum": True, "level": -5},
            {"checksum": True, "level": 19},
            {"checksum": False, "level": 1},
        ],
        "blosc": [
            {"blocksize": 0, "clevel": 5, "cname": "lz4", "shuffle": "shuffle", "typesize": 4},
            {"blocksize": 0, "clevel": 9, "cname": "lz4hc", "shuffle": "noshuffle", "typesize": 2},
            {"blocksize": 0, "clevel": 5, "cname": "blosclz", "shuffle": "bitshuffle", "typesize": 4},
            {"blocksize": 0, "clevel": 1, "cname": "zlib", "shuffle": "shuffle", "typesize": 8},
            {"blocksize": 0, "clevel": 5, "cname": "zstd", "shuffle": "bitshuffle", "typesize": 1},
        ],
    }
    for name, found in configurations.items():
        for number, configuration in enumerate(found):
            for storage in STORAGES:
                # The first of each in small chunks, which encoders copy; the others in one where they find repetitions.
                is_small = number < 2 if name == "zstd" else number == 0
                shape, data = ((8, 8), floats(64)) if is_small else ((32, 32), _repeating(32 * 32))
                slot = SlotDraft(
                    "float32", shape, data, compressor={"name": name, "configuration": configuration}
                )
                chunk_bytes = 64 if is_small else 1 << 13
                draft = one(slot, chunk_bytes=chunk_bytes, storage=storage, encoder=frozen_encoder)
                case = good(
                    f"{name}/{number}-{storage}",
                    f"{name}, configuration {number}",
                    ("UCP-R-008",),
                    draft,
                    features=[name],
                )
                case.expected = {**case.expected, "w.bin": data}
                case.checks.append(
                    {
                        "name": "read", "role": "reader", "level": "full", "op": "read",
                        "params": {"atom": "w", "slot": "value"},
                        "expect": {"tensor": {"dtype": "float32", "shape": list(shape)}, "file": "w.bin"},
                    }
                )  # fmt: skip
                yield case
