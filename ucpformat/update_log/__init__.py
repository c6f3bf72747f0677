"""Update logs: what each step of a job applied, beside its checkpoints (SPEC-UPDATE-LOGS)."""
