"""Loops: their kinds, what they go over, and what is inside of them."""

from concepts.cases import Case


def over(name: str, others: tuple[str, ...] = ()) -> Case:
    """Loops over calls of a built-in."""
    return Case(
        yes=(f"«for é in {name}(x):»\n    pass\n", f"for a in b:\n    «for c in {name}(é[1:2]):» pass\n"),
        no=("for x in y:\n    pass\n", f"x = {name}(y)\n", f"z = [a for a in {name}(y)]\n"),
        tricky=(
            f"for x in y.{name}(z):\n    pass\n",
            f"for x in list({name}(y)):\n    pass\n",
            f"for x in {name}:\n    pass\n",
            f"while {name}(y):\n    pass\n",
            f"from a import {name}\nfor x in {name}(y):\n    pass\n",
            f"import builtins as b\n«for x in b.{name}(y):»\n    pass\n",
            f"from builtins import {name} as r\n«for x in r(y):»\n    pass\n",
            f"s = 'for x in {name}(y):'  # for x in {name}(y):\n",
            f"for x in y:\n    {name}(x)\n",
            f"«for x in ({name})(\n    y  # a: b\n):»\n    # c: d\n    pass\nelse:\n    {name}(y)\n",
            f"async def f():\n\t«async for x in {name}(y):» pass\n",
            *others,
        ),
    )


def view(name: str) -> Case:
    """Loops over calls of a method without arguments."""
    return Case(
        yes=(f"«for x in y.{name}():»\n    pass\n", f"«for k, é in f(a)[1:2].{name}():» pass\n"),
        no=("for x in y:\n    pass\n", f"x = y.{name}()\n", f"z = [a for a in b.{name}()]\n"),
        tricky=(
            f"for x in y.{name}:\n    pass\n",
            f"for x in {name}():\n    pass\n",
            f"for x in sorted(y.{name}()):\n    pass\n",
            f"for x in y.{name}(1):\n    pass\n",
            f"for x in y.{name}(*z):\n    pass\n",
            f"for x in y.iter{name}():\n    pass\n",
            f"for x in y.{name}().z():\n    pass\n",
            f"s = 'for x in y.{name}():'  # for x in y.{name}():\n",
            f"«for x in (y\n    .{name}  # a: b\n    ()):»\n    pass\n",
            f"async def f():\n\t«async for x in y.{name}():» pass\n",
            f"for x in y[z.{name}()]: pass\n",
        ),
    )


CASES = {
    "for_loop": Case(
        yes=(
            "«for x in y:»\n    pass\nelse:\n    pass\n",
            "async def f():\n    «async for é in y:»\n        pass\n",
        ),
        no=("while x:\n    pass\n", "z = [x for x in y]\n"),
        tricky=(
            "s = 'for x in y:'  # for x in y:\nfor_ = {1: 2}\n",
            "«for x[1:2] in {1: 2}:» y = x[1:2]\n",
            "«for x in (\n    y,  # a: b\n    lambda: 1,\n):»  # c: d\n    # e: f\n    @g\n    def h(): pass\n",
            "«for x \\\n  in y :»\n\tz: int = 1\n",
            "async def f():\n    return [x async for x in y]\n",
            "match x:\n    case 1:\n        «for é in (z := f'{a:>3}'):» pass\n",
        ),
    ),
    "while_loop": Case(
        yes=("«while x:»\n    pass\n", "«while (é := f({1: 2})):»\n    «while 1:» break\n"),
        no=("for x in y:\n    pass\n", "if x:\n    pass\n"),
        tricky=(
            "s = 'while x:'  # while x:\nwhile_ = 1\n",
            "«while x[1:2] \\\n    and y:»  # a: b\n\t# c: d\n\t@e\n\tclass F: pass\nelse:\n\tpass\n",
            "«while (lambda: 1)():» x = {1: 2}\n",
        ),
    ),
    "infinite_loop": Case(
        yes=("«while True:»\n    pass\n", "«while 1:»\n    «while 'é':» pass\n"),
        no=("while x:\n    pass\n", "while False:\n    pass\n", "while 0:\n    pass\n"),
        tricky=(
            "while not False:\n    pass\n",
            "while True and x:\n    pass\n",
            "while x is True:\n    pass\n",
            "while (x := True):\n    pass\n",
            "while '':\n    pass\n",
            "while None:\n    pass\n",
            "«while(True) :» x = 1\n",
            "«while (\n    True  # a: b\n):»\n    pass\n",
            "for x in iter(int, 1):\n    True\n",
            "# while True:\ns = 'while True:'\n",
            "while [1]:\n    pass\n",
        ),
    ),
    "async_for": Case(
        yes=("async def f():\n    «async for x in y:»\n        pass\n",),
        no=("for x in y:\n    pass\n", "async def f():\n    for x in y:\n        pass\n"),
        tricky=(
            "async def f():\n    return [x async for x in y], {z async for z in y}\n",
            (
                "async def f():\n\t# async for x in y:\n\ts = 'async for x in y:'\n\tasync with a:\n"
                "\t\t«async  for é in b[1:]:» pass\n"
            ),
            "async def f():\n    «async \\\n    for x in y:»\n        for z in x: pass\n",
        ),
    ),
    "loop_body": Case(
        yes=(
            "for x in y:\n    «pass»\n",
            "while x:\n    «é = 1\n    if é:\n        break»\nelse:\n    pass\n",
            "for x in y:\n    «for z in x:\n        «pass»»\n",
        ),
        no=("if x:\n    pass\n", "z = [x for x in y]\n", "with x:\n    pass\n"),
        tricky=(
            "for x in y: «z = {1: 2}; pass»; # a: b\n",
            "for x in y:\n    # a\n    «@b(c @ d)\n    @e\n    def f():\n        return 1»\n    # g\n",
            "async def f():\n\tasync for x in y:\n\t\t«await x»\n",
            "for x in y: «(z)»\nelse: (a)\n",
            "while x:\n    «'''a\n    b'''»\n# for x in y: pass\n",
            "for x in y:\n    «@(\n        a\n    )\n    class B: pass»\n",
        ),
    ),
    "nested_loop": Case(
        yes=(
            "for x in y:\n    «for z in x:»\n        pass\n",
            "while x:\n    if y:\n        «while é:»\n            «for a in b:»\n                pass\n",
        ),
        no=("for x in y:\n    pass\nfor z in a:\n    pass\n", "for x in y:\n    z = [a for a in x]\n"),
        tricky=(
            "for x in y:\n    def f():\n        for z in x:\n            pass\n",
            "for x in y:\n    class A:\n        for z in x:\n            pass\n",
            "for x in y:\n    pass\nelse:\n    for z in x:\n        pass\n",
            "while a:\n    «for x in y:»\n        pass\n    else:\n        «for z in x:» pass\n",
            (
                "async def f():\n\tasync for x in y:\n\t\ttry:\n\t\t\tpass\n\t\texcept E:\n"
                "\t\t\t«async for z in x:» pass\n"
            ),
            "for x in y:\n    match x:\n        case 1:\n            with a:\n                «for é in b:» pass\n",
            "z = [[a for a in b] for b in c]\n# for x in y:\n#     for z in x:\n",
            "for x in y:\n    f = lambda: [a for a in b]\n",
        ),
    ),
    "loop_else": Case(
        yes=(
            "for x in y:\n    pass\n«else:»\n    pass\n",
            "while é:\n    pass\n«else :» pass\n",
            "async def f():\n    async for x in y:\n        pass\n    «else:»\n        pass\n",
        ),
        no=("for x in y:\n    pass\n", "if x:\n    pass\nelse:\n    pass\n"),
        tricky=(
            "for x in y:\n    if x: pass\n    else: pass\n",
            (
                "for x in y:\n    if x:\n        a\n    # else: \n«else:»  # else:\n    if x:\n"
                "        pass\n    else:\n        pass\n"
            ),
            "for x in y: z = a if b else c; d;\n«else \\\n:»\n\t@e\n\tdef f(): pass\n",
            "try:\n    for x in y: pass\nexcept E:\n    pass\nelse:\n    pass\n",
            "s = 'for x in y: pass\\nelse: pass'\n",
            "while x:\n\tfor y in x: pass\n\t«else:» pass\n",
        ),
    ),
    "loop_range": over(
        "range",
        (
            "for x in reversed(range(3)):\n    pass\n",
            "for x in range(3)[1:]:\n    pass\n",
            "from six.moves import range as r\nfor x in r(3): pass\n",
        ),
    ),
    "loop_enumerate": over("enumerate", ("«for i, (a, b) in enumerate(zip(c, d), 1):» pass\n",)),
    "loop_zip": over("zip", ("for i, (a, b) in enumerate(zip(c, d), 1): pass\n", "for x in zip_longest(y): pass\n")),
    "loop_reversed": over("reversed", ("for x in y[::-1]: pass\n", "«for x in reversed(range(3)):» pass\n")),
    "loop_dict_items": view("items"),
    "loop_dict_keys": view("keys"),
    "loop_dict_values": view("values"),
    "loop_unpacking": Case(
        yes=("«for a, b in c:»\n    pass\n", "«for (é, [b, *c]) in d:»\n    «for [x] in a:» pass\n"),
        no=("for a in b, c:\n    pass\n", "z = [a for a, b in c]\n"),
        tricky=(
            "for (a) in b:\n    c, d = a\n",
            "«for a, in b:» pass\n",
            "for a.b in c:\n    pass\n",
            "for a[b, c] in d:\n    pass\n",
            "async def f():\n\t«async for a, b in c:» pass\n",
            "s = 'for a, b in c:'  # for a, b in c:\n",
            "«for () in a:» pass\n",
            "«for a, \\\n  b in (\n    c  # d: e\n  ):»\n    pass\n",
        ),
    ),
    "tree_walk": Case(
        yes=(
            "import os\n«for é, b, c in os.walk(d):»\n    pass\n",
            "«for x in walk(y):»\n    pass\n",
            "«for x in Path(y).rglob('*:*'):»\n    pass\n",
        ),
        no=("for x in os.listdir(y):\n    pass\n", "import os\nx = list(os.walk(y))\n", "for x in y.glob(z): pass\n"),
        tricky=(
            "from os import walk as w\n«for x in w(y):»\n    pass\n",
            "from a import b as walk\nfor x in walk(y):\n    pass\n",
            "for x in walk_packages(y):\n    pass\n",
            "for x in sorted(os.walk(y)):\n    pass\n",
            "for x in walk:\n    pass\n",
            "for x in y.walk(z).a():\n    pass\n",
            "z = [x for x in ast.walk(y)]  # for x in ast.walk(y):\n",
            "async def f():\n\t«async for x in (await y).walk():» pass\n",
            "for x in sidewalk(y):\n    walk(x)\n",
        ),
    ),
    "early_return_in_loop": Case(
        yes=(
            "def f():\n    for x in y:\n        «return x»\n",
            "def f():\n    while é:\n        if é: «return»\n",
        ),
        no=("def f():\n    for x in y:\n        pass\n    return x\n", "def f():\n    return [x for x in y]\n"),
        tricky=(
            "for x in y:\n    def f():\n        return x\n",
            "def f():\n    for x in y:\n        pass\n    else:\n        return x\n",
            (
                "def f():\n    while x:\n        for y in x:\n            pass\n        else:\n"
                "            «return (\n                y\n            )»\n"
            ),
            "async def f():\n\tasync for x in y:\n\t\ttry:\n\t\t\tpass\n\t\tfinally:\n\t\t\t«return await x»; pass\n",
            "def f():\n    for x in y:\n        g = lambda: x  # return x\n        s = 'return x'\n",
            "def f():\n    for x in y:\n        match x:\n            case 1: «return {1: 2}»\n",
            "def f():\n    for x in y: yield x; break\n    return\n",
            "for x in y:\n    class A:\n        def f(self): return 1\n",
        ),
    ),
}
