"""`python -m rlsweep`."""

from rlsweep.cli import main

main(prog_name="rlsweep")
