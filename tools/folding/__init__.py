"""Compares clusters that few processes play with the same ranks as real processes."""
