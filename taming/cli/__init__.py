"""The commands: each reads its configuration, checks it, and calls a workflow or the trainer."""
