"""The dispatch mode that sees every operator, and the ways that operators take through it."""
