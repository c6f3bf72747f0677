"""The settings ``map`` and ``map_parameters`` of formats that hold one naming of a model: which atom maps, which way.

``map`` lists atom maps, joined by commas and applied in that order: names of ready-made ones or files, each with
``:left`` or ``:right`` behind it for the side that is wanted; without, it is the side that fits. Parameters of maps
that nobody gives are taken from the model's ``config.json``, where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from ucpformat.conversion.contract.mapped import mapped_job
from ucpformat.conversion.contract.registry import named_document, named_integers
from ucpformat.errors import UcpError, error
from ucpformat.jsonio import loads
from ucpformat.patterns import atom_map_names, load_atom_map, parse_atom_map

if TYPE_CHECKING:
    from ucpformat.conversion.contract.job import Job
    from ucpformat.jsonio import JsonValue
    from ucpformat.patterns import AtomMapDocument
    from ucpformat.patterns.atom_mapping import Direction

__all__ = ["CONFIG", "apply_maps"]

CONFIG: Final = "config.json"

# Names of transformers' configurations (PretrainedConfig.attribute_map and its models) for what maps ask for.
_IN_CONFIG: Final[Mapping[str, tuple[str, ...]]] = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "ffn": ("moe_intermediate_size", "intermediate_size", "n_inner"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "layers": ("num_hidden_layers", "n_layer"),
}


def apply_maps(job: Job, settings: Mapping[str, str]) -> tuple[Job, list[str]]:
    """Return ``job`` through the maps that ``settings`` ask for, and the ``atom/slot`` that they leave out.

    Raises:
        UcpError: ``UCP-E-PATTERN`` for a map that is not there or parameters that are none of its, ``UCP-E-MISMATCH``
            for one of which neither side, or either, fits; and as `mapped_job`.
    """
    given = named_integers(settings.get("map_parameters", ""), at="map_parameters")
    unused = set(given)
    dropped: list[str] = []
    for text in filter(None, settings.get("map", "").split(",")):
        name, colon, side = text.rpartition(":")
        if side not in ("left", "right"):
            name, colon, side = text, "", ""
        document = named_document(name, "the atom map", atom_map_names(), load_atom_map, parse_atom_map)
        known = [entry.name for entry in document.parameters.entries]
        unused -= set(known)
        parameters = _from_config(job, known) | {key: given[key] for key in known if key in given}
        if colon:
            job, left = mapped_job(job, document, parameters, towards=cast("Direction", side))
        else:
            job, left = _fitting(job, document, parameters, name)
        dropped += left
    if unused:
        raise error(
            "UCP-E-PATTERN", f"no map has the parameter {min(unused)!r}; see `map`", at="map_parameters"
        )
    return job, dropped


def _fitting(
    job: Job, document: AtomMapDocument, parameters: Mapping[str, int], name: str
) -> tuple[Job, list[str]]:
    fitting = []
    refusals: list[UcpError] = []
    directions: tuple[Direction, ...] = ("right", "left")
    for towards in directions:
        try:
            fitting.append(mapped_job(job, document, parameters, towards=towards))
        except UcpError as refusal:
            refusals.append(refusal)
    # A side whose names are there already is none that is wanted.
    names = {atom.name for atom in job.atoms}
    changing = [one for one in fitting if {atom.name for atom in one[0].atoms} != names] or fitting
    if len(changing) == 1:
        return changing[0]
    if fitting:
        raise error(
            "UCP-E-MISMATCH", f"the map {name!r} fits either way: say {name}:left or {name}:right", at="map"
        )
    # What is missing altogether says less than what almost fits.
    chosen = next((refusal for refusal in refusals if refusal.code != "UCP-E-UNMATCHED"), refusals[0])
    raise error(chosen.code, f"the map {name!r} fits neither way: {chosen.message}", at=chosen.at)


def _from_config(job: Job, names: list[str]) -> dict[str, int]:
    config = _config(job)
    parameters = {}
    for name in names:
        for key in _IN_CONFIG.get(name, ()):
            value = config.get(key)
            if type(value) is int and value > 0:
                parameters[name] = value
                break
    return parameters


def _config(job: Job) -> Mapping[str, JsonValue]:
    """Return the model's configuration; of one with several parts, that of its text model."""
    _, data = job.blobs.get(CONFIG, ("", b"{}"))
    try:
        config = loads(data, at=CONFIG)
    except UcpError:
        return {}  # it is carried as it is, and is nobody's concern but for defaults
    if not isinstance(config, dict):
        return {}
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config
