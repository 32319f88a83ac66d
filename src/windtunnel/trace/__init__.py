"""What happened, as plain data: operations, the columns they leave behind, and findings."""
