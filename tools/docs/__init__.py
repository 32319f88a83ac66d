"""Pages of the documentation that a program writes."""
