"""What several report formats are made of: the summary, charts, tables, and the facts they show."""
