"""Makes the static vectors: `python -m generate` from the folder above."""
