"""DeepSpeed: how it lays tensors out, and reading and writing of its checkpoints without it (SPEC appendix A)."""
