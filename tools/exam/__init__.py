"""The clock's exam: other people's programs, unmodified, beside the times that they published."""
