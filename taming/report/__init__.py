"""The report on training runs: one HTML file, which needs no network to be looked at."""
