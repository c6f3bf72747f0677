"""How many ranks and stages the files say that there were, compared with the files that are here.

A copy that lacks all files of some ranks is a whole checkpoint to look at: each file that is left says how many there
were. Every number that any of them states is compared, so that half a model is never read as a whole one.
Source: DeepSpeed 0.19.8, ``runtime/engine.py`` (``_common_checkpoint_state``), ``runtime/pipe/topology.py``
(``PipelineParallelGrid``: ``mp_world_size`` counts stages times tensor-parallel ranks) and ``module_inject/layers.py``
(``collect_autotp_universal_checkpoint_info``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ucpformat.conversion.formats.deepspeed.experts.stacks import expert_name
from ucpformat.conversion.formats.deepspeed.files.states import ModelStates, OptimizerStates, Shapes
from ucpformat.tensor_files.fields import refused

__all__ = ["DATA", "MODEL", "STAGES", "TENSOR", "check_counts", "stated_by_model", "stated_by_optimizer"]

MODEL: Final = "model-parallel ranks"
TENSOR: Final = "tensor-parallel ranks"
STAGES: Final = "pipeline stages"
DATA: Final = "data-parallel ranks"


@dataclass(frozen=True, slots=True)
class Stated:
    """A number that a file states: ``count`` of ``of`` (`MODEL`, ...), under the name ``what``."""

    of: str
    count: int
    what: str
    at: str


def stated_by_model(model: ModelStates) -> Iterator[Stated]:
    """Return every number of ranks and stages that a model file states."""
    values, at = model.values, model.file.name
    dims = _mapping(values, "checkpoint_parallel_dimensions")
    stages, ranks = _count(dims.get("pp_degree")), _count(dims.get("tp_degree"))
    both = "pp_degree * tp_degree in checkpoint_parallel_dimensions"
    counts: list[tuple[str, object, str]] = [
        (MODEL, values.get("mp_world_size"), "mp_world_size"),
        (MODEL, stages * ranks, both),
        (DATA, values.get("dp_world_size"), "dp_world_size"),
        (STAGES, stages, "pp_degree"),
        (TENSOR, ranks, "tp_degree"),
        *_configured(values),
    ]
    info = _mapping(values, "universal_checkpoint_info")
    counts += [(TENSOR, count, "universal_checkpoint_info's affine_map") for count in _mapped_ranks(info)]
    return (Stated(of, _count(count), what, at) for of, count, what in counts if _count(count))


def stated_by_optimizer(states: OptimizerStates, groups: Sequence[Shapes]) -> Iterator[Stated]:
    """Yield every number of ranks that an optimizer's file states; ``groups`` are the names in its flat groups."""
    at = states.file.name
    for count, shapes in zip(states.counts, groups, strict=False):
        # Some of the ranks share a group of experts (`experts.ExpertRanks`).
        if not any(map(expert_name, shapes)):
            yield Stated(DATA, count, "partition_count", at)
    for of, stated, what in _configured(states.around):
        if _count(stated):
            yield Stated(of, _count(stated), what, at)


def _configured(values: Mapping[Any, Any]) -> Iterator[tuple[str, object, str]]:
    tensor_parallel = _mapping(_mapping(values, "ds_config"), "tensor_parallel")
    yield TENSOR, tensor_parallel.get("autotp_size"), "autotp_size in ds_config"


def _count(value: object) -> int:
    """Return a number of something, 0 where it is none."""
    return value if type(value) is int and value > 0 else 0


def _mapping(values: Mapping[Any, Any], name: str) -> Mapping[Any, Any]:
    member = values.get(name)
    return member if isinstance(member, dict) else {}


def _mapped_ranks(info: Mapping[Any, Any]) -> Sequence[int]:
    """Return how many tensor-parallel ranks the affine maps are of; each lists all ranks."""
    counts = dict[int, None]()
    for entry in _mapping(_mapping(info, "affine_map"), "params").values():
        ranks = _mapping(entry, "ranks") if isinstance(entry, dict) else {}
        if ranks and all(type(rank) is int for rank in ranks):
            counts[1 + max(ranks)] = None
    return list(counts)


def check_counts(
    stated: Iterable[Stated], there: Mapping[str, int], missing: Callable[[str, int], str]
) -> None:
    """Compare what files state with what is ``there``, by the same names and in that order; the rest is not known.

    ``missing(of, number)`` names the first file of the rank or stage that would come next.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE``, naming the file that states another number, and the one that is missing.
    """
    known = list(stated)
    for of, count in there.items():
        for one in known:
            if one.of != of or one.count == count:
                continue
            why = (
                f"{missing(of, count)} is missing; copy the files of all ranks into one directory"
                if count < one.count
                else "the files are from two saves"
            )
            raise refused(f"{one.what} says {one.count} {of}, and files of {count} are here: {why}", one.at)
