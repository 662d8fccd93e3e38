"""`python -m pdecnn` is the `pdecnn` command; `torchrun -m pdecnn train ...` needs it."""

from pdecnn.cli import main

if __name__ == "__main__":
    main()
