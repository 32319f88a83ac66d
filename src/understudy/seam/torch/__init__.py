"""The seam into PyTorch: tags on storages say which emulated device a tensor lives on; the values stay ordinary CPU ones."""
