"""Ratios against peers, measured in one process with the alternatives interleaved."""
