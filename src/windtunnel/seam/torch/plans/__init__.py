"""How an operator is handled, before it runs: its plan, what it takes, what it refuses, the words it refuses with."""
