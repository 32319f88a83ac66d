"""Calls between the ranks of a job: the record of them, what is wrong in it, and PyTorch's format for it."""
