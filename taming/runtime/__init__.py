"""Errors, process groups, hardware, precision contexts and versions."""
