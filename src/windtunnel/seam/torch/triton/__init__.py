"""Triton kernels on emulated GPUs: computed by Triton's interpreter, one kernel on the machine, and watched closely.

Nothing here is imported before the program imports Triton.
"""
