"""Other vocabularies as steps (SPEC appendix A): what integers can say of them.

Reading a framework's own objects is the business of `ucpformat.state_dict` and `ucpformat.conversion`.
"""

from ucpformat.geometry.vocabulary.dtensor import (
    DTensorPartial,
    DTensorShard,
    dtensor_steps,
    ordered_dtensor_steps,
    shard_order,
)
from ucpformat.geometry.vocabulary.flat_parameter import (
    ALIGNED_BYTES,
    flat_parameter_places,
    flat_parameter_steps,
)
from ucpformat.geometry.vocabulary.fused import sub_parameter_steps
from ucpformat.geometry.vocabulary.spread import (
    named_sharding_steps,
    ratio_sizes,
    tied_steps,
    unequal_stages,
)
from ucpformat.geometry.vocabulary.universal import (
    averaged_steps,
    fragment_steps,
    fused_expert_steps,
    replicated_steps,
    unique_steps,
    vocabulary_steps,
)

__all__ = [
    "ALIGNED_BYTES",
    "DTensorPartial",
    "DTensorShard",
    "averaged_steps",
    "dtensor_steps",
    "flat_parameter_places",
    "flat_parameter_steps",
    "fragment_steps",
    "fused_expert_steps",
    "named_sharding_steps",
    "ordered_dtensor_steps",
    "ratio_sizes",
    "replicated_steps",
    "shard_order",
    "sub_parameter_steps",
    "tied_steps",
    "unequal_stages",
    "unique_steps",
    "vocabulary_steps",
]
