"""`python -m antiphase` is the `antiphase` command."""

from antiphase.cli import main

main()
