"""Parameters of functions."""

from concepts.cases import Case

CASES = {
    "no_parameters": Case(
        yes=("«def f():»\n    pass\n", "«async def f() -> int:»\n    return 1\n"),
        no=("def f(x):\n    pass\n",),
        tricky=(
            "def f(**kwargs): pass\ndef g(*args): pass\ndef h(*, a): pass\nk = lambda: 1\n# def f():\nx = 'def f():'\n",
            "class A:\n    def f(self): pass\n    @staticmethod\n    «def g(\n        # x, y\n    ):» pass\n",
        ),
    ),
    "many_parameters": Case(
        yes=("«def f(a, b, c, d, e, f):»\n    pass\n", "«def f(self, a, /, b, *c, d, **e):»\n    pass\n"),
        no=("def f(a, b, c, d, e):\n    pass\n",),
        tricky=(
            "def f(a=(1, 2, 3, 4, 5, 6), b={1: 2, 3: 4}): return g(1, 2, 3, 4, 5, 6, 7)\n",
            "h = lambda a, b, c, d, e, f: 1\ndef f(a, b, c, d, *,\n      e): pass\n",
            "def f(x=lambda a, b, c, d, e, f, g: 1): pass\n",
            "class A:\n\t«async def f(\n\t\tself,  # a: b\n\t\ta, b, c, d, é=':'\n\t) -> {1: 2}:» pass\n",
        ),
    ),
    "default_argument": Case(
        yes=("«def f(x=1):»\n    pass\n", "«def f(*, a, x=None):»\n    pass\n"),
        no=("def f(x):\n    pass\n",),
        tricky=(
            "def f(x): return g(x=1)\nh = lambda x=1: x\n# def f(x=1):\ny = 'def f(x=1):'\n",
            "def f(x: 'a=1', *, y): pass\ndef g(x: (lambda y=1: y)): pass\n",
            "@g(x=1)\ndef f(x):\n    «def h(a, /, b: int = 1, *, c):»\n        pass\n",
        ),
    ),
    "default_none": Case(
        yes=("def f(a, «x=None»):\n    pass\n", "def f(*, a=1, «x: int | None = None», b):\n    pass\n"),
        no=("def f(x=1):\n    pass\n", "def f(x):\n    pass\n"),
        tricky=(
            "def f(x='None', y=(None,), z=not None): return g(x=None)\n",
            "h = lambda x=None: x\ndef f(x=lambda y=None: y): pass\n",
            "def f(a, «b=None», /, c=0, *d, «e=\\\n    None», **k): pass  # x=None\n",
            "async def f(a, b, «ünï:\n  str=None»): pass\n",
        ),
    ),
    "var_args": Case(
        yes=("«def f(*args):»\n    pass\n", "«async def f(a, *rest: int, b, **k):»\n    pass\n"),
        no=("def f(a):\n    pass\n", "def f(**args):\n    pass\n"),
        tricky=(
            "def f(a, *, b): g(*args)\nh = lambda *args: 1\nx = '*args'  # def f(*args):\n",
            "def f(args=a*args): pass\n«def g(\n    * args\n):» pass\n",
        ),
    ),
    "var_kwargs": Case(
        yes=("«def f(**kwargs):»\n    pass\n", "class A:\n    «def f(self, *a, **k: int):»\n        pass\n"),
        no=("def f(a):\n    pass\n", "def f(*kwargs):\n    pass\n"),
        tricky=(
            "def f(a=b**kwargs): return g(**kwargs)\nh = lambda **kwargs: 1\n'''\ndef f(**kwargs):\n'''\n",
            "@g(**kwargs)\ndef f(a={**b}): pass\n«def h(** 名,):» return {}\n",
        ),
    ),
    "keyword_only_args": Case(
        yes=("«def f(*, a):»\n    pass\n", "«def f(x, *args, a=1, **k):»\n    pass\n"),
        no=("def f(a, b=1):\n    pass\n", "def f(*args, **kwargs):\n    pass\n"),
        tricky=(
            "h = lambda *, a: a\ndef f(x): return h(a=x)  # def f(*, a):\n",
            "def f(x=lambda *, a: a): pass\n«async def g(x, *,\n  a: 'b: c'):» pass\n",
        ),
    ),
    "positional_only_args": Case(
        yes=("«def f(a, /):»\n    pass\n", "«def f(a, b=1, /, c=2):»\n    pass\n"),
        no=("def f(a, b):\n    pass\n",),
        tricky=(
            "h = lambda a, /: a\ndef f(x=1 / 2, y='a, /'): pass  # def f(a, /):\n",
            "class A:\n    def f(self, *a): pass\n    «def g(self, /, *a):» pass\n",
        ),
    ),
}
