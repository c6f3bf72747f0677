"""Writing universal checkpoints from jobs: batches, workers anywhere, one journal, one commit (docs/convert.md)."""
