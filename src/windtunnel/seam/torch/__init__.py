"""The seam into PyTorch: tags on storages say where a tensor lives; the values stay ordinary CPU ones."""
