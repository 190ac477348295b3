"""Experiments: the tests of the lab, one per file, and what runs, judges and reports them."""
