"""`python -m antiphase.cli` is the `antiphase` command."""

from antiphase.cli import main

main()
