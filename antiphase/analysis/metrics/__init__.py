"""Metrics on attention maps: pure functions on tensors, one family per file.

Shapes: maps A are [B, h, n, T] (n captured rows of T keys), masks of key positions [B, n, T]. R, S
and I are the relevant, sink and irrelevant positions of `GroundTruth`, own those of the query.
"""
