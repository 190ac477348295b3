"""Colours, markers, line styles and fill patterns of every figure in the package.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart. Series differ in
marker and pattern, too, so that figures work without colour. Styles come in the notation of each
drawing library, in the same order.
"""

from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DIVERGING = (COLOURS[1], "#FFFFFF", COLOURS[0])  # below zero, zero, above zero

MATPLOTLIB_MARKERS = ("o", "s", "D", "P", "X", "^", "*")
MATPLOTLIB_LINES = ("-", "--", ":", "-.")
MATPLOTLIB_HATCHES = ("", "//", "xx", "..", "\\\\")

PLOTLY_MARKERS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star")
PLOTLY_LINES = ("solid", "dash", "dot", "dashdot")
PLOTLY_PATTERNS = ("", "/", "x", ".", "\\")


def diverging_colormap() -> Any:
    """Return the colours of signed values as a matplotlib colormap."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("diverging", DIVERGING)


def style(options: tuple[str, ...], index: int) -> str:
    """Return the style of a series; more series than styles start again."""
    return options[index % len(options)]
