"""`python -m mrsearch`: the command without its script."""

from mrsearch.cli import main

main()
