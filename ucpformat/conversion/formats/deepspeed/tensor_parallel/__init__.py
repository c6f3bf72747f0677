"""Merge the shards of DeepSpeed's tensor-parallel ranks, and cut tensors into them."""
