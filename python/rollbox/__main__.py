# SPDX-License-Identifier: Apache-2.0
"""The `rollbox` command of an installed package, and `python -m rollbox`.

It becomes the bundled program.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from rollbox._core import ffi


def main() -> NoReturn:
    """Executes the bundled program."""
    places = ffi.find_binary("rollbox")
    for place in places:
        if place.is_file():
            os.execv(place, ["rollbox", *sys.argv[1:]])
    print(
        "rollbox: the command-line program is not there; looked for " + ", ".join(map(str, places)),
        file=sys.stderr,
    )
    sys.exit(125)


if __name__ == "__main__":
    main()
