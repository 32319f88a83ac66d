"""The sdist and the wheel, built and tried."""
