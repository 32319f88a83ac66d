"""A small stand-in for the d2l package, for the mission's listings only: what they take for granted, no more."""
