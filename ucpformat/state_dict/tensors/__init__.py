"""Tensors of a state dict as this process holds them, and their layouts (docs/torch.md)."""
