"""Update logs: documents, batches, chains and branches."""
