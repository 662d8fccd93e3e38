"""`python -m pdecnn` is the `pdecnn` command."""

from pdecnn.cli import main

main()
