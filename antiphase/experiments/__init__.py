"""The tests of the lab, one a file."""
