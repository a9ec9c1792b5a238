# ruff: noqa: E501
"""What the bodies of functions are like: their sizes, branches, and idioms."""

from concepts.cases import Case

WORDS = "    x = 'if a and b: for c in d: while e'  # if f else g\n"
CASES = {
    "short_function": Case(
        yes=("«def f(x):»\n    return x\n", "@g\n@h\n@k\n@m\n«def f():»\n    a\n    b\n    c\n    d\n"),
        no=("def f():\n    a\n    b\n    c\n    d\n    e\n",),
        tricky=(
            "def f(\n    a,\n    b,\n    c,\n    d,\n): pass\n«def g():» a; b; c; d; e; f; g; h\n",
            "def f():\n    '''a\n\n\n    b\n    '''\nh = lambda: 1\n",
            "class A:\n\t«async def é(self):»\n\t\t# one\n\n\t\tpass\n\n\n\n\n# two\n",
        ),
    ),
    "medium_function": Case(
        yes=("«def f():»\n    a\n    b\n    c\n    d\n    e\n", "«def f():»\n" + "    a\n" * 49),
        no=("def f():\n    a\n", "def f():\n" + "    a\n" * 50),
        tricky=(
            "«def f(\n    a,\n    b,\n    c,\n    d,\n):» pass\n# a\n",
            "«def f():»\n    def g():\n        pass\n\n    x = '''\n    '''\n",
            "@g(\n  1,\n  2,\n  3,\n)\ndef f():\n    pass\n",
        ),
    ),
    "long_function": Case(
        yes=("«def f():»\n" + "    a\n" * 50, "class A:\n    «async def f(self):»\n" + "        a\n" * 60),
        no=("def f():\n    a\n", "def f():\n" + "    a\n" * 49),
        tricky=(
            "def f():\n    a\n" + "b\n" * 60,
            "«def f():»\n    '''\n" + "\n" * 50 + "    '''\n    def g(): pass\n",
            "def f():\n    a\n" + "    # b\n" * 60,
        ),
    ),
    "complexity_low": Case(
        yes=("«def f(x):»\n    return x\n", "«def f(x):»\n    if x:\n        for y in x:\n            g(y)\n"),
        no=("def f(x):\n    if x:\n        for y in x:\n            while y:\n                g(y)\n",),
        tricky=(
            "def f(x): return [y and z for y in x for z in y]\n",
            "«def f(x):»\n" + WORDS * 3,
            "«async def f(x=a and b or c if d else e):»\n    def g(x):\n        if x: pass\n        elif y: pass\n"
            "        elif z: pass\n",
            "def f(x):\n    match x:\n        case 1: pass\n        case 2: pass\n        case _: pass\n",
            "«def f(x):»\n    class A:\n        «def g(self):» return 1 if x else 2\n    try: pass\n    except E: pass\n",
        ),
    ),
    "complexity_mid": Case(
        yes=(
            "«def f(x):»\n    if x:\n        for y in x:\n            while y:\n                g(y)\n",
            "«def f(x):»\n" + "    if x: pass\n" * 9,
        ),
        no=("def f(x):\n    return x\n", "def f(x):\n" + "    if x: pass\n" * 10),
        tricky=(
            "def f(x):\n    def g(y):\n        if y: pass\n        if y: pass\n    if x: pass\n" + WORDS * 3,
            "«def f(x):»\n    if x: pass\n    elif y: pass\n    elif z: pass\n    else: pass\n",
            "«def f(x):»\n    g = lambda: a if b else c if d else e\n    class A:\n        x = a or b\n",
            "«async def f(x):»\n\tasync for y in x: pass\n\tz = {k: v for k, v in x}; w = (é for é in z)\n",
        ),
    ),
    "complexity_high": Case(
        yes=("«def f(x):»\n" + "    if x: pass\n" * 10, "«async def f(x):»\n    return [" + "(a or b), " * 10 + "]\n"),
        no=("def f(x):\n    return x\n", "def f(x):\n" + "    if x: pass\n" * 9),
        tricky=(
            "def f(x):\n" + WORDS * 12,
            "def f(x):\n    return " + "a and " * 20 + "b\n" + "if x: pass\n" * 12,
            "def f(x):\n    class A:\n        def g(self):\n" + "            if x: pass\n" * 9 + "    if y: pass\n",
        ),
    ),
    "one_line_function": Case(
        yes=("«def f(x):»\n    return x\n", "«def f(x):»\n    '''Text.'''\n    return\n"),
        no=("def f(x):\n    y = x\n    return y\n", "def f():\n    pass\n"),
        tricky=(
            "«def f(x):» return x\nh = lambda: 1\ndef g(x): x; return x\n",
            "def f(x):\n    'a'\n    'b'\n    return x\ndef g(x):\n    f'a'\n    return x\n",
            "class A:\n\t@property\n\t«async def é(\n\t\tself,\n\t):»  # return\n\t\t'''return'''\n\n\t\treturn [\n\t1]\n",
        ),
    ),
    "stub_body": Case(
        yes=("def f():\n    «pass»\n", "async def f(x): «...»\n", "def f():\n    '''Text.'''\n    «...»\n"),
        no=("def f():\n    return ...\n", "class A:\n    pass\n", "def f():\n    '''Text.'''\n"),
        tricky=(
            "def f():\n    if x: pass\n    ...\ndef g(): pass; pass\ndef h(): '...'  # pass\n",
            "class A: ...\ndef f():\n    class B: pass\ndef g():\n    def h(x=...): «pass»\n",
            "def f(): «(\n  ...\n)»\ndef g(): Ellipsis\n",
        ),
    ),
    "generator_function": Case(
        yes=("«def f():»\n    yield 1\n", "«async def f(x):»\n    for y in x:\n        z = yield y\n"),
        no=("def f():\n    return (x for x in y)\n",),
        tricky=(
            "def f():\n    «def g():»\n        yield from x\n    return g\n",
            "def f(): return lambda: (yield)\nx = 'yield'  # yield\n",
            "«def f():»\n    @g((yield))\n    def h(x=(yield 1)): pass\n",
            "class A:\n    «def é(self):» print((yield)); return {1: 2}\n    async def g(self): await yield_()\n",
        ),
    ),
    "recursive_function": Case(
        yes=("«def f(x):»\n    return f(x - 1)\n", "class A:\n    «async def f(self):»\n        await self.f()\n"),
        no=("def f(x):\n    return g(x)\n", "def f(x):\n    return f\n"),
        tricky=(
            "class A:\n    def copy(self): return copy(self)\n    def f(self): return self.x.f() + super().f()\n",
            "def f(x): return 'f(x)' + x.f() + self.f()  # f(x)\nf(1)\n",
            "@f(1)\ndef f(x=f(2)): pass\n",
            "«def f(x):»\n    def g():\n        return lambda: f(x)\n    return g()\n",
            "class A:\n    @classmethod\n    «def é(cls):»\n        if (x := cls.é()): return x\n    «def g(self):» h(*[self.\\\n    g()])\n",
        ),
    ),
    "closure_factory": Case(
        yes=(
            "«def f(x):»\n    def g():\n        return x\n    return g\n",
            "«def f(x):»\n    if x:\n        return lambda: x\n",
        ),
        no=("def f(x):\n    def g(): pass\n    return g()\n", "def g(): pass\ndef f(): return g\n"),
        tricky=(
            "def f(x):\n    class A:\n        def g(self): pass\n    return g\n",
            "def f(x):\n    def g(): pass\n    return (g, lambda: x)\ndef h(): return 'lambda: 1'  # return g\n",
            "def f():\n    def g(): pass\n    def h(): return g\n    k(h)\n",
            "«def f():»\n    async def é(): pass\n    if x: return (\n        é\n    )\n",
            "class A:\n\t«def f(self):» return (lambda: 1)\n\tdef g(self): return sorted(key=lambda x: x)\n",
        ),
    ),
    "decorator_factory": Case(
        yes=(
            "import functools\n«def f(g):»\n    @functools.wraps(g)\n    def h(): pass\n    return h\n",
            "from functools import wraps as w\n«def f(x):»\n    «def g(h):»\n        @w(h)\n        async def k(): pass\n",
        ),
        no=("def f(g):\n    @g\n    def h(): pass\n", "import functools\n@functools.wraps(g)\ndef f(): pass\n"),
        tricky=(
            "def f(g):\n    @wraps(g)\n    def h(): pass\n",
            "from six import wraps\ndef f(g):\n    @wraps(g)\n    def h(): pass\n",
            "import functools\ndef f(g):\n    x = functools.wraps(g)(h)\n    '''@functools.wraps(g)'''\n    # @functools.wraps(g)\n",
            "import functools as ft\nclass A:\n    «def é(self):»\n        @a\n        @(ft.wraps(\n            b))\n        def h(): pass\n",
        ),
    ),
    "guard_clause": Case(
        yes=(
            "def f(x):\n    «if x is None:»\n        return\n    g(x)\n",
            "def f(x):\n    '''Text.'''\n    «if not x:»\n        g()\n        raise E\n    «if y:» return 1\n    z = 1\n",
        ),
        no=("def f(x):\n    g(x)\n    if x:\n        return\n", "def f(x):\n    if x:\n        g(x)\n"),
        tricky=(
            "def f(x):\n    if x:\n        return\n    else:\n        g()\ndef h(x):\n    if x: return 1\n    elif y: return 2\n",
            "if x: raise E\nfor y in z:\n    if y: raise E\ndef f(): return 1 if x else 2\n",
            "async def f(x):\n\t«if (\n\t\tx := {1: 2}  # if y:\n\t):» return 'if x: return'\n",
            "def f(x):\n    if x:\n        return\n        g()\n    if y:\n        return\n",
            "def f(x):\n    def g(y):\n        «if é[1:2]:» raise\n    if x: return\n",
        ),
    ),
}
