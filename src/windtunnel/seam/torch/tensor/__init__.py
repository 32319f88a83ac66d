"""Tensors and storages that say that they are on a GPU, and what makes, moves and describes them."""
