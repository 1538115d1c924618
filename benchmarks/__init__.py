"""The speed of this program and of its peers; see README.md."""
