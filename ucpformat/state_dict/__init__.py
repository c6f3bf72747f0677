"""States of the running process: saved, loaded, moved between ranks (docs/torch.md)."""
