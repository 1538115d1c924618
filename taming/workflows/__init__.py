"""What the commands do, as plain typed functions: one file a command."""
