"""Entry point of `python -m llmir`."""

from llmir.cli.main import main

if __name__ == "__main__":
    main()
