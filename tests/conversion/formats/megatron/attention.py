"""``linear_qkv`` as query, key and value (transformer/attention.py, `SelfAttention.get_query_key_value_tensors`).

Rows come in query groups: the query heads of the group, its key head, its value head, each of ``kv_channels`` rows.
With an output gate the gates of the query heads stand between the queries and the key.
"""

from __future__ import annotations

from ucpformat.errors import error
from ucpformat.geometry import AtomMap, Box, Member

__all__ = ["qkv_map"]


def qkv_map(
    name: str,
    members: tuple[str, ...],
    *,
    heads: int,
    groups: int,
    head_dim: int,
    hidden: int | None,
) -> AtomMap:
    """Return the map between the fused tensor and its parts, in whichever direction it is composed.

    ``members`` are the names of query, key and value, or of query, gate, key and value. The fused tensor has
    the shape (groups * rows of a group, ``hidden``), a bias (``hidden`` None) the first of these alone; a part has
    its heads in order, as Hugging Face's ``q_proj``, ``k_proj`` and ``v_proj`` have them.

    Raises UCP-E-SHAPE where heads do not make whole groups, or there are not three or four names.
    """
    if groups < 1 or heads % groups or len(members) not in (3, 4):
        raise error("UCP-E-SHAPE", f"{heads} heads in {groups} groups and {len(members)} parts do not fit")
    queries = heads // groups
    counts = (queries,) * (len(members) - 2) + (1, 1)
    columns = () if hidden is None else (hidden,)
    view = (groups, sum(counts), head_dim, *columns)
    entries = []
    first = 0
    for member, count in zip(members, counts, strict=True):
        box = Box((0, first, *(0 for _ in view[2:])), (groups, count, *view[2:]))
        entries.append(Member(member, (groups * count * head_dim, *columns), box))
        first += count
    return AtomMap(name, (groups * sum(counts) * head_dim, *columns), view, tuple(entries))
