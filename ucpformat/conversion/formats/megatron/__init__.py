"""Megatron-core: what its placements are in our vocabulary, its checkpoints in and out (docs/frameworks/megatron.md).

The lowerings are integers and need neither torch nor Megatron. File names in this room are those of megatron-core
0.16.1, below ``megatron/core/``.
"""
