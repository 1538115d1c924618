"""The report about training runs: one HTML file that works without a network."""
