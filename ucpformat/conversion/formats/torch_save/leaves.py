"""Leaves of nested state dicts, wherever they lie, as one job: atoms by parameter, original paths kept."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.conversion.contract.sources import Whole
from ucpformat.conversion.formats.torch_save.numbering import (
    GROUPS,
    PARAMS,
    numbered_optimizers,
    parameter_names,
    renamed_state,
)
from ucpformat.errors import UcpError, error
from ucpformat.state_dict.keys.names import recognise
from ucpformat.state_dict.keys.origins import (
    SOURCE,
    alias_annotations,
    key_path,
    slot_annotations,
    state_document,
)
from ucpformat.state_dict.keys.paths import KeyPath, StatePath, dotted, flatten
from ucpformat.tensor_files.tagged import encode
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from ucpformat.conversion.contract.foreign import Lost
    from ucpformat.conversion.contract.job import ReadBox
    from ucpformat.jsonio import JsonValue

__all__ = ["NUMBERED", "Leaves", "TensorLeaf"]

NUMBERED: Final = "numbered"
"""The member of the state document's annotation that lists, of optimizers that numbered parameters, their names."""

_MODEL: Final = "model"


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """A tensor: what it is and how it is read. Leaves of equal ``memory`` are one tensor under several names."""

    dtype: str
    shape: tuple[int, ...]
    read: ReadBox
    memory: Hashable = None


@dataclass(slots=True)
class Leaves:
    """Tensors and encoded objects by path; ``models`` are paths of model state dicts, whatever they are called."""

    tensors: dict[StatePath, TensorLeaf] = field(default_factory=dict)
    objects: dict[StatePath, JsonValue] = field(default_factory=dict)
    models: dict[StatePath, None] = field(default_factory=dict)
    blobs: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    dropped: list[Lost] = field(default_factory=list)

    def add_file(self, file: TorchFile, tree: object, at: StatePath = ()) -> None:
        """Take a part of a file's tree, which is to lie at ``at``.

        Raises:
            ImportRefusedError: ``UCP-E-OBJECT``, naming file and entry, for what tagged values cannot express.
        """
        if not isinstance(tree, Mapping):
            if not at:
                kind = "tensor" if isinstance(tree, StoredTensor) else type(tree).__name__
                raise error("UCP-E-SOURCE", f"the file holds a {kind} and no state dict", at=file.name)
            tree = {at[-1]: tree}
            at = at[:-1]
        try:
            flat = flatten(tree, lambda item: isinstance(item, StoredTensor))
        except UcpError as refusal:
            raise error(refusal.code, f"{refusal.at}: {refusal.message}", at=file.name) from refusal
        if at and not flat:
            self.objects[at] = {}
        for path, leaf in flat.items():
            place = (*at, *path)
            if isinstance(leaf, StoredTensor):
                memory = (file.name, leaf.storage.name, leaf.start, leaf.shape, leaf.strides, leaf.dtype)
                self.tensors[place] = TensorLeaf(leaf.dtype, leaf.shape, Whole(file, leaf), memory)
            else:
                self.objects[place] = _encoded(file, dotted(place), leaf)

    def job(self, source_format: str, *, step: int | None = None, order: str = "") -> Job:
        """Return the whole job, with names by the rules of nested state dicts (`state_names`) and `numbering`.

        Raises:
            InvalidCheckpointError: ``UCP-E-NAME`` where two paths have one dotted name.
            MismatchError: ``UCP-E-MISMATCH`` where ``order`` is ``module`` and does not say which parameter is which.
        """
        numbered = self._numbered(order)
        job = self._job(source_format, step, numbered)
        gathered = {path: names for path, names in numbered.items() if dotted(path) in job.state.optimizers}
        if gathered.keys() != numbered.keys():
            job = self._job(source_format, step, gathered)
        if gathered:
            notes: dict[str, JsonValue] = {dotted(path): list(names) for path, names in gathered.items()}
            source = job.state.annotations[SOURCE]
            kept: dict[str, JsonValue] = dict(source) if isinstance(source, dict) else {}
            kept[NUMBERED] = notes
            job = replace(job, state=replace(job.state, annotations={**job.state.annotations, SOURCE: kept}))
        return job

    def _numbered(self, order: str) -> dict[StatePath, list[str]]:
        """Return names by number of the optimizers that number parameters, as far as they are known."""
        if order not in ("", "module"):
            raise error("UCP-E-MISMATCH", f"{order!r:.40} is no order; there is module", at="order")
        names_of: dict[StatePath, list[str]] = {}
        models = {path[: len(path) - 1] for path in self.tensors if self._seen(path, {})[-2:-1] == (_MODEL,)}
        if len(models) != 1:
            return names_of
        (model,) = models
        candidates: dict[str, tuple[int, ...]] = {}
        memories: set[Hashable] = set()
        for path, leaf in self.tensors.items():
            if path[:-1] == model and (leaf.memory is None or leaf.memory not in memories):
                candidates[str(path[-1])] = leaf.shape
                memories.add(leaf.memory)
        shapes = {path: leaf.shape for path, leaf in self.tensors.items()}
        for path, numbers in numbered_optimizers(self.objects).items():
            names = parameter_names(
                path, numbers, self.objects, shapes, candidates, in_order_of_module=order == "module"
            )
            if names is not None:
                names_of[path] = names
        return names_of

    def _job(self, source_format: str, step: int | None, numbered: Mapping[StatePath, Sequence[str]]) -> Job:
        names: dict[str, StatePath] = {}
        for path in (*self.tensors, *self.objects):
            if names.setdefault(dotted(path), path) != path:
                raise error("UCP-E-NAME", f"two entries have the name {dotted(path)!r:.200}; rename one")
        tensors = {dotted(path): self._seen(path, numbered) for path in self.tensors}
        objects = {dotted(path): self._seen(path, numbered) for path in self.objects}
        recognised = recognise(tensors, objects)
        stateful = {place.name for place in recognised.assignments.values() if place.slot != "value"}
        slots: dict[str, dict[str, SlotSpec]] = {}
        sources: list[SlotSource] = []
        tied: dict[str, list[str]] = {}
        owner_of: dict[Hashable, str] = {}
        for path, leaf in self.tensors.items():
            name = dotted(path)
            place = recognised.assignments[name]
            if place.slot == "value" and leaf.memory is not None and 0 not in leaf.shape:
                owner = owner_of.setdefault(leaf.memory, place.name)
                if owner != place.name and place.name not in stateful:
                    tied.setdefault(owner, []).append(name)
                    continue
            slots.setdefault(place.name, {})[place.slot] = SlotSpec(
                leaf.dtype, leaf.shape, annotations=slot_annotations(path)
            )
            sources.append(SlotSource(place.name, place.slot, leaf.read))
        atoms = [
            AtomSpec(
                name,
                specs,
                tuple(sorted({recognised.assignments[other].name for other in tied.get(name, ())} - {name})),
                alias_annotations([names[other] for other in tied.get(name, ())]),
            )
            for name, specs in slots.items()
        ]
        encoded = {dotted(path): value for path, value in self.objects.items()}
        for path, listed in numbered.items():
            for at, numbers in enumerate(numbered_optimizers(self.objects)[path]):
                encoded[dotted((*path, GROUPS, at, PARAMS))] = [listed[number] for number in numbers]
        state = state_document(source_format, encoded, names, objects, recognised, frozenset(slots))
        return Job(atoms, sources, state, self.blobs, step=step, dropped=self.dropped)

    def _seen(self, path: StatePath, numbered: Mapping[StatePath, Sequence[str]]) -> KeyPath:
        """Return the path as `recognise` takes it: a model's is called ``model``, and parameters by their names."""
        path = renamed_state(path, numbered)
        for model in self.models:
            if path[: len(model)] == model:
                return key_path((*model[:-1], _MODEL, *path[len(model) :]))
        return key_path(path)


def _encoded(file: TorchFile, name: str, value: object) -> Any:
    try:
        return encode(file.plain(value), at=name)
    except UcpError as refusal:
        raise error(refusal.code, f"{name!r:.200}: {refusal.message}", at=file.name) from refusal
