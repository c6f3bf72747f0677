"""Bad update logs: documents, batches, steps, and checkpoints that none can be gone on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from generate.cases import Case
from generate.log_cases import (
    CHECKPOINT,
    LATER,
    ONE,
    OPTIONS,
    TENSORS,
    changed,
    epoch,
    first_epoch,
    log_case,
    of_one,
    of_two,
    state,
    then,
    with_sums,
    without,
)
from generate.logs import LogDraft, checkpoint, dense, rows, sparse, step

__all__ = ["bad", "bad_log_cases"]

Change = Callable[[LogDraft], object]
LOG = "UCP-E-LOG"
LAST = (1, 0, 7)
LAST_KEY = "batches/1/0/7.batch"
EPOCH_KEY = "epochs/1.json"


def bad(
    name: str,
    title: str,
    requirements: Sequence[str],
    change: Change,
    codes: Sequence[str] = (LOG,),
    at: Sequence[str] = (),
    **options: Any,
) -> Case:
    """Return a mutation of the parent."""
    return log_case(
        f"bad/logs/{name}", title, requirements, changed(change), codes=codes, at=at,
        mutates="good/parents/log", mutation=title, **options,
    )  # fmt: skip


def bad_log_cases() -> Iterator[Case]:
    """Yield all of them."""
    yield from _log_documents()
    yield from _epochs()
    yield from _pieces()
    yield from _objects()
    yield from _headers()
    yield from _steps()
    yield from _ranks()
    yield from _checkpoints()


def _put(key: str, change: Callable[[bytes], bytes]) -> Change:
    return lambda draft: draft.after.append(lambda files: files.update({key: change(files[key])}))


def _gone(key: str) -> Change:
    return then(without(key))


def _log_documents() -> Iterator[Case]:
    options: dict[str, Any] = {"at": ["log.json"]}
    for name, change, code in (
        ("json", _put("log.json", lambda data: data[:-1]), "UCP-E-JSON"),
        ("no-envelope", lambda draft: draft.log.pop("annotations"), "UCP-E-FORMAT"),
        ("version", lambda draft: draft.log.update(format_version=1), "UCP-E-VERSION"),
        ("read-feature", lambda draft: draft.log.update(read_features=["zstd"]), "UCP-E-FEATURE"),
        ("write-feature", lambda draft: draft.log.update(write_features=["x"]), "UCP-E-FEATURE-SET"),
        ("extension", lambda draft: draft.log.update(extensions={"x": {}}), "UCP-E-EXTENSION"),
        ("kind", lambda draft: draft.log.update(kind="update-log-epoch"), "UCP-E-SCHEMA"),
        ("id-upper", lambda draft: draft.log.update(id="A" * 32), "UCP-E-SCHEMA"),
        ("surprise", lambda draft: draft.log.update(surprise=1), "UCP-E-SCHEMA"),
    ):
        yield bad(
            f"document-{name}", f"A log document that is refused: {name}", ("UCP-R-022",), change, [code],
            refused=code, **options,
        )  # fmt: skip
    yield bad(
        "document-missing", "No log document", ("UCP-D-150",), _gone("log.json"), ["UCP-E-MISSING"],
        refused="UCP-E-MISSING", **options,
    )  # fmt: skip
    other = "0" * 32
    yield bad(
        "document-other-log", "The document of another log", ("UCP-D-152",),
        lambda draft: draft.log.update(id=other), at=["epochs/0.json#/log", "epochs/1.json#/log"], refused=LOG,
    )  # fmt: skip


def _epoch(**members: Any) -> Change:
    return lambda draft: draft.epochs[1].update(members)


def _epochs() -> Iterator[Case]:
    twice = [*TENSORS[:3], {**TENSORS[3], "atom": "w"}]
    for name, members, code, at, requirement in (
        ("json-duplicate", {}, "UCP-E-JSON", "", "UCP-R-022"),
        ("version", {"format_version": 1}, "UCP-E-VERSION", "#/format_version", "UCP-R-022"),
        ("feature", {"read_features": ["x"]}, "UCP-E-FEATURE", "#/read_features", "UCP-R-022"),
        ("schema-ranks", {"ranks": 0}, "UCP-E-SCHEMA", "#/ranks", "UCP-R-022"),
        ("schema-role", {"tensors": [{**TENSORS[0], "role": "moment"}]}, "UCP-E-SCHEMA", "#/tensors/0", "UCP-R-022"),
        ("schema-exactness", {"exactness": "exact"}, "UCP-E-SCHEMA", "#/exactness", "UCP-R-022"),
        ("schema-type", {"optimizer": {"type": "", "profile": {}}}, "UCP-E-SCHEMA", "#/optimizer", "UCP-R-022"),
        ("schema-profile", {"optimizer": {"type": "ucp.sgd", "profile": {"a": 1}}}, "UCP-E-SCHEMA", "#/optimizer", "UCP-R-022"),
        ("schema-start", {"start": "f"}, "UCP-E-SCHEMA", "#/start", "UCP-R-022"),
        ("schema-member", {"mesh": None}, "UCP-E-SCHEMA", "", "UCP-R-022"),
        ("other-log", {"log": "0" * 32}, LOG, "#/log", "UCP-D-152"),
        ("number", {"epoch": 2}, LOG, "#/epoch", "UCP-D-151"),
        ("after-none", {"after": None}, LOG, "#/after", "UCP-D-153"),
        ("after-itself", {"after": {"epoch": 1, "digest": "sha256:" + "0" * 64}}, LOG, "#/after", "UCP-D-153"),
        ("after-digest", {"after": {"epoch": 0, "digest": "sha256:" + "0" * 64}}, LOG, "#/after", "UCP-D-153"),
        ("name-empty", {"tensors": [*TENSORS[:3], {**TENSORS[3], "atom": ""}]}, "UCP-E-NAME", "#/tensors/3", "UCP-R-022"),
        ("name-twice", {"tensors": twice}, "UCP-E-NAME", "#/tensors/3", "UCP-D-154"),
        ("dtype", {"tensors": [*TENSORS[:3], {**TENSORS[3], "dtype": "float128"}]}, "UCP-E-DTYPE", "#/tensors/3", "UCP-R-022"),
        ("group-missing", {"groups": [[0], [2]]}, LOG, "", "UCP-D-156"),
        ("group-twice", {"groups": [[0, 2], [2, 3]]}, LOG, "", "UCP-D-156"),
        ("group-of-values", {"groups": [[0, 1], [2, 3]]}, LOG, "", "UCP-D-156"),
        ("group-of-nothing", {"groups": [[0], [2, 3, 4]]}, LOG, "", "UCP-D-156"),
    ):  # fmt: skip
        change = _epoch(**members)
        if name == "json-duplicate":
            change = _put(EPOCH_KEY, lambda data: b'{"kind":"x",' + data[1:])
        yield bad(
            f"epoch-{name}", f"An epoch document that is refused: {name}", (requirement,), change, [code],
            [EPOCH_KEY + at], refused=code,
        )  # fmt: skip
    yield bad(
        "epoch-after-of-the-first", "The first epoch goes on from one", ("UCP-D-153",),
        lambda draft: draft.epochs[0].update(after={"epoch": 0, "digest": "sha256:" + "0" * 64}),
        at=["epochs/0.json#/after"], also=True, refused=LOG,
    )  # fmt: skip
    yield bad(
        "epoch-first-step", "An epoch that begins before the one that it goes on from", ("UCP-D-153",),
        lambda draft: draft.epochs[0].update(first_step=5), also=True, at=["epochs/1.json#/first_step"], refused=LOG,
    )  # fmt: skip
    yield bad(
        "epoch-missing", "An epoch document is gone that another one names", ("UCP-D-153",), _gone("epochs/0.json"),
        ["UCP-E-MISSING"], ["epochs/0.json"], refused="UCP-E-MISSING",
    )  # fmt: skip
    yield bad(
        "epoch-last-missing", "The document of the last epoch is gone, and its batches are there", ("UCP-D-158",),
        _gone("epochs/1.json"), ["UCP-E-MISSING"], [EPOCH_KEY],
    )  # fmt: skip

    def given_up(draft: LogDraft) -> None:
        draft.epochs[2] = {**epoch(2, 3, 0, ONE), "start": "2" * 32}
        draft.epochs[1]["after"] = {"epoch": 0, "digest": "sha256:" + "0" * 64}

    yield bad(
        "epoch-off-the-branch", "An epoch off the branch that goes on from nothing", ("UCP-D-153",), given_up,
        at=["epochs/1.json#/after"],
    )  # fmt: skip


def _pieces() -> Iterator[Case]:
    def piece(number: int, **members: Any) -> list[Any]:
        return [{**one, **members} if n == number else one for n, one in enumerate(ONE)]

    for name, found in (
        ("gap", piece(0, shape=[3, 3])),
        ("none", ONE[1:]),
        ("twice", [*ONE, ONE[0]]),
        ("overlap", [piece(0, shape=[3, 3])[0], piece(0, offset=[2, 0], shape=[2, 3])[0], *ONE[1:]]),
        ("outside", piece(0, offset=[1, 0])),
        ("empty", [*ONE, {**ONE[0], "shape": [0, 3]}]),
        ("dimensions", piece(0, offset=[0], shape=[4])),
        ("no-tensor", [*ONE, {**ONE[0], "tensor": 4}]),
        ("rank", piece(0, rank=1)),
        ("even-corners", [
            piece(0, offset=[0, 0], shape=[2, 3])[0], piece(0, offset=[0, 0], shape=[2, 3])[0], *ONE[1:],
        ]),
    ):  # fmt: skip
        yield bad(
            f"pieces-{name}", f"Pieces that do not have every element once: {name}", ("UCP-D-155",),
            _epoch(pieces=found, ranks=1), at=[EPOCH_KEY], refused=LOG,
        )  # fmt: skip


def _objects() -> Iterator[Case]:
    """Yield batches whose bytes, keys or chain are wrong; the last one is damaged, unless a title says more."""
    for name, change in (
        ("magic", lambda data: b"UCPBUNCH" + data[8:]),
        ("digest", lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:]),
        ("header", lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:]),
        ("shorter-length", lambda data: data[:8] + bytes([data[8] ^ 1]) + data[9:]),
        ("longer", lambda data: data + b"\0"),
    ):
        yield bad(
            f"batch-{name}",
            f"A batch with another {name}",
            ("UCP-D-157",),
            _put(LAST_KEY, change),
            at=[LAST_KEY],
        )
    yield bad(
        "batch-limit", "A header of more than 256 MiB", ("UCP-R-003",),
        _put(LAST_KEY, lambda data: data[:8] + b"\1\0\0\x10" + data[12:]), ["UCP-E-LIMIT"], [LAST_KEY],
    )  # fmt: skip
    yield bad(
        "payload", "A bit of the payload is another", ("UCP-D-162",),
        _put(LAST_KEY, lambda data: data[:-1] + bytes([data[-1] ^ 64])), ["UCP-E-CHECKSUM"], [LAST_KEY],
    )  # fmt: skip
    yield bad(
        "payload-before", "A bit of an earlier batch is another", ("UCP-D-162", "UCP-R-040"),
        _put("batches/1/0/4.batch", lambda data: data[:-1] + bytes([data[-1] ^ 1])), ["UCP-E-CHECKSUM"],
        ["batches/1/0/4.batch"], refused=LOG,
    )  # fmt: skip

    def renamed(old: str, new: str) -> Change:
        return lambda draft: draft.after.append(lambda files: files.update({new: files.pop(old)}))

    yield bad(
        "key-step", "A batch under the key of another step", ("UCP-D-151",),
        renamed("batches/0/1/3.batch", "batches/0/1/5.batch"), at=["batches/0/1/3.batch"], also=True, refused=LOG,
    )  # fmt: skip
    yield bad(
        "key-rank", "A batch under the key of another rank", ("UCP-D-151",),
        lambda draft: draft.after.append(
            lambda files: files.update({"batches/0/0/4.batch": files["batches/0/1/4.batch"]})
        ), at=["batches/0/0/4.batch"],
    )  # fmt: skip
    yield bad(
        "strange-rank", "A batch of a rank that the epoch has not", ("UCP-D-158",),
        lambda draft: draft.batches.update({(1, 3, 4): [step(options=LATER)]}), at=["batches/1/3/4.batch"],
    )  # fmt: skip
    yield bad(
        "early", "A batch that begins before its epoch", ("UCP-D-158",),
        lambda draft: draft.batches.update({(1, 0, 3): [step(options=LATER)]}), at=["batches/1/0/3.batch"], also=True,
    )  # fmt: skip
    yield bad(
        "gap", "A batch is missing, and others lie behind it", ("UCP-D-159", "UCP-R-040"), _gone("batches/1/0/6.batch"),
        at=["batches/1/0/6.batch"], refused=LOG,
    )  # fmt: skip
    yield bad(
        "gap-before-an-epoch", "The last batch is missing before an epoch that goes on", ("UCP-R-040",),
        then(*(without(f"batches/0/0/{n}.batch") for n in (2, 4))),
        codes=[], refused=LOG,
    )  # fmt: skip
    yield bad(
        "torn-in-between", "A torn batch with others behind it", ("UCP-D-157", "UCP-R-040"),
        _put("batches/1/0/6.batch", lambda data: data[:-1]), at=["batches/1/0/6.batch"], refused=LOG,
    )  # fmt: skip
    yield bad(
        "overlap", "A batch that begins within the one before it", ("UCP-D-159", "UCP-R-040"),
        lambda draft: draft.batches.update({(1, 0, 5): [step(*of_one(5), options=LATER)]}),
        at=["batches/1/0/5.batch"], also=True, refused=LOG,
    )  # fmt: skip
    for name, key in (("chain", LAST), ("chain-begin", (1, 0, 4))):
        yield bad(
            name, f"A batch goes on from another one than that before it: step {key[2]}", ("UCP-D-159",),
            _header(key, previous="sha256:" + "0" * 64), at=[f"batches/1/0/{key[2]}.batch#/previous"], also=True,
        )  # fmt: skip


def _header(key: tuple[int, int, int], **members: Any) -> Change:
    return lambda draft: draft.headers.setdefault(key, {}).update(members)


def _headers() -> Iterator[Case]:
    for name, members, code, at, requirement in (
        ("other-log", {"log": "0" * 32}, LOG, "#/log", "UCP-D-158"),
        ("other-epoch", {"epoch": 0}, LOG, "#/epoch", "UCP-D-151"),
        ("other-rank", {"rank": 1}, LOG, "#/rank", "UCP-D-151"),
        ("other-step", {"first_step": 6}, LOG, "#/first_step", "UCP-D-151"),
        ("sums", {"sums": [{"tensor": 4, "slot": "value", "sum": "0" * 16}]}, LOG, "#/sums/0", "UCP-D-158"),
        ("options", {"options": [{}]}, LOG, "#/options", "UCP-D-169"),
        ("values-tag", {"values": {"a": {"$what": 1}}}, "UCP-E-VALUE", "#/values/a", "UCP-R-023"),
        ("values-float", {"values": {"a": {"$float": "1"}}}, "UCP-E-VALUE", "#/values/a", "UCP-R-023"),
        ("options-float", {"options": [{"lr": {"$float": "0.5"}}, {}]}, "UCP-E-VALUE", "#/options/0/lr", "UCP-R-023"),
        ("schema-steps", {"steps": []}, "UCP-E-SCHEMA", "#/steps", "UCP-R-014"),
        ("schema-sum", {"sums": [{"tensor": 0, "slot": "value", "sum": "0"}]}, "UCP-E-SCHEMA", "#/sums/0", "UCP-R-014"),
        ("schema-member", {"surprise": 1}, "UCP-E-SCHEMA", "", "UCP-R-014"),
    ):  # fmt: skip
        yield bad(
            f"header-{name}", f"A header that is refused: {name}", (requirement,), _header(LAST, **members), [code],
            [LAST_KEY + at],
        )  # fmt: skip


def _steps() -> Iterator[Case]:
    w, mean, emb, bias = dense(0, bytes(48)), dense(1, bytes(8)), rows(2, [3], bytes(8)), dense(3, bytes(4))

    def last(*entries: dict[str, Any], **members: Any) -> Change:
        found = step(*entries, **{"options": LATER, **members})
        if found["options"] is None:
            del found["options"]
        return lambda draft: draft.batches.update({LAST: [found]})

    for name, change, at, requirement in (
        ("no-options", last(w, options=None), "", "UCP-D-164"),
        ("options-groups", last(w, options=LATER[:1]), "/options", "UCP-D-169"),
        ("no-piece", last(w, dense(4, b"")), "/entries/1", "UCP-D-160"),
        ("descending", last(mean, w), "/entries", "UCP-D-160"),
        ("piece-twice", last(w, w), "/entries", "UCP-D-160"),
        ("length", last(w, length=47), "/length", "UCP-D-161"),
        ("length-of-rows", last(w, {**emb, "count": 2}), "/length", "UCP-D-161"),
        ("length-of-places", last({**sparse(0, [1], bytes(4)), "count": 0}), "/length", "UCP-D-161"),
        ("skipped-gradient", last(w, skipped=True), "", "UCP-D-165"),
        ("value-sparse", last(sparse(1, [0], bytes(4))), "/entries/0", "UCP-D-166"),
        ("value-rows", last(rows(1, [0], bytes(4))), "/entries/0", "UCP-D-166"),
        ("rows-of-nothing", last(rows(3, [0], bytes(4))), "/entries/0", "UCP-D-163"),
        ("places-twice", last(sparse(0, [5, 5], bytes(8))), "", "UCP-D-163"),
        ("places-descend", last(sparse(0, [5, 4], bytes(8))), "", "UCP-D-163"),
        ("places-outside", last(sparse(0, [0, 12], bytes(8))), "", "UCP-D-163"),
        ("rows-twice", last(w, rows(2, [3, 3], bytes(16))), "", "UCP-D-163"),
        ("rows-descend", last(w, rows(2, [4, 3], bytes(16))), "", "UCP-D-163"),
        ("rows-outside", last(w, rows(2, [6], bytes(8))), "", "UCP-D-163"),
        ("places-count", last({**sparse(0, [1, 2], bytes(8)), "bytes": b"\1\0\0\0\1\0\2\0" + bytes(8)}), "", "UCP-D-163"),
        ("places-count-great", last({**sparse(0, [1, 2], bytes(8)), "bytes": b"\xff" * 4 + b"\1\0\2\0" + bytes(8)}), "", "UCP-D-163"),
    ):  # fmt: skip
        refused = LOG if requirement == "UCP-D-163" and name != "rows-of-nothing" else None
        yield bad(
            f"step-{name}", f"A step that is refused: {name}", (requirement,), change,
            at=[f"{LAST_KEY}#/steps/0{at}"], refused=refused,
        )  # fmt: skip
    for name, entry in (
        ("dense-count", {**w, "count": 12}),
        ("no-count", {name: value for name, value in emb.items() if name != "count"}),
        ("form", {**w, "form": "delta"}),
    ):
        yield bad(
            f"step-schema-{name}", f"An entry of another form: {name}", ("UCP-R-014",), last(entry, bias),
            ["UCP-E-SCHEMA"], [LAST_KEY],
        )  # fmt: skip
    yield bad(
        "step-schema-not-skipped", "A step of which is said that it was not skipped", ("UCP-R-014",),
        last(w, skipped=False), ["UCP-E-SCHEMA"], [f"{LAST_KEY}#/steps/0/skipped"],
    )  # fmt: skip
    yield bad(
        "step-of-another-rank", "An entry of the piece of another rank", ("UCP-D-160",),
        lambda draft: draft.batches[0, 0, 4].__setitem__(0, step(*of_two(4)[1][:1], options=LATER)),
        at=["batches/0/0/4.batch"],
    )  # fmt: skip


def _ranks() -> Iterator[Case]:
    """Yield steps of which ranks say different things: of step 3, which counts."""
    first, second = "batches/0/0/2.batch#/steps/1", "batches/0/1/3.batch#/steps/0"
    both = [first, second]

    def third(rank: int, found: dict[str, Any]) -> Change:
        key = (0, rank, 3 if rank else 2)
        return lambda draft: draft.batches[key].__setitem__(0 if rank else 1, found)

    theirs = of_two(3)[1]

    def silent(draft: LogDraft) -> None:
        third(0, step(options=LATER))(draft)
        third(1, step(options=LATER, skipped=True))(draft)

    for name, change, requirement in (
        ("some-pieces", third(1, step(theirs[1], options=LATER)), "UCP-D-167"),
        ("options", third(1, step(*theirs, options=OPTIONS)), "UCP-D-168"),
        ("skipped", silent, "UCP-D-168"),
        ("options-order", third(1, step(*theirs, options=LATER[::-1])), "UCP-D-168"),
        ("rows", third(1, step(rows(1, [0], bytes(8)), theirs[1], options=LATER)), "UCP-D-167"),
    ):
        yield bad(
            f"ranks-{name}", f"Ranks disagree of a step: {name}", (requirement,), change, at=both, refused=LOG
        )
    yield bad(
        "ranks-inherited", "Ranks have other options of a step that states none", ("UCP-D-168",),
        lambda draft: [
            draft.batches[0, 0, 0].__setitem__(0, step(*of_two(0)[0], options=LATER)),
            draft.batches[0, 0, 0].__setitem__(1, step(*of_two(1)[0], options=OPTIONS)),
            draft.batches[0, 1, 0].__setitem__(0, step(*of_two(0)[1], options=LATER)),
        ], at=["batches/0/0/0.batch", "batches/0/1/0.batch"], refused=LOG,
    )  # fmt: skip


def _checkpoints() -> Iterator[Case]:
    """Yield logs with nothing wrong, and checkpoints that they cannot be replayed from."""
    shapes = state()
    for name, draft_of, code, requirement in (
        ("other-log", lambda: checkpoint(shapes, 0, id="0" * 32), LOG, "UCP-R-039"),
        ("given-up", lambda: checkpoint(shapes, 5), LOG, "UCP-R-039"),
        ("before-its-epoch", lambda: checkpoint(shapes, 3, epoch=1), LOG, "UCP-R-039"),
        ("no-epoch", lambda: checkpoint(shapes, 4, epoch=2), LOG, "UCP-R-039"),
        ("shape", lambda: checkpoint({**shapes, "emb": ((4, 3), bytes(48))}, 0), "UCP-E-MISMATCH", "UCP-R-043"),
        ("no-atom", lambda: checkpoint({k: v for k, v in shapes.items() if k != "mean"}, 0), "UCP-E-MISMATCH", "UCP-R-043"),
    ):  # fmt: skip

        def put(draft: LogDraft, draft_of: Callable[[], Any] = draft_of) -> None:
            draft.checkpoints = {CHECKPOINT: draft_of()}

        yield bad(
            f"checkpoint-{name}", f"A checkpoint that the log does not go on from: {name}", (requirement,), put,
            codes=[], refused=code,
        )  # fmt: skip

    def no_log(draft: LogDraft) -> None:
        draft.checkpoints[CHECKPOINT].root["progress"].pop("log")

    yield bad(
        "checkpoint-without-log",
        "A checkpoint that names no log",
        ("UCP-R-039",),
        no_log,
        codes=[],
        refused=LOG,
    )
    yield bad(
        "checkpoint-removed", "Steps behind the checkpoint were removed", ("UCP-R-039",),
        then(*(without(f"batches/0/{key}.batch") for key in ("0/0", "0/2", "1/0", "1/3"))), codes=[], refused=LOG,
    )  # fmt: skip
    for name, members, code in (
        ("optimizer", {"optimizer": {"type": "torch.optim.SGD", "profile": {}}}, "UCP-E-MISMATCH"),
        ("dtype", {"tensors": [{**one, "dtype": "int32"} for one in TENSORS]}, "UCP-E-MISMATCH"),
    ):
        yield bad(
            f"replay-{name}", f"A log that is not of the small optimizer: {name}", ("UCP-R-043",),
            first_epoch(members), codes=[], refused=code,
        )  # fmt: skip
    for name, options in (
        ("momentum", [{"lr": 0.5, "momentum": 0.9}, {"lr": 0.1}]),
        ("no-rate", [{"lr": 0.5}, {}]),
        ("text-rate", [{"lr": "0.5"}, {"lr": 0.1}]),
        ("bool-rate", [{"lr": True}, {"lr": 0.1}]),
        ("long-rate", [{"lr": {"$int": "9007199254740993"}}, {"lr": 0.1}]),
    ):

        def given(draft: LogDraft, options: Any = options) -> None:
            for rank in (0, 1):
                draft.batches[0, rank, 0][0] = step(*of_two(0)[rank], options=options)
            draft.batches[0, 0, 2][0] = step(*of_two(2)[0], options=options, skipped=True)

        yield bad(
            f"replay-{name}", f"Options that the small optimizer has not: {name}", ("UCP-R-045",), given, codes=[],
            refused="UCP-E-MISMATCH",
        )  # fmt: skip
    yield log_case(
        "bad/logs/sums-differ", "A state whose sums are not those of the log", ("UCP-R-044",), with_sums(1),
        refused=LOG, mutates="good/parents/log", mutation="sums that differ",
    )  # fmt: skip
