"""What maps are measured by: pure functions, one family a file."""
