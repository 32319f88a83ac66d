"""What is known of operators beyond their schemas: a card each, from the rows of this folder's TOML files.

A file is a family. It has a table for each class of kernel, with what the cost model must know of the class, and the
class's operators: `rows` has one a line with what is known of it (the fields of `card.Card`), several names where they
share everything; `results_only` are those of which that field is all that is known, `names` those of which nothing is.
An operator stands in one place. Its in-place form shares its facts, save those that a row of its own states.
"""
