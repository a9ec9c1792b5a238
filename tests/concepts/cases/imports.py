"""Imports, and what else stands at the top level of modules."""

from concepts.cases import Case

CASES = {
    "import_statement": Case(
        yes=("«import os»\n", "«import os.path as p, sys»\n"),
        no=("from os import path\n", "__import__('os')\n"),
        tricky=(
            "# import os\ns = 'import os'\nimport_ = 1\n",
            "def f(): «import os»; «import \\\n  sys»\n",
            "if x: «import ünï»\n",
        ),
    ),
    "from_import": Case(
        yes=("«from os import path»\n", "«from . import x»\n", "«from a import *»\n"),
        no=("import os\n", "raise x from y\n"),
        tricky=(
            "def f(): yield from g()\n'''\nfrom os import path\n'''\n",
            "try: «from a import (  # from b import c\n\tb,\n\tc as d,\n)»\nexcept A: ...\n",
        ),
    ),
    "import_alias": Case(
        yes=("import «numpy as np»\n", "from os import path, «sep as s», «name as n»\n"),
        no=("import numpy\nfrom os import path\n", "with open(x) as f: ...\n"),
        tricky=(
            "from a import (b,  # b as c\n  «c \\\n  as d»)\n",
            "import «a.b as a», c\ntry: ...\nexcept A as b: ...\n",
            "match x:\n    case 1 as y: from . import «ü as v»\n",
            "from a import «b as b», as_\n",
        ),
    ),
    "relative_import": Case(
        yes=("«from . import a»\n", "«from ..b import c»\n", "«from ... import *»\n"),
        no=("from a.b import c\nimport a.b\n",),
        tricky=(
            "s = 'from . import a'  # from . import a\n",
            "def f(): «from .\\\n  a import (b)»\n",
            "from a import b; b.c\n",
        ),
    ),
    "future_import": Case(
        yes=("«from __future__ import annotations»\n",),
        no=("from future import x\nfrom os import path\n",),
        tricky=(
            "import __future__\n__future__.annotations\n",
            "from .__future__ import annotations\n",
            "# from __future__ import annotations\n"
            "«from __future__ import (division as d, annotations)»; x = '__future__'\n",
        ),
    ),
    "optional_import": Case(
        yes=(
            "try:\n    «import json»\nexcept ImportError:\n    json = None\n",
            "try:\n    «from a import b»\nexcept (OSError, ModuleNotFoundError):\n    pass\n",
        ),
        no=(
            "try:\n    import json\nexcept OSError:\n    pass\n",
            "try:\n    f()\nexcept ImportError:\n    import json\n",
            "import json\n",
        ),
        tricky=(
            "try:\n    with w: «import a»\nexcept (ImportError): import b\nelse: import c\nfinally: import d\n",
            "try:\n    def f():\n        import a\n    class A: import b\nexcept ImportError: ...\n",
            "try:\n    try: «import a»\n    except OSError: «import b»\nexcept ImportError as ünï: ...\n",
            "try: import a\nexcept: ...\ntry: «import b»\nexcept* ImportError: ...\n",
            "s = 'try: import a'  # except ImportError\ntry: import a\nexcept x.ImportError: ...\n",
            "async def f():\n\ttry: «import a»\n\texcept x: ...\n\texcept ModuleNotFoundError: import c\n",
        ),
    ),
    "type_checking_guard": Case(
        yes=(
            "from typing import TYPE_CHECKING\n«if TYPE_CHECKING:»\n    import a\n",
            "import typing as t\n«if t.TYPE_CHECKING:»\n    import a\nelse:\n    a = None\n",
        ),
        no=("if not TYPE_CHECKING:\n    a = 1\n", "if TYPE_CHECKING or x:\n    a = 1\n", "x = TYPE_CHECKING\n"),
        tricky=(
            "from typing import TYPE_CHECKING as T\n«if (T):» import a\n",
            "if x: ...\n«elif TYPE_CHECKING:»  # if y:\n    import b\n",
            "from a import B as TYPE_CHECKING\nif TYPE_CHECKING: ...\n",
            "# if TYPE_CHECKING:\ns = 'if TYPE_CHECKING:'\nx = 1 if TYPE_CHECKING else 2\nwhile TYPE_CHECKING: ...\n",
            "if TYPE_CHECKING(): ...\nif (TYPE_CHECKING := 1): ...\nif 'TYPE_CHECKING': ...\n"
            "if f'{TYPE_CHECKING}': ...\n",
        ),
    ),
    "main_guard": Case(
        yes=("«if __name__ == '__main__':»\n    main()\n", '«if "__main__" == __name__:» main()\n'),
        no=("if __name__ != '__main__':\n    pass\n", "if name == '__main__':\n    pass\n", "print(__name__)\n"),
        tricky=(
            "# if __name__ == '__main__':\ns = \"if __name__ == '__main__':\"\n",
            "«if (__name__ \\\n    == '__main__'):»  # x:\n\tmain()\n",
            "if __name__ == '__main__' and x: ...\nif x.__name__ == '__main__': ...\nif __name__ == b'__main__': ...\n",
            "if __name__ == f'__main__': ...\nif __name__ == '__main__' == x: ...\n"
            "x = 1 if __name__ == '__main__' else 2\n",
            "if x: ...\n«elif __name__ == '__ma' 'in__':»\n    @deco(a[1:2])\n    def f(): ...\n",
        ),
    ),
    "main_function": Case(
        yes=("«def main():»\n    pass\n", "«async def main(x: int = 1) -> None:» ...\n"),
        no=("def main_(): ...\nmain = 1\n", "class A:\n    def main(self): ...\n"),
        tricky=(
            "def f():\n    def main(): ...\n    return main\n",
            "if x:\n\t@deco(y)\n\t«def main(\n\t\ta,  # b:\n\t) -> 'x:y':»\n\t\treturn 1\n",
            "# def main():\ns = 'def main(): ...'\nmain = lambda: 1\nclass main: ...\ndef máin(): ...\n",
        ),
    ),
    "module_constant": Case(
        yes=("«X = 1»\n", "«MAX_SIZE: int = 3»\n", "«_A1 = b = f()»\n"),
        no=("x = 1\nMax = 2\nX: int\n", "def f():\n    X = 1\n", "class A:\n    X = 1\n"),
        tricky=(
            "if x:\n    A = 1\nA += 1\nA, B = 1, 2\nA.B = 1\nA[0] = 1\n",
            "# X = 1\ns = 'X = 1'\n(X := 1)\nf(X=1)\nX == 1\n",
            "«ÜNÏ = '''\nY = 1\n'''»; «Z = \\\n  (2)»\n",
            "_ = 1\n__ = 2\n«(T) = TypeVar('T')»\nfor X in y: ...\n",
        ),
    ),
    "module_metadata": Case(
        yes=("«__version__ = '1'»\n", "«__author__: str = 'x'»\n"),
        no=("__all__ = []\nversion = 1\n", "class A:\n    __slots__ = ()\n", "def f():\n    __version__ = 1\n"),
        tricky=(
            "# __version__ = 1\ns = '__version__ = 1'\n__version = 1\n__ = ____ = 2\n__version__ += 'x'\n",
            "x.__version__ = 1\nfrom a import __version__\n__version__: str\n__version__ == 1\n",
            "«__all__ = __license__ = (\n  'x')»\nif x: __version__ = 1\n«__ünï__ = 1»\n",
        ),
    ),
    "dunder_all": Case(
        yes=("«__all__ = ['a']»\n", "«__all__ += b.__all__»\n", "«__all__: list[str] = []»\n"),
        no=("__version__ = 1\nall = []\n", "__all__.append('x')\nprint(__all__)\n"),
        tricky=(
            "# __all__ = []\ns = '__all__ = []'\nx.__all__ = []\n__all__: list\n__all__[0] = 1\n",
            "if x: «a = __all__ = (  # ü\n\t'b',\n)»\n",
            "__all__, x = [], 1\n__all__ == []\nfrom a import __all__\n(__all__ := 2)\n",
        ),
    ),
    "dynamic_import": Case(
        yes=(
            "import importlib\nm = «importlib.import_module('a')»\n«importlib.reload(m)»\n",
            "«__import__('os')».path\n",
            "import importlib.util as u\n«u.module_from_spec(s)»\n",
        ),
        no=("import importlib\nimportlib.metadata.version('a')\nimport os\n", "importlib.import_module('a')\n"),
        tricky=(
            "from importlib import import_module as i\n@«i('a')».b\nasync def f(): return f'{«i(«i(x)»)»}'\n",
            "# __import__('os')\ns = \"__import__('os')\"\nf = __import__\nx.__import__('os')\n",
            "import builtins, importlib\n«builtins.__import__('a')»\ndef f(importlib): importlib.reload(x)\n",
            "def __import__(name): ...\n__import__('a')\n",
        ),
    ),
    "platform_check": Case(
        yes=(
            "import sys\nif «sys.platform == 'win32'»: ...\n",
            "import os\nx = «'nt' == os.name» or y\n",
            "import platform\n«platform.system() in ('Linux',)»\n",
            "from sys import platform as p\n«p.startswith('lin')»\n",
        ),
        no=("import sys\nprint(sys.platform)\n", "sys.platform == 'win32'\n", "import platform\nplatform.system()\n"),
        tricky=(
            "import sys\n# sys.platform == 'win32'\ns = \"sys.platform == 'win32'\"\nsys.platform_ == 1\n"
            "x.sys.platform == 1\n",
            "import os\ndef f(os): return os.name == 'nt'\ndef g(): return «os.name == 'nt'»\n",
            "import platform\nplatform.system == 'x'\n«(platform.system()) \\\n  != 'x'»\nplatform.platform() == 1\n",
            "import sys\nmatch sys.platform:\n    case 'win32': ...\nsys.platform.endswith('x')\n"
            "sys.platform.lower() == 'x'\n",
            "import sys\nwhile (x := «'ü' < sys.platform < y») and «sys.platform.startswith(z)»: ...\n",
        ),
    ),
    "version_check": Case(
        yes=(
            "import sys\nif «sys.version_info >= (3, 8)»: ...\n",
            "import sys\nx = «sys.version_info[0] == 2»\ny = «sys.version_info[:2] < (3, 9)»\n",
            "from sys import version_info as v\n«v.major > 2»\n",
        ),
        no=("import sys\nprint(sys.version_info)\n", "version_info >= (3,)\n", "import sys\nsys.version == 'x'\n"),
        tricky=(
            "import sys\n# sys.version_info > (3,)\ns = 'sys.version_info > (3,)'\nsys.version_information > 3\n",
            "import sys\n«(3, 8) <= sys.version_info \\\n  < (4,)»\nx.sys.version_info > 3\n"
            "tuple(sys.version_info) > x\n",
            "import sys as ünï\nf = lambda sys: sys.version_info > x\nf = lambda s: «ünï.version_info > x»\n",
            "import sys\nsys.version_info[«sys.version_info > x»]\nx[sys.version_info] > 1\n",
        ),
    ),
    "logger_setup": Case(
        yes=(
            "import logging\nlog = «logging.getLogger(__name__)»\n«logging.basicConfig(level=1)»\n",
            "import logging.config\n«logging.config.dictConfig(x)»\n",
            "from logging import getLogger as g, config\n«g()».info(1)\n«config.fileConfig(x)»\n",
        ),
        no=("getLogger(x)\nlogging.getLogger(x)\n", "import logging\nlogging.info(1)\nlogging.Logger('x')\n"),
        tricky=(
            "import logging\n# logging.getLogger()\ns = 'logging.getLogger()'\nf(logging.getLogger)\n"
            "x.logging.getLogger()\n",
            "import logging\ndef f(x=«logging.getLogger('ü')», *, logging=1): logging.getLogger()\n",
            "try:\n    import logging\nexcept ImportError:\n    logging = None\nelse: «logging.basicConfig(\n)»\n",
            "from .logging import getLogger\ngetLogger()\n",
        ),
    ),
}
