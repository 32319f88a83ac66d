"""How each instruction of the table is emitted."""
