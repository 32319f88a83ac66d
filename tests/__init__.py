"""The tests. A package for the sake of `tools`, which reads the corpus of `checks/`."""
