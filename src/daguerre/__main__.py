"""`python -m daguerre`: the command line."""

from daguerre.cli import main

if __name__ == "__main__":
    main()
