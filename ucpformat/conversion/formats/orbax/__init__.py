"""Orbax's checkpoints of PyTrees, in and out, by TensorStore alone: neither JAX nor Orbax is needed."""
