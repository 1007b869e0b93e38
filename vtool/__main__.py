"""`python -m vtool`."""

from vtool.cli.app import main

if __name__ == "__main__":
    main()
