"""A plugin of pytest, `-p sanitizer`: the compiled libraries are compiled with sanitizers. `make sanitize` runs it.

SANITIZER names them, as gcc's -fsanitize does. Their runtime has to be loaded before Python: LD_PRELOAD. What the tests
start (compilers, other Pythons) runs without it.
"""

from __future__ import annotations

import os
from dataclasses import replace

from daguerre.models.backends import library
from daguerre.sampling.constraints import compiled as constraints

NAMES = os.environ.get("SANITIZER", "address,undefined")

os.environ.pop("LD_PRELOAD", None)
ADDED = (
    *("-O1", "-g1", "-fno-omit-frame-pointer", f"-fsanitize={NAMES}"),
    *(("-fno-sanitize-recover=all",) if "undefined" in NAMES else ()),
)
library.NATIVE = replace(library.NATIVE, flags=(*library.NATIVE.flags, *ADDED))
added = ("-D_GLIBCXX_ASSERTIONS", *ADDED)
constraints.CONSTRAINTS = replace(constraints.CONSTRAINTS, flags=(*constraints.CONSTRAINTS.flags, *added))
