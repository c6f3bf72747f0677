"""A run of increments as a state machine: whatever becomes of the others, each is whole under every layout (SPEC 8.5).

Saves, increments, removals and replacements in any order and in the middle of a save, deaths of writers, damage,
flattening, copies and collections; plain, packed and compressed; in a directory and in an object store.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import ucpformat as ucp
from tests.builders import STORAGES
from tests.geometry.model import local_array
from tests.media import Bucket, Directory, Killed, Medium, before, killed
from tests.test_increments import FORMS, SHAPES, Arrays, check, fresh, save
from ucpformat.conversion.contract.registry import UCP
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.copying import copy_checkpoint
from ucpformat.errors import UcpError
from ucpformat.geometry import Layout, Mesh, MeshAxis, Shard, lower
from ucpformat.manager.collection import collect
from ucpformat.manager.retention import Retention
from ucpformat.manager.run_directory import open_run
from ucpformat.model.root import Storage

NUMBERS: Final = st.integers(0, 20)
LAYOUTS: Final = (
    Layout(Mesh((MeshAxis("dp", 2),)), (Shard("dp", 0, "balanced"),)),
    Layout(Mesh((MeshAxis("tp", 3),)), (Shard("tp", 1, "ceil"),)),
    Layout(
        Mesh((MeshAxis("dp", 2), MeshAxis("tp", 2))), (Shard("dp", 0, "ceil"), Shard("tp", 1, "balanced"))
    ),
)
"""By rows, by columns, and by both; beside them everything is read whole."""


def check_layouts(path: str, arrays: Arrays) -> None:
    """Every rank of every layout gets its bytes."""
    with ucp.open(path) as ckpt:
        for name, array in arrays.items():
            for layout in LAYOUTS:
                if array.ndim <= max(step.dim for step in layout.steps if isinstance(step, Shard)):
                    continue
                lowering = lower(layout, array.shape)
                for coordinate in layout.mesh.coordinates():
                    where = {axis.name: at for axis, at in zip(layout.mesh.axes, coordinate, strict=True)}
                    found, pieces = ckpt.read(name, layout=layout, coord=where), lowering.at(coordinate)
                    assert found is not None
                    assert pieces is not None
                    assert np.array_equal(found, local_array(pieces, array).astype(array.dtype)), (
                        name,
                        where,
                    )


def convert(source: str, path: str, storage: Storage) -> None:
    convert_checkpoint(
        source,
        path,
        source_format=UCP,
        destination_format=UCP,
        storage=storage,
        engine=EngineOptions(durability="none", workers=1, pool="threads"),
    )


class Increments(RuleBasedStateMachine):
    """``kept`` are the arrays of each checkpoint that is there and whole, ``forms`` the form of each that ever was.

    ``debris`` are places in which writers have died, each with the form of what they wrote.
    """

    medium: Callable[[], Medium]

    def __init__(self) -> None:
        super().__init__()
        self.place = type(self).medium()
        self.quick = mock.patch("os.fsync")
        self.quick.start()
        self.arrays = fresh()
        self.kept: dict[str, Arrays] = {}
        self.forms: dict[str, str] = {}
        self.debris: dict[str, str] = {}
        self.count = 0

    def teardown(self) -> None:
        try:
            self.whole()
        finally:
            self.quick.stop()
            self.place.close()

    def new(self) -> str:
        self.count += 1
        return f"{self.place.url}/step-{self.count}.ucp"

    def is_any(self) -> bool:
        return any(map(self.place.exists, self.forms))

    def keep(self, path: str, form: str, arrays: Arrays | None = None) -> None:
        arrays = self.arrays if arrays is None else arrays
        check(path, arrays)
        check_layouts(path, arrays)
        self.kept[path] = {name: array.copy() for name, array in arrays.items()}
        self.forms[path] = form
        self.debris.pop(path, None)

    def is_committed(self, path: str) -> bool:
        try:
            ucp.open(path).close()
        except UcpError as problem:
            assert problem.code == "UCP-E-NOT-FOUND"  # noqa: PT017 - another path goes on
            return False
        return True

    @rule(name=st.sampled_from(sorted(SHAPES)), at=st.integers(0, 200), value=st.integers(0, 3))
    def change(self, name: str, at: int, value: int) -> None:
        flat = self.arrays[name].reshape(-1)
        flat[at % flat.size] = value

    @rule(rows=st.lists(st.integers(0, 89), max_size=6), value=st.integers(1, 1 << 20))
    def overwrite(self, rows: list[int], value: int) -> None:
        self.arrays["table"][rows] = value

    @rule(name=st.sampled_from(["rows", "vector"]), value=st.sampled_from([0, 5]))
    def fill(self, name: str, value: int) -> None:
        self.arrays[name][...] = value

    @initialize(chunk_bytes=st.sampled_from([64, 1600]), form=st.sampled_from(FORMS))
    def begin(self, chunk_bytes: int, form: str) -> None:
        self.chunk_bytes = chunk_bytes
        self.save(form)

    def save(
        self, form: str, ranks: int = 1, dim: int = 0, base: str | None = None, path: str | None = None
    ) -> None:
        path = path or self.new()
        save(path, self.arrays, base=base, form=form, ranks=ranks, dim=dim, chunk_bytes=self.chunk_bytes)
        self.keep(path, form)

    def there(self, number: int) -> str:
        """One of those that are there, whole or damaged."""
        found = [path for path in self.forms if self.place.exists(path)]
        return found[number % len(found)]

    @rule(form=st.sampled_from(FORMS), ranks=st.integers(1, 3), dim=st.integers(0, 1))
    def full(self, form: str, ranks: int, dim: int) -> None:
        self.save(form, ranks, dim)

    @precondition(lambda self: self.is_any())
    @rule(number=NUMBERS, row=st.integers(0, 89), ranks=st.integers(1, 3), dim=st.integers(0, 1))
    def increment(self, number: int, row: int, ranks: int, dim: int) -> None:
        """Of one that is whole or damaged, by other ranks."""
        base = self.there(number)
        self.arrays["table"][row] += 1
        self.save(self.forms[base], ranks, dim, base)

    @precondition(lambda self: self.is_any())
    @rule(number=NUMBERS, form=st.sampled_from(FORMS), is_gone=st.booleans())
    def increment_of_another_form(self, number: int, form: str, is_gone: bool) -> None:
        """Another compressor shares nothing; another storage, and a base that is not there, are refused."""
        base = f"{self.place.url}/gone.ucp" if is_gone else self.there(number)
        if not is_gone and (self.forms[base] == "plain") == (form == "plain"):
            self.save(form, base=base)
            return
        path = self.new()
        with pytest.raises(UcpError, match="UCP-E-NOT-FOUND" if is_gone else "UCP-E-MISMATCH"):
            save(path, self.arrays, base=base, form=form, chunk_bytes=self.chunk_bytes)
        assert not self.is_committed(path)

    def gone(self, path: str) -> None:
        self.place.remove(path)
        self.kept.pop(path, None)

    @precondition(lambda self: self.is_any())
    @rule(number=NUMBERS)
    def remove(self, number: int) -> None:
        self.gone(self.there(number))
        self.whole()

    @precondition(lambda self: self.is_any())
    @rule(number=NUMBERS, form=st.sampled_from(FORMS), ranks=st.integers(1, 2))
    def replace(self, number: int, form: str, ranks: int) -> None:
        """By another checkpoint of the same name, with which increments of the first share nothing."""
        path = self.there(number)
        self.gone(path)
        self.arrays["vector"] += 1
        self.save(form, ranks, path=path)
        self.whole()

    @precondition(lambda self: self.is_any())
    @rule(number=NUMBERS, call=st.integers(1, 4), is_replaced=st.booleans(), ranks=st.integers(1, 2))
    def lose_the_base_meanwhile(self, number: int, call: int, is_replaced: bool, ranks: int) -> None:
        """Before something of it is shared, it is removed, or replaced: the increment is whole, or is not."""
        base, path = self.there(number), self.new()
        form, others = self.forms[base], {name: array + 3 for name, array in self.arrays.items()}

        def lose() -> None:
            self.gone(base)
            if is_replaced:
                save(base, others, form=form, chunk_bytes=self.chunk_bytes)
                self.keep(base, form, others)

        with before("share", call, lose), suppress(UcpError):
            save(path, self.arrays, base=base, form=form, ranks=ranks, chunk_bytes=self.chunk_bytes)
        if self.is_committed(path):
            self.keep(path, form)
        elif self.place.exists(path):
            self.debris[path] = form
        self.whole()

    @precondition(lambda self: self.is_any())
    @rule(
        number=NUMBERS,
        form=st.sampled_from(FORMS),
        calls=st.integers(1, 30),
        is_done=st.booleans(),
        ranks=st.integers(1, 2),
        is_increment=st.booleans(),
    )
    def die(self, number: int, form: str, calls: int, is_done: bool, ranks: int, is_increment: bool) -> None:
        """All ranks of a save die at any call of the store: the base is whole, and so is what was committed."""
        path, base = self.new(), self.there(number) if is_increment else None
        form = form if base is None else self.forms[base]
        try:
            with killed(calls, is_done=is_done):
                save(path, self.arrays, base=base, form=form, ranks=ranks, chunk_bytes=self.chunk_bytes)
        except Killed:
            pass
        if self.is_committed(path):
            self.keep(path, form)
        elif self.place.exists(path):
            self.debris[path] = form
        self.whole()

    @precondition(lambda self: self.debris)
    @rule(number=NUMBERS, form=st.sampled_from(FORMS))
    def save_over_debris(self, number: int, form: str) -> None:
        """What a writer has left is in nobody's way, but to storage plain in a store: its keys are the same."""
        path = [*self.debris][number % len(self.debris)]
        if form == "plain" and isinstance(self.place, Bucket):
            with pytest.raises(UcpError, match="UCP-E-EXISTS"):
                self.save(form, path=path)
            return
        if self.debris[path] == "plain" and isinstance(self.place, Bucket):
            return  # a writer with a claim may still be alive there
        self.save(form, path=path)

    @precondition(lambda self: self.is_any())
    @rule(number=NUMBERS, file=st.integers(0, 50), place=st.integers(0, 10000))
    def damage(self, number: int, file: int, place: int) -> None:
        """Replace a file by one that is damaged: the others have the old one."""
        path = self.there(number)
        files = self.place.files(path)
        self.place.damage(files[file % len(files)], place)
        self.kept.pop(path, None)

    @precondition(lambda self: self.is_any())
    @rule(number=NUMBERS, storage=st.sampled_from(STORAGES))
    def flatten(self, number: int, storage: Storage) -> None:
        """Into a checkpoint of its own, of any storage."""
        source = self.there(number)
        self.take(source, lambda path: convert(source, path, storage), storage)

    @precondition(lambda self: self.is_any())
    @rule(number=NUMBERS)
    def copy(self, number: int) -> None:
        source = self.there(number)
        self.take(source, lambda path: copy_checkpoint(source, path, durability="none"), self.forms[source])

    def take(self, source: str, take: Callable[[str], object], form: str) -> None:
        """What is whole is taken whole, and shares nothing; what is damaged is refused, or has no such bytes."""
        path = self.new()
        if source in self.kept:
            take(path)
            assert self.place.shares_nothing(path)
            self.keep(path, form, self.kept[source])
            return
        with suppress(UcpError):
            take(path)
        if self.is_committed(path):
            self.place.remove(path)

    @rule(keep=st.integers(1, 4))
    def collect(self, keep: int) -> None:
        """Remove all but the newest, or nothing where the one that stays has lost a file; and what was left."""
        run = open_run(self.place.url)
        steps = run.steps()
        found = collect(run, Retention(last=keep), debris_age=0)
        assert all(self.place.exists(f"{self.place.url}/step-{step}.ucp") for step in steps[-keep:])
        for path in [path for path in self.kept if not self.place.exists(path)]:
            assert path.rpartition("/")[2] in found.removed
            del self.kept[path]
        assert not any(map(self.place.exists, self.debris))
        self.debris.clear()

    def whole(self) -> None:
        for path, arrays in self.kept.items():
            check(path, arrays)
            check_layouts(path, arrays)


_profile = settings.default
assert _profile is not None
_IS_LONG: Final = _profile.max_examples > 40
"""`make test-nightly` runs ten times as many runs, and longer ones."""

_settings: Final = settings(
    max_examples=_profile.max_examples * 3 // 4 if _profile.max_examples <= 400 else 300,
    stateful_step_count=40 if _IS_LONG else 16,
    deadline=None,
)


class IncrementsInDirectory(Increments):
    medium = Directory


class IncrementsInStore(Increments):
    medium = Bucket


TestIncrementsInDirectory = IncrementsInDirectory.TestCase
TestIncrementsInDirectory.settings = _settings
TestIncrementsInStore = IncrementsInStore.TestCase
TestIncrementsInStore.settings = _settings
