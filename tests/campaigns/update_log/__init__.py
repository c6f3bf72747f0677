"""Update logs over a thousand steps, and of jobs that are killed at any call that touches a file."""
