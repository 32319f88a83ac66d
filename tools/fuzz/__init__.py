"""Damaged and hostile files of every format that is read."""
