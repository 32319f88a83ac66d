"""Random injected faults beside an oracle."""
