"""The report on training runs: one HTML file that works without a network."""
