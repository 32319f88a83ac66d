"""Rehearsals without data: what results' shapes follow from, which values are known, and what is taken for others."""
