"""Tagged values that are not the canonical encoding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from generate.cases import Case
from generate.mutations import STATE, case, put

__all__ = ["bad_value_cases"]


def body(dtype: str, shape: list[int], data: str) -> dict[str, Any]:
    """Return the content of an array."""
    return {"dtype": dtype, "shape": shape, "data": data}


def named(kind: str, value: Any) -> dict[str, Any]:
    """Return an object of a type."""
    return {"$object": {"type": kind, "value": value}}


# Those that the schema excludes as well, and those that take a decoder.
BY_SCHEMA: dict[str, Any] = {
    "tag-unknown": {"$unknown": 1},
    "tag-and-member": {"$float": "1.0", "a": 1},
    "object-with-dollar": {"a": 1, "$b": 2},
    "float-finite": {"$float": "0.5"},
    "float-short": {"$float": "1"},
    "float-infinity": {"$float": "Infinity"},
    "float-plus": {"$float": "+1.0"},
    "float-exponent-small": {"$float": "1e+15"},
    "float-exponent-unsigned": {"$float": "1e16"},
    "float-number": {"$float": 1},
    "float-newline": {"$float": "1.0\n"},
    "int-small": {"$int": "9007199254740991"},
    "int-plus": {"$int": "+9007199254740992"},
    "int-leading-zero": {"$int": "09007199254740992"},
    "int-digits": {"$int": "1" * 4097},
    "bytes-unpadded": {"$bytes": "AA"},
    "bytes-unused-bits": {"$bytes": "AB=="},
    "bytes-url": {"$bytes": "_-8="},
    "bytes-line-break": {"$bytes": "AAAA\nAAAA"},
    "complex-integer": {"$complex": [1, 0.5]},
    "complex-three": {"$complex": [0.5, 0.5, 0.5]},
    "tuple-object": {"$tuple": {}},
    "set-of-list": {"$set": [[1]]},
    "set-of-tensor": {"$set": [{"$tensor": body("uint8", [], "AA==")}]},
    "set-twice": {"$set": [1, 1]},
    "dict-of-plain-names": {"$dict": [["a", 1]]},
    "dict-empty": {"$dict": []},
    "dict-triple": {"$dict": [[1, 2, 3]]},
    "dict-key-list": {"$dict": [[[1], 2]]},
    "array-member": {"$array": {**body("uint8", [], "AA=="), "order": "C"}},
    "array-dimensions": {"$array": body("uint8", [1] * 33, "AA==")},
    "object-type-path": named("os..system", 1),
    "object-type-digit": named("1a", 1),
    "object-type-long": named("a" * 201, 1),
}
BY_DECODER: dict[str, Any] = {
    "float-long": {"$float": "1.0000000000000001e+16"},
    "float-not-shortest": {"$float": "123456789012345680.0"},
    "float-other-digits": {"$float": "9007199254740993.0"},
    "set-order": {"$set": [2, 10]},
    "set-order-text": {"$set": [1, "a"]},
    "set-equal-numbers": {"$set": [1, {"$float": "1.0"}]},
    "set-true-and-one": {"$set": [1, True]},
    "dict-equal-keys": {"$dict": [[1, "a"], [{"$float": "1.0"}, "b"]]},
    "dict-equal-complex": {"$dict": [[0.5, 1], [{"$complex": [0.5, {"$float": "0.0"}]}, 2]]},
    "dict-equal-tuples": {"$dict": [[{"$tuple": [0]}, 1], [{"$tuple": [False]}, 2]]},
    "set-utf-16-order": {"$set": ["\U0001f642", "\uffff"]},
    "set-equal-frozensets": {"$set": [{"$frozenset": [1, 2]}, {"$frozenset": [2, {"$float": "1.0"}]}]},
    "dict-equal-frozensets": {
        "$dict": [[{"$frozenset": [2, {"$float": "1.0"}]}, "a"], [{"$frozenset": [1, 2]}, "b"]]
    },
    "dict-nan-twice": {"$dict": [[{"$float": "nan"}, 1], [{"$float": "nan"}, 2]]},
    "array-short": {"$array": body("uint16", [2], "AAA=")},
    "array-long": {"$tensor": body("uint8", [], "AAA=")},
    "array-dtype": {"$array": body("uint4", [1], "AA==")},
    "array-unused-bits": {"$array": body("int4", [1], "EA==")},
    "array-bool": {"$array": body("bool", [1], "Ag==")},
    "array-huge": {"$array": body("float64", [0, 2**53 - 1], "")},
    "ordered-twice": named("collections.OrderedDict", [[1, 2], [1, 3]]),
    "ordered-nan-twice": named("collections.OrderedDict", [[{"$float": "nan"}, 1], [{"$float": "nan"}, 2]]),
    "ordered-key-set": named("collections.OrderedDict", [[{"$set": [1]}, 2]]),
    "ordered-key-tensor": named(
        "collections.OrderedDict", [[{"$tensor": body("uint8", [], "AA==")}, 1]]
    ),
    "ordered-object": named("collections.OrderedDict", {"a": 1}),
    "datetime-space": named("datetime.datetime", "2024-02-29 12:00:00"),
    "datetime-no-such-day": named("datetime.datetime", "2023-02-29T12:00:00"),
    "datetime-zero-fraction": named("datetime.datetime", "2024-02-29T12:00:00.000000"),
    "datetime-zulu": named("datetime.datetime", "2024-02-29T12:00:00Z"),
    "datetime-minus-zero": named("datetime.datetime", "2024-02-29T12:00:00-00:00"),
    "date-1900": named("datetime.date", "1900-02-29"),
    "date-short": named("datetime.date", "2024-2-29"),
    "time-no-seconds": named("datetime.time", "12:00"),
    "timedelta-seconds": named("datetime.timedelta", {"$tuple": [0, 86400, 0]}),
    "timedelta-list": named("datetime.timedelta", [0, 0, 0]),
    "scalar-long": named("numpy.scalar", {"$tuple": ["uint8", {"$bytes": "AAA="}]}),
    "path-number": named("pathlib.PosixPath", 1),
    "timedelta-days": named("datetime.timedelta", {"$tuple": [10**9, 0, 0]}),
    "datetime-year": named("datetime.date", "0000-01-01"),
    "time-offset": named("datetime.time", "00:00:00+24:00"),
}  # fmt: skip
CLOCK: dict[str, Any] = {
    "time-hour-24": named("datetime.time", "24:00:00"),
    "time-minute-60": named("datetime.time", "23:60:00"),
    "time-second-60": named("datetime.time", "23:59:60"),
    "time-offset-minute-60": named("datetime.time", "00:00:00+00:60"),
    "datetime-hour-24": named("datetime.datetime", "2016-12-31T24:00:00"),
    "datetime-second-60": named("datetime.datetime", "2016-12-31T23:59:60"),
}
PER_RANK: dict[str, Any] = {
    "per-rank-list": [1, 2],
    "per-rank-member": {"axis": "rank", "entries": [1], "on_resize": "keep", "size": 1},
    "per-rank-no-axis": {"entries": [1], "on_resize": "keep"},
    "per-rank-axis-empty": {"axis": "", "entries": [1], "on_resize": "keep"},
    "per-rank-axis-number": {"axis": 0, "entries": [1], "on_resize": "keep"},
    "per-rank-no-entries": {"axis": "rank", "entries": [], "on_resize": "keep"},
    "per-rank-entries-tuple": {"axis": "rank", "entries": {"$tuple": [1]}, "on_resize": "keep"},
    "per-rank-rule": {"axis": "rank", "entries": [1], "on_resize": "first"},
    "per-rank-rule-null": {"axis": "rank", "entries": [1], "on_resize": None},
}
RESPLIT: dict[str, Any] = {
    "resplit-negative": [1, -1],
    "resplit-large-negative": [1, {"$int": "-9007199254740992"}],
    "resplit-fraction": [0.5],
    "resplit-float": [{"$float": "1.0"}],
    "resplit-bool": [True],
    "resplit-text": ["1"],
}


def _cases_per_rank() -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    for name, value in PER_RANK.items():
        yield name, named("ucp.PerRank", value), ("UCP-D-090", "UCP-R-023")
    for name, value in CLOCK.items():
        yield name, value, ("UCP-D-088", "UCP-D-089", "UCP-R-023")
    for name, entries in RESPLIT.items():
        value = named("ucp.PerRank", {"axis": "dp", "entries": entries, "on_resize": "resplit"})
        yield name, value, ("UCP-D-091", "UCP-R-023")


def bad_value_cases() -> Iterator[Case]:
    """Yield all cases, as a value and one as an option."""
    requirements = ("UCP-D-088", "UCP-R-023")
    for name, value in BY_SCHEMA.items():
        mutate = put("state", "values", "bad", to=value)
        yield case(
            f"values/{name}",
            f"Tagged value: {name}",
            requirements,
            "UCP-E-VALUE",
            mutate,
            level="full",
            also=True,
        )
    for name, value in BY_DECODER.items():
        mutate = put("state", "values", "bad", to=value)
        at = f"{STATE}#/values/bad"
        yield case(
            f"values/{name}",
            f"Tagged value: {name}",
            requirements,
            "UCP-E-VALUE",
            mutate,
            level="full",
            at=at,
        )
    for name, value, broken in _cases_per_rank():
        mutate = put("state", "values", "bad", to=value)
        at = f"{STATE}#/values/bad"
        yield case(
            f"values/{name}",
            f"Tagged value: {name}",
            broken,
            "UCP-E-VALUE",
            mutate,
            level="full",
            at=at,
        )
    option = put("state", "optimizers", "optim", "groups", 0, "options", "lr", to={"$set": [2, 1]})
    at = f"{STATE}#/optimizers/optim/groups/0/options/lr"
    yield case(
        "values/option",
        "An option that is not canonical",
        requirements,
        "UCP-E-VALUE",
        option,
        level="full",
        at=at,
    )
    deep: Any = 1
    for _ in range(57):
        deep = [deep]
    mutate = put("state", "values", "bad", to=deep)
    yield case(
        "limits/value-nesting",
        "A value of 57 levels",
        requirements,
        "UCP-E-LIMIT",
        mutate,
        level="full",
    )
