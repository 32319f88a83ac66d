"""Fits of the cost model's constants on published measurements."""
