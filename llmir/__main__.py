"""`python -m llmir`."""

from llmir.cli import main

if __name__ == "__main__":
    main()
