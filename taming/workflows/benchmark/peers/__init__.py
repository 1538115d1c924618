"""Other programs to compare with: files that run with another Python and import nothing of ours."""
