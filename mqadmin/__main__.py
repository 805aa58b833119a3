"""python -m mqadmin."""

from mqadmin.cli import main

if __name__ == "__main__":
    main()
