"""The speed of this program beside others; see README.md."""
