"""Let `python -m assay` be the command `assay`."""

from assay.cli import main

if __name__ == "__main__":
    main()
