"""The explorer: attention maps of one or two models in a browser, edited and recomputed."""
