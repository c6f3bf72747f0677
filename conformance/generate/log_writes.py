"""What writers of update logs are asked for: epochs and batches, good ones and what they have to refuse."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from generate.cases import Case, Check
from generate.log_cases import FEATURES, LATER, OPTIONS, SGD, TENSORS, TWO, epoch, of_two
from generate.logs import FOLDER, LogDraft, floats_of, step
from ucp_conformance.oracle.log_replay import tensor_sum
from ucp_conformance.oracle.update_logs import indices

__all__ = ["EIGHT", "begun", "log_write_cases", "members", "of_rank", "small", "there", "write_check"]

Json = dict[str, Any]
NONE: Final = "0" * 32
EIGHT: Final = floats_of(*(0.5 - n / 3 for n in range(8)))


def members(first: int = 4, after: int | None = None, **others: Any) -> Json:
    """Return an epoch as it is asked for, of the tensors of the log that bad ones are mutations of."""
    standard: Json = {
        "first_step": first, "after": after, "ranks": 2, "tensors": TENSORS, "pieces": TWO, "groups": [[0], [2, 3]],
        "optimizer": SGD, "exactness": "bitwise",
    }  # fmt: skip
    return standard | others


def small(*tensors: tuple[str, str, list[int]], first: int = 0) -> Json:
    """Return an epoch of one rank that has all of some tensors, each with a role, a data type and a shape."""
    listed = [
        {"atom": f"t{n}", "role": role, "dtype": dtype, "shape": shape}
        for n, (role, dtype, shape) in enumerate(tensors)
    ]
    pieces = [
        {"tensor": n, "rank": 0, "offset": [0] * len(shape), "shape": shape}
        for n, (_, _, shape) in enumerate(tensors)
    ]
    trained = [n for n, (role, _, _) in enumerate(tensors) if role == "gradient"]
    return members(first, tensors=listed, pieces=pieces, groups=[trained], ranks=1)


def begun(asked: Mapping[str, Any]) -> Json:
    """Return what begins an epoch before a check."""
    return {"op": "begin-epoch", "params": dict(asked)}


def of_rank(rank: int, *steps: Json, number: int = 0, **others: Any) -> Json:
    """Return a batch as it is asked for."""
    return {"epoch": number, "rank": rank, "steps": list(steps), "values": {}, **others}


def write_check(op: str, params: Mapping[str, Any], before: Sequence[Json] = (), **expect: Any) -> Check:
    """Return a check of what a writer makes of a request."""
    found: Check = {
        "name": op, "role": "writer", "level": "full", "op": op, "params": dict(params), "expect": expect,
        "within": FOLDER,
    }  # fmt: skip
    return found | ({"before": list(before)} if before else {})


def log_write_cases() -> Iterator[Case]:
    """Yield all good ones."""
    yield from _epochs()
    yield from _orders()
    yield from _forms()
    yield from _sums()


def there() -> LogDraft:
    """Return a log with one epoch, of four steps."""
    draft = LogDraft({0: epoch(0, 0, None, TWO)})
    for rank, cuts in enumerate(((0, 2, 4), (0, 3, 4))):
        for first, stop in itertools.pairwise(cuts):
            steps = [
                step(*of_two(n)[rank], **({"skipped": True} if n == 2 else {})) for n in range(first, stop)
            ]
            steps[0]["options"] = OPTIONS if first < 3 else LATER
            draft.batches[0, rank, first] = steps
    return draft


def _epochs() -> Iterator[Case]:
    def case(
        name: str, title: str, requirements: Sequence[str], draft: LogDraft | None, asked: Json, number: int = 0
    ) -> Case:  # fmt: skip
        files = None if draft is None else draft.files()
        told = {one: value for one, value in asked.items() if one not in ("epoch", "after")}
        after = None
        if asked["after"] is not None:
            # The digest of the document that is there.
            chosen = LogDraft(
                {
                    **(draft or LogDraft()).epochs,
                    number: epoch(number, asked["first_step"], asked["after"], TWO),
                }
            )
            made = json.loads(chosen.files()[f"{FOLDER}/epochs/{number}.json"])
            after = made["after"]
        document = epoch(number, 0, None, TWO) | told | {"after": after, "start": NONE}
        document["log"] = NONE if draft is None else document["log"]
        expected = {"epoch.json": json.dumps(document, indent=1).encode() + b"\n"}
        check = write_check("begin-epoch", asked, epoch={"number": number, "document": "epoch.json"})
        return Case(
            f"good/log-writes/{name}", title, requirements, [check], files, expected, features=FEATURES
        )

    new = ("UCP-D-150", "UCP-D-153", "UCP-W-036", "UCP-W-040")
    yield case("first", "The first epoch, of a log that it creates", new, None, members())
    yield case(
        "first-of-a-log", "The first epoch of a log that has none", new, LogDraft(), members(0), 0
    )  # fmt: skip
    going_on = ("UCP-D-152", "UCP-D-153", "UCP-W-038", "UCP-W-040")
    yield case("next", "An epoch that goes on from the first one", going_on, there(), members(4, 0), 1)
    yield case(
        "next-at-once", "An epoch that begins with the first step of the one before", going_on, there(), members(0, 0), 1
    )  # fmt: skip
    yield case(
        "next-as-planned", "An epoch whose number was found before", going_on, there(), members(4, 0, epoch=1), 1
    )  # fmt: skip
    fork = there()
    fork.epochs[1] = epoch(1, 4, 0, TWO)
    yield case(
        "next-fork", "An epoch that goes on from the last but one", going_on, fork, members(3, 0), 2
    )  # fmt: skip
    gap = there()
    gap.epochs[4] = epoch(4, 4, 0, TWO)
    yield case("next-number", "An epoch behind numbers that are not used", going_on, gap, members(4, 4), 5)
    strange = there()
    others = (
        "epochs/01.json",
        "epochs/7.json.tmp",
        "epochs/.7.json",
        "epochs/9007199254740992.json",
        "7.json",
        "notes",
    )
    strange.after.append(lambda files: files.update(dict.fromkeys(others, b"?")))
    yield case(
        "next-beside-others", "An epoch beside objects that are none of a log", ("UCP-R-038", *going_on), strange,
        members(4, 0), 1,
    )  # fmt: skip
    tensors = [
        {"atom": "é/\u4e16", "role": "gradient", "dtype": "complex128", "shape": [2]},
        {"atom": "none", "role": "gradient", "dtype": "int8", "shape": [0, 4]},
        {"atom": "r", "role": "residual", "dtype": "bfloat16", "shape": [3, 1]},
        {"atom": "v", "role": "value", "dtype": "bool", "shape": []},
    ]
    pieces = [
        {"tensor": 2, "rank": 3, "offset": [2, 0], "shape": [1, 1]},
        {"tensor": 0, "rank": 0, "offset": [0], "shape": [2]},
        {"tensor": 3, "rank": 3, "offset": [], "shape": []},
        {"tensor": 2, "rank": 0, "offset": [0, 0], "shape": [2, 1]},
    ]
    large = members(
        (1 << 53) - 2, tensors=tensors, pieces=pieces, groups=[[1, 0], []], ranks=5, exactness="lossy",
        optimizer={"type": "torch.optim.Adam", "profile": {"torch": "2.13.0", "__proto__": "x", "": "é"}},
    )  # fmt: skip
    yield case(
        "first-of-everything", "Tensors of all roles, without elements and dimensions, ranks without pieces",
        ("UCP-D-154", "UCP-D-155", "UCP-D-156"), None, large,
    )  # fmt: skip


def batch_case(
    name: str,
    title: str,
    requirements: Sequence[str],
    params: Json,
    expected: Mapping[str, bytes],
    first: int,
    before: Sequence[Json],
    files: Mapping[str, bytes] | None = None,
    **more: Any,
) -> Case:
    """Return a batch that a writer has to write."""
    check = write_check("write-batch", params, before, batch={"first_step": first, **more})
    return Case(
        f"good/log-writes/{name}", title, requirements, [check], files, expected, features=FEATURES
    )  # fmt: skip


def _orders() -> Iterator[Case]:
    """Yield batches of several ranks, steps and epochs, one behind the other."""
    files = {
        "w.bin": floats_of(1, -2, 0.1, 3e-5), "mean.bin": floats_of(2, 3), "bias.bin": floats_of(-0.0),
        "eight.bin": EIGHT, "emb.bin": floats_of(*(n / 7 for n in range(12))), "two.bin": floats_of(7.5, -0.7),
    }  # fmt: skip
    both = {"piece": 0, "in": "w.bin"}, {"piece": 4, "in": "bias.bin"}
    one = {"options": OPTIONS, "entries": list(both)}
    buffers = {"options": OPTIONS, "skipped": True, "entries": [{"piece": 2, "in": "mean.bin"}]}
    later = {"options": LATER, "entries": [both[0], {"piece": 2, "in": "mean.bin"}, both[1]]}
    other = {"options": OPTIONS, "entries": [{"piece": 1, "in": "eight.bin"}, {"piece": 3, "in": "emb.bin"}]}
    start = begun(members())

    def case(
        name: str, title: str, requirements: Sequence[str], params: Json, first: int, *before: Json
    ) -> Case:
        used = {entry["in"] for asked in (params, *(one.get("params", {}) for one in before))
                for step_ in asked.get("steps", ()) for entry in step_["entries"]}  # fmt: skip
        return batch_case(
            name, title, requirements, params, {file: files[file] for file in used}, first, before
        )  # fmt: skip

    def before(rank: int, *steps: Json, **others: Any) -> Json:
        return {"op": "write-batch", "params": of_rank(rank, *steps, **others)}

    form = (
        "UCP-D-151",
        "UCP-D-157",
        "UCP-D-158",
        "UCP-D-159",
        "UCP-D-161",
        "UCP-D-162",
        "UCP-D-164",
        "UCP-D-169",
    )
    yield case("batch-one", "A batch of one step, the first of its rank", form, of_rank(0, one), 4, start)
    yield case(
        "batch-steps", "Steps with new options, without, skipped, and options behind the last",
        (*form, "UCP-D-160", "UCP-D-165"),
        of_rank(0, one, buffers, later, later, options=OPTIONS, values={"cursor": 4}), 4, start,
    )  # fmt: skip
    yield case(
        "batch-second",
        "The second batch of a rank",
        form,
        of_rank(0, later),
        6,
        start,
        before(0, one, buffers),
    )
    yield case(
        "batch-third", "The third batch of a rank, behind one with new options", form,
        of_rank(0, later, one), 7, start, before(0, one), before(0, buffers, later),
    )  # fmt: skip
    yield case(
        "batch-of-another-rank", "The first batch of a rank that is behind the other", form, of_rank(1, other), 4,
        start, before(0, one), before(0, later),
    )  # fmt: skip
    yield case(
        "batch-of-the-next-epoch", "The first batch of an epoch that goes on from one of the same process",
        ("UCP-D-158", "UCP-D-159"), of_rank(1, other, number=1), 5, start, before(0, one), begun(members(5, 0)),
    )  # fmt: skip
    typed = {"rng": {"$bytes": "AAEC"}, "é": {"$tuple": [1, {"$float": "2.0"}, None]}, "n": (1 << 53) - 1}
    options = [{"betas": {"$tuple": [0.9, 0.999]}, "lr": {"$float": "nan"}, "foreach": None}, {}]
    yield case(
        "batch-values", "Values and options that are tagged", ("UCP-R-023",),
        of_rank(0, {**one, "options": options}, values=typed), 4, start,
    )  # fmt: skip
    yield case(
        "batch-nothing", "A step of a rank that has no gradient", ("UCP-R-041",),
        of_rank(1, {"options": OPTIONS, "entries": []}), 4, start,
    )  # fmt: skip
    yield case(
        "batch-beside-others", "A batch beside objects that are none of a log", ("UCP-R-038", "UCP-W-036"),
        of_rank(0, one), 4, start,
        *({"put": key, "file": "w.bin"} for key in
          ("batches/0/0/04.batch", "batches/0/0/.4.batch", "batches/0/0/4.batch.tmp", "batches/0/00/4.batch", "epochs/01.json")),
    )  # fmt: skip


def _forms() -> Iterator[Case]:
    """Yield entries in every form, with the bytes where no other form would do."""
    w, emb, mean = ("gradient", "float32", [4]), ("gradient", "float32", [6, 2]), ("value", "float32", [2])
    options = [{"lr": 0.5}]

    def case(
        name: str, title: str, requirements: Sequence[str], asked: Json, data: Mapping[str, bytes],
        *entries: Json, payload: bytes | None = None,
    ) -> Case:  # fmt: skip
        told: Json = {} if payload is None else {"payload": "payload.bin"}
        files = {**data, **({} if payload is None else {"payload.bin": payload})}
        params = of_rank(0, {"options": options, "entries": list(entries)})
        return batch_case(
            name, title, requirements, params, files, asked["first_step"], [begun(asked)], **told
        )  # fmt: skip

    four = floats_of(1, 2, 3, 4)
    rows = b"\1\0\0\0\4\0\0\0" + four
    yield case(
        "form-rows", "Rows of a gradient, which stay rows", ("UCP-D-163", "UCP-D-167"), small(emb), {"a.bin": four},
        {"piece": 0, "rows": [1, 4], "in": "a.bin"}, payload=rows,
    )  # fmt: skip
    yield case(
        "form-rows-of-a-vector", "Elements of a gradient of one dimension, given as rows", ("UCP-D-163", "UCP-D-167"),
        small(w), {"a.bin": floats_of(7.5)}, {"piece": 0, "rows": [2], "in": "a.bin"},
        payload=b"\2\0\0\0" + floats_of(7.5),
    )  # fmt: skip
    yield case(
        "form-all-rows", "All rows of a gradient, which stay rows", ("UCP-D-163", "UCP-D-167"),
        small(("gradient", "float32", [2, 2])), {"a.bin": four}, {"piece": 0, "rows": [0, 1], "in": "a.bin"},
        payload=b"\0\0\0\0\1\0\0\0" + four,
    )  # fmt: skip
    yield case(
        "form-no-rows", "No row of a gradient that is there", ("UCP-D-163", "UCP-R-041"), small(emb), {"a.bin": b""},
        {"piece": 0, "rows": [], "in": "a.bin"}, payload=b"",
    )  # fmt: skip
    yield case(
        "form-values", "A buffer and a residual of zeros, which are dense", ("UCP-D-166",),
        small(w, mean, ("residual", "float32", [9])), {"a.bin": floats_of(2, 3), "zeros.bin": bytes(36)},
        {"piece": 1, "in": "a.bin"}, {"piece": 2, "in": "zeros.bin"}, payload=floats_of(2, 3) + bytes(36),
    )  # fmt: skip
    yield case(
        "form-zeros", "A gradient of zeros, which is there", ("UCP-R-041",), small(w, w), {"a.bin": bytes(16)},
        {"piece": 1, "in": "a.bin"},
    )  # fmt: skip
    bits = b"\0\0\0\x80" + b"\1\0\0\0" + b"\1\0\xc0\x7f" + b"\0\0\0\0"
    yield case(
        "form-bits", "Minus zero, a subnormal number and a NaN among zeros", ("UCP-D-163",),
        small(("gradient", "float32", [4]), ("gradient", "float32", [64])), {"a.bin": bits, "b.bin": bits + bytes(240)},
        {"piece": 0, "in": "a.bin"}, {"piece": 1, "in": "b.bin"},
    )  # fmt: skip
    yield case(
        "form-places", "Elements at places, one of them zero", ("UCP-D-163",), small(w, w),
        {"a.bin": floats_of(7, 0, -0.7), "none.bin": b""},
        {"piece": 0, "places": [0, 1, 3], "in": "a.bin"}, {"piece": 1, "places": [], "in": "none.bin"},
    )  # fmt: skip
    yield case(
        "form-blocks", "Places in three blocks of elements, the second empty", ("UCP-D-163",),
        small(("gradient", "float32", [140_000])), {"a.bin": floats_of(1, 2, 3, 4)},
        {"piece": 0, "places": [0, 65_535, 131_072, 139_999], "in": "a.bin"},
    )  # fmt: skip
    dtypes = {"bfloat16": 2, "float64": 8, "complex128": 16, "int8": 1, "bool": 1}
    tensors = [("gradient", dtype, [3, 5]) for dtype in dtypes]
    data = {
        f"{dtype}.bin": bytes((n * 37 % 11) * (n % (3 * item) < item) % (2 if dtype == "bool" else 256) for n in range(15 * item))
        for dtype, item in dtypes.items()
    }  # fmt: skip
    yield case(
        "form-dtypes", "Gradients of other data types, some elements of which are zero", ("UCP-D-161",),
        small(*tensors), data, *({"piece": n, "in": f"{dtype}.bin"} for n, dtype in enumerate(dtypes)),
    )  # fmt: skip


def _sums() -> Iterator[Case]:
    """Yield sums, as digits."""
    whole = floats_of(*(n / 3 for n in range(12)))
    corners = [
        {"tensor": 0, "rank": n % 2, "offset": [2 * (n // 2), n % 2 * 2], "shape": [2, 2 - n % 2]}
        for n in range(4)
    ]
    wide = {"atom": "c", "role": "gradient", "dtype": "complex128", "shape": [2]}
    tensors = [{"atom": "w", "role": "gradient", "dtype": "float32", "shape": [4, 3]}, wide]
    asked = members(
        9, tensors=tensors, pieces=[*corners, {"tensor": 1, "rank": 1, "offset": [0], "shape": [2]}], groups=[[0, 1]]
    )  # fmt: skip
    for rank in range(2):
        files: dict[str, bytes] = {}
        totals: dict[tuple[int, str], int] = {}
        given = []
        for n, piece in enumerate(asked["pieces"]):
            if piece["rank"] != rank:
                continue
            shape = tensors[piece["tensor"]]["shape"]
            own = list(indices(piece, shape))
            item = 16 if piece["tensor"] else 4
            data = b"".join(whole[item * k : item * k + item] for k in own)
            files[f"{n}.bin"] = data
            for slot in ("value", "exp_avg"):
                totals[piece["tensor"], slot] = totals.get((piece["tensor"], slot), 0) + tensor_sum(
                    data, item, own
                )
                given.append({"piece": n, "slot": slot, "in": f"{n}.bin"})
        sums = [
            {"tensor": tensor, "slot": slot, "sum": f"{total % (1 << 64):016x}"}
            for (tensor, slot), total in totals.items()
        ]
        params = of_rank(rank, {"options": [{"lr": 0.5}], "entries": []}, sums=given)
        yield batch_case(
            f"sums-{rank}", "Sums of the pieces that a rank has of tensors, by slots", ("UCP-D-158", "UCP-R-044"),
            params, files, 9, [begun(asked)], sums=sums,
        )  # fmt: skip
