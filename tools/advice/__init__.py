"""Findings' promises, held to what a patch saves."""
