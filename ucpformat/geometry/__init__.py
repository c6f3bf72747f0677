"""The pure core (SPEC sections 12, 13, 16.1, 17.2): boxes, layouts, lowering, cover, transfer, chunk grids.

Integers only: no I/O, no JSON, no arrays. Everything is immutable; errors are those of `ucpformat.errors`.
"""

from ucpformat.geometry.atom_map import (
    AtomCopy,
    AtomMap,
    Member,
    NameMap,
    compose_atoms,
    concatenated,
    member_reads,
    stacked,
)
from ucpformat.geometry.box import (
    Box,
    Runs,
    decompose_flat_range,
    element_count,
    row_major_strides,
    runs,
    strided_runs,
)
from ucpformat.geometry.box_index import BoxIndex
from ucpformat.geometry.buffer import BufferPlace
from ucpformat.geometry.buffer_check import PlacedTensor, buffer_faults, buffer_head, buffer_tail
from ucpformat.geometry.canonical import canonical
from ucpformat.geometry.cover import (
    CoverFault,
    check_cover,
    covers,
    distinct_boxes,
    exact_cover,
    first_gap,
    first_overlap,
)
from ucpformat.geometry.exchange import Exchange, RankPlan, plan_transfer
from ucpformat.geometry.explicit import ExplicitHoldings, LocalBox, local_map_of
from ucpformat.geometry.grid import ChunkGrid, chunk_grid
from ucpformat.geometry.group import BufferMember, buffer_places
from ucpformat.geometry.held import HeldBox, held_boxes
from ucpformat.geometry.layout import Layout
from ucpformat.geometry.lower import Lowering, lower
from ucpformat.geometry.mesh import Axis, Coordinate, Mesh, MeshAxis, RaggedAxis
from ucpformat.geometry.piece import Holdings, LocalMap, Piece, Region, Strided
from ucpformat.geometry.rank_planner import ExchangeTable, RankPlanner, Spread
from ucpformat.geometry.refine import common_refinement, seen_in
from ucpformat.geometry.steps import (
    BlockRule,
    Blocks,
    Concat,
    Flatten,
    Join,
    LocalOnly,
    Only,
    Pad,
    Partial,
    Permute,
    Reduce,
    Resize,
    Rule,
    RuleName,
    Scale,
    Shard,
    Step,
    View,
)
from ucpformat.geometry.traffic import Amount, Traffic, traffic
from ucpformat.geometry.transfer import (
    Copy,
    Move,
    TransferPlan,
    coalesced,
    extract,
    intersect_box,
    invert,
)
from ucpformat.geometry.vocabulary import (
    DTensorPartial,
    DTensorShard,
    dtensor_steps,
    named_sharding_steps,
    ratio_sizes,
    sub_parameter_steps,
)

__all__ = [
    "Amount",
    "AtomCopy",
    "AtomMap",
    "Axis",
    "BlockRule",
    "Blocks",
    "Box",
    "BoxIndex",
    "BufferMember",
    "BufferPlace",
    "ChunkGrid",
    "Concat",
    "Coordinate",
    "Copy",
    "CoverFault",
    "DTensorPartial",
    "DTensorShard",
    "Exchange",
    "ExchangeTable",
    "ExplicitHoldings",
    "Flatten",
    "HeldBox",
    "Holdings",
    "Join",
    "Layout",
    "LocalBox",
    "LocalMap",
    "LocalOnly",
    "Lowering",
    "Member",
    "Mesh",
    "MeshAxis",
    "Move",
    "NameMap",
    "Only",
    "Pad",
    "Partial",
    "Permute",
    "Piece",
    "PlacedTensor",
    "RaggedAxis",
    "RankPlan",
    "RankPlanner",
    "Reduce",
    "Region",
    "Resize",
    "Rule",
    "RuleName",
    "Runs",
    "Scale",
    "Shard",
    "Spread",
    "Step",
    "Strided",
    "Traffic",
    "TransferPlan",
    "View",
    "buffer_faults",
    "buffer_head",
    "buffer_places",
    "buffer_tail",
    "canonical",
    "check_cover",
    "chunk_grid",
    "coalesced",
    "common_refinement",
    "compose_atoms",
    "concatenated",
    "covers",
    "decompose_flat_range",
    "distinct_boxes",
    "dtensor_steps",
    "element_count",
    "exact_cover",
    "extract",
    "first_gap",
    "first_overlap",
    "held_boxes",
    "intersect_box",
    "invert",
    "local_map_of",
    "lower",
    "member_reads",
    "named_sharding_steps",
    "plan_transfer",
    "ratio_sizes",
    "row_major_strides",
    "runs",
    "seen_in",
    "stacked",
    "strided_runs",
    "sub_parameter_steps",
    "traffic",
]
