"""The command `python -m tests.house`, which is `tests/tools/house.py`."""

from tests.tools.house import main

if __name__ == "__main__":
    main()
