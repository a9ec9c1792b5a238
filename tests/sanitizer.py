"""A plugin of pytest, `-p sanitizer`: the native library is compiled with sanitizers. `make sanitize` runs it.

SANITIZER names them, as gcc's -fsanitize does. Their runtime has to be loaded before Python: LD_PRELOAD. What the tests
start (compilers, other Pythons) runs without it.
"""

from __future__ import annotations

import os

from daguerre.models.backends import library

NAMES = os.environ.get("SANITIZER", "address,undefined")

os.environ.pop("LD_PRELOAD", None)
library.FLAGS = (
    *library.FLAGS,
    *("-O0", "-g1", "-fno-omit-frame-pointer", f"-fsanitize={NAMES}"),
    *(("-fno-sanitize-recover=all",) if "undefined" in NAMES else ()),
)
