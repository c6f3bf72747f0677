"""Read and write DeepSpeed's universal checkpoints."""
