# ruff: noqa: E501
"""Type annotations and types."""

from concepts.cases import Case

CASES = {
    "parameter_annotation": Case(
        yes=("def f(«x: int», y, «z: str» = 'a'):\n    pass\n", "async def f(*«a: int», **«k: 'str'»):\n    pass\n"),
        no=("def f(x, y=1):\n    pass\n",),
        tricky=(
            "x: int = 1\ny = {x: int}\nz = lambda x: int\nw = 'def f(x: int)'  # def f(x: int)\n",
            "def f(a, «é\\\n  : int», /, *, «b: (lambda c: d)» = 1): pass\n",
        ),
    ),
    "return_annotation": Case(
        yes=("def f() -> «int»:\n    pass\n", "async def f(x) -> «dict[str, int]»: ...\n"),
        no=("def f():\n    pass\n", "def f(x: int): pass\n"),
        tricky=(
            "def f(x='-> int'): return 1  # -> int\n",
            "def f(\n    x: int,\n) -> (  # a: b\n    «'名: x'»\n): return {1: 2}\n",
        ),
    ),
    "annotated_assignment": Case(
        yes=("«x: int = 1»\n", "class A:\n    «x: list[str]»\n"),
        no=("x = 1\n", "def f(x: int = 1): pass\n"),
        tricky=(
            "x = {y: int}\nz = a[b: c]\n# x: int = 1\nif x: y = 1\nw = lambda x: 1\n",
            "«(x): int = 1»; «self.y: 'a = b'»; x[1:2] = 3\n",
            "def f():\n\t«é: int = \\\n\t\t(y := 1)»\n",
        ),
    ),
    "fully_typed_function": Case(
        yes=(
            "«def f(x: int, *a: int, y: str = '', **k: str) -> None:»\n    pass\n",
            "class A:\n    «async def f(self, x: int) -> int:»\n        return x\n",
            "«def f() -> int:» return 1\n",
        ),
        no=("def f(x: int):\n    pass\n", "def f(x) -> int:\n    pass\n"),
        tricky=(
            "def f(x: int, *a) -> int: pass\ndef g(x: int, **k) -> int: pass\ndef h(x: int, /, *, y) -> int: pass\n",
            "def f(x):  # type: (int) -> int\n    return '-> int'\n",
            "@g\n«def f(x: 'a' = lambda y: y) -> (\n    int\n):»\n    def h(z): pass\n",
            "class A:\n    @classmethod\n    «def f(cls) -> 'A':» pass\n    @staticmethod\n    def h(x) -> 'A': pass\n",
        ),
    ),
    "typing_overload": Case(
        yes=(
            "from typing import overload\n@overload\n«def f(x: int) -> int:» ...\ndef f(x): return x\n",
            "import typing as t\nclass A:\n    @t.overload\n    «async def f(self):» ...\n",
        ),
        no=("from typing import cast\n@cast\ndef f(): ...\n",),
        tricky=(
            "@overload\ndef f(): ...\n@x.overload\ndef g(): ...\n",
            "from numba import overload\n@overload(len)\ndef f(x): ...\n",
            "from typing_extensions import overload as o\n@staticmethod\n@(o)  # @o\n«def f(\n):» ...\n# @o\n",
        ),
    ),
    "optional_union_type": Case(
        yes=(
            "from typing import Optional, Union\nx: «Optional[int]» = None\ndef f(y: «Union[int, str]»): pass\n",
            "def f(x: «int | None» = None) -> «list[int] | str»: pass\n",
            "x: «int | str | None»\n",
        ),
        no=("x = a | b\n", "x: int = 1\n"),
        tricky=(
            "x: Optional[int]\ny = Union[1]\nz: 'int | None' = a | b  # int | None\n",
            "import typing as t, typing_extensions\nX = «t.Optional[«typing_extensions.Union[int, str]»]»\n",
            "def f(x: dict[str, «int | list[«str | None»]»], y=a | b) -> (\n    «int\n    | None»\n): return a | b\n",
            "@g(a | b)\ndef f(): x |= y; return isinstance(x, int | str)\nz: int & str = 1\n",
            "from typing import Optional\nx = Optional\nz = f'{x}[Optional[int]]'\nclass Ü:\n\tx: «Optional[\n\t'Ü']»\n",
        ),
    ),
    "generic_container_type": Case(
        yes=(
            "x: «list[int]» = []\ndef f(y: «dict[str, int]») -> «tuple[int, ...]»: pass\n",
            "from typing import List, Mapping as M\nx: «List[«M[str, int]»]»\n",
            "import collections.abc as c\nfrom collections import deque\nx: «c.Iterable[int]» = «deque[int]»()\n",
        ),
        no=("x = y[int]\n", "x: list = list()\n", "x: List[int]\n"),
        tricky=(
            "def f(list, x): return list[0]\ndef g(x: «list[int]») -> «list[int]»: pass\n",
            "from x import list, Sequence\ny: list[int]\nz: Sequence[int]\nw: 'dict[str, int]'  # dict[str, int]\n",
            "class A:\n    def list(self) -> «list[int]»: pass\n    def f(self, y: list[int]):\n        x: «list[int]» = self.list[0]\n",
            "def f(tuple: «tuple[int]»):\n    def g(): return [tuple[0] for dict in x if dict['a']]\n",
            "for set in x: pass\ny = set[0]\nz = lambda list: list[0]\nw = lambda: «list[int]»\n",
            "import collections, typing\nx: «collections.OrderedDict[int, str]»\ny: «typing.Dict[\n    str, int]»\nz: type[int]\n",
        ),
    ),
    "callable_type": Case(
        yes=(
            "from typing import Callable\ndef f(g: «Callable[[int], str]»): pass\n",
            "from collections.abc import Callable as C\nX = «C[..., «C[[], int]»]»\n",
        ),
        no=("x: Callable[[int], str]\n", "from typing import Callable\nx: Callable\n"),
        tricky=(
            "from x import Callable\ny: Callable[[int], str]\nz = callable(y)\n",
            "from typing import Callable\nx = 'Callable[[int], str]'  # Callable[[int], str]\n",
            "import collections.abc\nclass É:\n\tx: «collections.abc.Callable[\n\t\t[int], 'é']»\n",
        ),
    ),
    "special_type_form": Case(
        yes=(
            "from typing import Literal, Final, ClassVar\nx: «Literal['a']»\ny: «Final» = 1\nz: «ClassVar[int]» = 1\n",
            "import typing as t\nx: list[«t.Annotated[int, 1]»]\n",
        ),
        no=("x: Final = 1\n", "from typing import Any, cast\nx: Any = cast(int, 1)\n"),
        tricky=(
            "try:\n    from typing import Literal\nexcept ImportError:\n    Literal = None\nx = 'Literal[1]'  # Literal\n",
            "from typing_extensions import Final as F\nx: «F[«F»]» = y.F\n",
            "from docutils import Literal\nx: Literal[1]\n",
            "import typing_extensions, typing\nif x is «typing.Literal»: y: «typing_extensions.ClassVar\\\n[int]»\n",
        ),
    ),
    "typevar_def": Case(
        yes=(
            "from typing import TypeVar\n«T = TypeVar('T')»\n",
            "import typing as t\n«P = t.ParamSpec(\n    'P'\n)»\n«T: t.Any = t.TypeVar('T', bound=int)»\n",
        ),
        no=("T = TypeVar('T')\n", "from typing import TypeVar\nx = 1\n"),
        tricky=(
            "from typing import TypeVar\nT = [TypeVar('T')]\nTypeVar('T')\nx = 'T = TypeVar()'\nU = TypeVar\n",
            "from x import TypeVar\nT = TypeVar('T')\n",
            "from typing_extensions import TypeVarTuple as V\nif x: «é = V('é')»; y = 1  # T = V('T')\n",
        ),
    ),
}
