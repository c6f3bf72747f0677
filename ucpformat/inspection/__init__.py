"""What a checkpoint holds, for people and programs: its description, a tree of its modules, values in plain words."""
