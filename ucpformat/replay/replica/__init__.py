"""A replica: a process beside the trainer that holds its state in host memory and makes each of its steps again."""
