"""What writers of update logs have to refuse, so that nothing of it is created."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from generate.cases import Case
from generate.log_cases import FEATURES, LATER, OPTIONS, TENSORS, TWO, epoch
from generate.log_writes import EIGHT, begun, members, of_rank, there, write_check
from generate.logs import LogDraft, floats_of

__all__ = ["bad_log_write_cases"]

LOG: Final = ["UCP-E-LOG"]
MISMATCH: Final = ["UCP-E-MISMATCH"]
FIRST: Final = "good/log-writes/first"
NEXT: Final = "good/log-writes/next"


def bad_log_write_cases() -> Iterator[Case]:
    """Yield all of them."""
    yield from _epochs()
    yield from _documents()
    yield from _inputs()
    yield from _rules()
    yield from _places()


def _epochs() -> Iterator[Case]:
    """Yield epochs that contradict the log, or what is there."""

    def case(
        name: str, title: str, requirement: str, asked: dict[str, Any], codes: Sequence[str],
        change: Callable[[LogDraft], object] | None = None,
    ) -> Case:  # fmt: skip
        draft = there()
        if change is not None:
            change(draft)
        check = write_check("begin-epoch", asked, error={"codes": list(codes)})
        return Case(
            f"bad/log-writes/epoch-{name}", title, (requirement, "UCP-W-041"), [check], draft.files(), mutates=NEXT,
            mutation=title, features=FEATURES,
        )  # fmt: skip

    def put(key: str, change: Callable[[bytes], bytes]) -> Callable[[LogDraft], object]:
        return lambda draft: draft.after.append(lambda files: files.update({key: change(files[key])}))

    def gone(key: str) -> Callable[[LogDraft], object]:
        return lambda draft: draft.after.append(lambda files: files.pop(key))

    def later(draft: LogDraft) -> None:
        draft.epochs[0].update(first_step=5)
        draft.batches.clear()

    yield case(
        "first-of-many", "A first epoch of a log that has one", "UCP-W-036", members(), ["UCP-E-EXISTS"]
    )  # fmt: skip
    yield case(
        "after-missing", "An epoch that goes on from one that is not there", "UCP-D-153", members(4, 3), ["UCP-E-MISSING"]
    )  # fmt: skip
    yield case(
        "before-its-first-step", "An epoch that begins before the one that it goes on from", "UCP-D-153",
        members(4, 0), LOG, later,
    )  # fmt: skip
    begun_since = lambda draft: draft.epochs.update({1: epoch(1, 4, 0, TWO)})  # noqa: E731
    yield case(
        "begun-since", "An epoch whose number was found before another one began", "UCP-W-036",
        members(4, 0, epoch=1), ["UCP-E-FENCED", "UCP-E-EXISTS"], begun_since,
    )  # fmt: skip
    yield case(
        "log-json", "An epoch of a log whose document is damaged", "UCP-R-022", members(4, 0), ["UCP-E-JSON"],
        put("log.json", lambda data: data[:-1]),
    )  # fmt: skip
    yield case(
        "log-version", "An epoch of a log of another version", "UCP-R-022", members(4, 0), ["UCP-E-VERSION"],
        lambda draft: draft.log.update(format_version=1),
    )  # fmt: skip
    for name, asked in (("first", members()), ("next", members(4, 0))):
        yield case(
            f"{name}-without-a-log", "An epoch of a log whose document is gone", "UCP-D-150", asked, ["UCP-E-MISSING"],
            gone("log.json"),
        )  # fmt: skip
    yield case(
        "after-json", "An epoch that goes on from one whose document is damaged", "UCP-R-022", members(4, 0),
        ["UCP-E-JSON"], put("epochs/0.json", lambda data: data[:-1]),
    )  # fmt: skip
    yield case(
        "after-other-log", "An epoch that goes on from one of another log", "UCP-D-152", members(4, 0), LOG,
        lambda draft: draft.epochs[0].update(log="0" * 32),
    )  # fmt: skip
    for name, requirement, others in (
        ("pieces", "UCP-D-155", {"pieces": TWO[:-1]}),
        ("groups", "UCP-D-156", {"groups": [[0], [2]]}),
    ):
        yield case(
            f"next-{name}", f"An epoch that goes on from another, and contradicts itself: {name}", requirement,
            members(4, 0, **others), LOG,
        )  # fmt: skip
    title = "An epoch that goes on from one of a log that is not there"
    yield Case(
        "bad/log-writes/epoch-after-nothing", title, ("UCP-D-153", "UCP-W-041"),
        [write_check("begin-epoch", members(4, 0), error={"codes": ["UCP-E-NOT-FOUND"]})], None, mutates=FIRST,
        mutation=title, features=FEATURES,
    )  # fmt: skip


def _documents() -> Iterator[Case]:
    """Yield first epochs whose documents would contradict themselves."""

    def tensor(n: int, **others: Any) -> list[dict[str, Any]]:
        return [*TENSORS[:n], {**TENSORS[n], **others}, *TENSORS[n + 1 :]]

    def piece(n: int, **others: Any) -> list[dict[str, Any]]:
        return [*TWO[:n], {**TWO[n], **others}, *TWO[n + 1 :]]

    for name, code, requirement, others in (
        ("name-empty", "UCP-E-NAME", "UCP-D-154", {"tensors": tensor(3, atom="")}),
        ("name-twice", "UCP-E-NAME", "UCP-D-154", {"tensors": tensor(3, atom="w")}),
        ("dtype", "UCP-E-DTYPE", "UCP-R-022", {"tensors": tensor(3, dtype="float128")}),
        ("pieces-gap", "UCP-E-LOG", "UCP-D-155", {"pieces": TWO[:-1]}),
        ("pieces-overlap", "UCP-E-LOG", "UCP-D-155", {"pieces": piece(1, offset=[0, 0], shape=[4, 3])}),
        ("pieces-outside", "UCP-E-LOG", "UCP-D-155", {"pieces": piece(1, offset=[0, 2])}),
        ("pieces-empty", "UCP-E-LOG", "UCP-D-155", {"pieces": [*TWO, {**TWO[2], "shape": [0]}]}),
        ("pieces-dimensions", "UCP-E-LOG", "UCP-D-155", {"pieces": piece(2, offset=[0, 0], shape=[1, 2])}),
        ("pieces-rank", "UCP-E-LOG", "UCP-D-155", {"pieces": piece(4, rank=2)}),
        ("pieces-no-tensor", "UCP-E-LOG", "UCP-D-155", {"pieces": [*TWO, {**TWO[2], "tensor": 4}]}),
        ("group-missing", "UCP-E-LOG", "UCP-D-156", {"groups": [[0], [2]]}),
        ("group-twice", "UCP-E-LOG", "UCP-D-156", {"groups": [[0, 2], [2, 3]]}),
        ("group-of-values", "UCP-E-LOG", "UCP-D-156", {"groups": [[0, 1], [2, 3]]}),
        ("group-of-nothing", "UCP-E-LOG", "UCP-D-156", {"groups": [[0], [2, 3, 4]]}),
    ):
        title = f"An epoch that contradicts itself: {name}".replace("-", " ")
        asked: dict[str, Any] = members(0) | others
        yield Case(
            f"bad/log-writes/epoch-{name}", title, (requirement, "UCP-W-041"),
            [write_check("begin-epoch", asked, error={"codes": [code]})], None, mutates=FIRST, mutation=title,
            features=FEATURES,
        )  # fmt: skip


def _batch(
    name: str, title: str, requirement: str, codes: Sequence[str], params: Mapping[str, Any], files: Mapping[str, bytes],
    before: Sequence[dict[str, Any]] = (),
) -> Case:  # fmt: skip
    check = write_check("write-batch", params, [begun(members()), *before], error={"codes": list(codes)})
    requirements = dict.fromkeys(
        (requirement, "UCP-W-041" if requirement.startswith("UCP-D") else requirement)
    )
    return Case(
        f"bad/log-writes/batch-{name}", title, list(requirements), [check], None, files, mutates=FIRST, mutation=title,
        features=FEATURES,
    )  # fmt: skip


def _inputs() -> Iterator[Case]:
    """Yield elements, places and rows that do not fit their piece."""
    eight = {"piece": 1}
    rows = {"piece": 3}
    for name, entry, data in (
        ("short", eight, EIGHT[:-4]),
        ("long", eight, EIGHT + bytes(4)),
        ("cut", eight, EIGHT[:-1]),
        ("nothing", eight, b""),
        ("places-short", {**eight, "places": [0, 7]}, EIGHT[:4]),
        ("places-long", {**eight, "places": [0, 7]}, EIGHT),
        ("places-descend", {**eight, "places": [7, 0]}, EIGHT[:8]),
        ("places-twice", {**eight, "places": [3, 3]}, EIGHT[:8]),
        ("places-outside", {**eight, "places": [0, 8]}, EIGHT[:8]),
        ("rows-short", {**rows, "rows": [0, 5]}, EIGHT[:12]),
        ("rows-long", {**rows, "rows": [0]}, EIGHT[:16]),
        ("rows-descend", {**rows, "rows": [5, 0]}, EIGHT[:16]),
        ("rows-twice", {**rows, "rows": [2, 2]}, EIGHT[:16]),
        ("rows-outside", {**rows, "rows": [0, 6]}, EIGHT[:16]),
    ):
        step = {"options": OPTIONS, "entries": [{**entry, "in": "given.bin"}]}
        title = f"Elements that do not fit their piece: {name}".replace("-", " ")
        yield _batch(name, title, "UCP-W-041", MISMATCH, of_rank(1, step), {"given.bin": data})
    nothing = {"options": OPTIONS, "entries": []}
    for name, data in (("short", EIGHT[:-4]), ("long", EIGHT + bytes(4)), ("cut", EIGHT[:-1])):
        params = of_rank(1, nothing, sums=[{"piece": 1, "slot": "value", "in": "given.bin"}])
        title = f"Elements of a sum that do not fit their piece: {name}"
        yield _batch(f"sum-{name}", title, "UCP-W-041", MISMATCH, params, {"given.bin": data})
    later = {"options": OPTIONS, "entries": [{"piece": 1, "in": "whole.bin"}]}
    wrong = {"options": OPTIONS, "entries": [{"piece": 1, "in": "given.bin"}]}
    yield _batch(
        "second-step-short", "A second step whose elements do not fit their piece", "UCP-W-041", MISMATCH,
        of_rank(1, later, wrong), {"whole.bin": EIGHT, "given.bin": EIGHT[:-4]},
    )  # fmt: skip


def _rules() -> Iterator[Case]:
    """Yield batches that would break a rule of section 3."""
    files = {"w.bin": floats_of(1, 2, 3, 4), "two.bin": floats_of(5, 6), "bias.bin": floats_of(7)}
    w, mean, bias = {"piece": 0, "in": "w.bin"}, {"piece": 2, "in": "two.bin"}, {"piece": 4, "in": "bias.bin"}
    skipped = {"skipped": True}
    broken: list[tuple[str, str, list[dict[str, Any]], dict[str, Any]]] = [
        ("pieces-descend", "UCP-D-160", [bias, w], {}),
        ("piece-twice", "UCP-D-160", [w, w], {}),
        ("piece-of-another-rank", "UCP-D-160", [w, {"piece": 3, "rows": [0], "in": "two.bin"}], {}),
        ("no-piece", "UCP-D-160", [w, {"piece": 5, "in": "bias.bin"}], {}),
        ("skipped-gradient", "UCP-D-165", [w, mean], skipped),
        ("value-rows", "UCP-D-166", [{**mean, "rows": [0, 1]}], {}),
        ("rows-of-nothing", "UCP-D-163", [{**bias, "rows": [0]}], {}),
        ("options-fewer", "UCP-D-169", [w], {"options": OPTIONS[:1]}),
        ("options-more", "UCP-D-169", [w], {"options": [*OPTIONS, {}]}),
    ]
    for name, requirement, entries, others in broken:
        step: dict[str, Any] = {"options": OPTIONS, "entries": entries} | others
        used = {entry["in"]: files[entry["in"]] for entry in entries}
        title = f"A step that no reader would take: {name}".replace("-", " ")
        yield _batch(name, title, requirement, LOG, of_rank(0, step), used)
    right = {"options": OPTIONS, "entries": [w]}
    for name, requirement, codes, params in (
        ("second-step-options", "UCP-D-169", LOG, of_rank(0, right, {**right, "options": LATER[:1]})),
        ("options-behind", "UCP-D-169", LOG, of_rank(0, right, options=LATER[:1])),
        ("rank", "UCP-D-158", LOG, of_rank(2, {"options": OPTIONS, "entries": []})),
        ("sum-of-no-piece", "UCP-D-158", LOG, of_rank(0, right, sums=[{"piece": 5, "slot": "value", "in": "w.bin"}])),
    ):  # fmt: skip
        used = {"w.bin": files["w.bin"]} if name != "rank" else {}
        title = f"A batch that no reader would take: {name}".replace("-", " ")
        yield _batch(name, title, requirement, codes, params, used)


def _places() -> Iterator[Case]:
    """Yield batches that are there already, or come too late."""
    files = {"w.bin": floats_of(1, 2, 3, 4)}
    one = {"options": OPTIONS, "entries": [{"piece": 0, "in": "w.bin"}]}
    first = {"op": "write-batch", "params": of_rank(0, one)}
    other = {"put": "batches/0/0/4.batch", "file": "w.bin"}
    yield _batch(
        "there",
        "A batch in the place of another one",
        "UCP-W-036",
        ["UCP-E-EXISTS"],
        of_rank(0, one),
        files,
        [other],
    )
    yield _batch(
        "second-there", "A second batch in the place of another one", "UCP-W-036", ["UCP-E-EXISTS"], of_rank(0, one),
        files, [first, {**other, "put": "batches/0/0/5.batch"}],
    )  # fmt: skip
    fence = begun(members(4, 0))
    yield _batch(
        "fenced",
        "A batch behind which another epoch has begun",
        "UCP-W-039",
        ["UCP-E-FENCED"],
        of_rank(0, one),
        files,
        [fence],
    )
    yield _batch(
        "second-fenced", "A second batch behind which another epoch has begun", "UCP-W-039", ["UCP-E-FENCED"],
        of_rank(0, one), files, [first, begun(members(5, 0))],
    )  # fmt: skip
    yield _batch(
        "fenced-twice", "A batch behind which two other epochs have begun", "UCP-W-039", ["UCP-E-FENCED"],
        of_rank(0, one), files, [fence, fence],
    )  # fmt: skip
    yield _batch(
        "there-and-fenced", "A batch that is there, of an epoch behind which another one has begun", "UCP-W-039",
        ["UCP-E-FENCED"], of_rank(0, one), files, [other, fence],
    )  # fmt: skip
