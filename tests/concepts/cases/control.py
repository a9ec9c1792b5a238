"""Branches, context managers, and what suspends or leaves a block."""

from concepts.cases import Case

CASES = {
    "if_statement": Case(
        yes=(
            "«if x:»\n    pass\n«elif y:»\n    pass\nelse:\n    pass\n",
            "def f(ä):\n\t«if (ä and\n\t    ä.b):»\n\t\treturn {1: 2}\n",
        ),
        no=("x = 1 if y else 2\n", "z = [a for a in b if a]\n"),
        tricky=(
            "# if x:\ns = 'if x:'\n«if x :» y = {1: 2}; z = a[1:2]\n",
            "«if (lambda: 1)():»\n    @f\n    @g\n    def h(): pass\n",
            "«if x[1:2] \\\n    and {'a': 1}:»  # c: d\n    # e: f\n    pass\n",
            "match x:\n    case 1 if y:\n        «if z:» pass\n",
            "if_ = f'{1 if x else 2:>3}'\n«if (n := 1):»\n    pass\n",
            "«if x:»\n    pass\nelse:\n    «if y:»\n        pass\n",
        ),
    ),
    "if_else": Case(
        yes=(
            "if x:\n    pass\n«else:»\n    pass\n",
            "if x:\n    pass\nelif y:\n    pass\n«else:»\n    pass\n",
            "if é: y = 'é'\n«else :» z = 1\n",
        ),
        no=("if x:\n    pass\nelif y:\n    pass\n", "x = 1 if y else 2\n"),
        tricky=(
            "for x in y:\n    pass\nelse:\n    pass\n",
            "while x:\n    if y: break\nelse:\n    pass\n",
            "try:\n    pass\nexcept E:\n    pass\nelse:\n    pass\n",
            "if x:\n    f(1)  # else: #\n    # else:\n«else:» # e: f\n    if y:\n        pass\n",
            "if x: y; z;\n«else  \\\n  :»\n    pass\n",
            (
                "def f():\n\tif x:\n\t\tif y:\n\t\t\treturn 'else:'\n\t\t«else:»\n\t\t\tpass\n\t«else:»\n"
                "\t\t@g\n\t\tclass A: pass\n"
            ),
            "if x:\n    else_ = 1\n",
            "match x:\n    case 1:\n        if y: pass\n        «else:» pass\n",
        ),
    ),
    "elif_chain": Case(
        yes=("if x:\n    pass\n«elif y:»\n    pass\n«elif {1: 2}[z]:»\n    pass\nelse:\n    pass\n",),
        no=("if x:\n    pass\nelse:\n    pass\n",),
        tricky=(
            "if x:\n    pass\nelse:\n    if y:\n        pass\n",
            "if x:\n    pass\nelse:\n    if y:\n        pass\n    «elif z:»\n        pass\n",
            "s = '''\nelif x:\n'''  # elif y:\nelif_ = 1\nif elif_: pass\n",
            "if x: pass\n# elif z:\n«elif (\n    y  # a: b\n):» pass\n",
        ),
    ),
    "negated_condition": Case(
        yes=("«if not x:»\n    pass\n", "if x:\n    pass\n«elif not (y and z):»\n    pass\n"),
        no=("if x:\n    pass\n", "if x != y:\n    pass\n", "if not x and y:\n    pass\n"),
        tricky=(
            "if x not in y:\n    pass\n",
            "if x is not None:\n    pass\n",
            "while not x:\n    pass\n",
            "z = 1 if not x else 2\n",
            "«if(not(x)):» pass\n",
            "«if not x in y:» pass\n",
            "«if not not x:»\n    if not_x: pass\n",
            "if ~x: pass\n# if not y:\n",
            "if (y := not x): pass\n",
            "match x:\n    case 1 if not y: pass\n",
        ),
    ),
    "ternary_expression": Case(
        yes=("x = «a if b else c»\n", "f(«a if b else «c if d else e»», g)\n"),
        no=("if a:\n    b\nelse:\n    c\n", "x = a and b or c\n"),
        tricky=(
            "x = [a for a in b if c]\n",
            "x = [«é if é else ü» for é in b if é]\n",
            "s = f'{«a if b else c»} a if b else c'\n",
            "f = lambda: (\n    «a\n    if b  # else d\n    else c»\n)\n",
            "s = 'a if b else c'  # a if b else c\n",
            "match a:\n    case b if «c if d else e»: pass\n",
        ),
    ),
    "match_statement": Case(
        yes=(
            "«match x:»\n    case 1:\n        pass\n",
            "«match (a, b):»\n    case (1, {'k': v}) if v:\n        «match ü:»\n            case _: pass\n",
        ),
        no=("import re\nre.match('a', b)\n", "if x == 1:\n    pass\n"),
        tricky=(
            "match = {1: 2}\nmatch[1:2]\nmatch(x)\ncase = match\n",
            "# match x:\ns = '''match x:\n    case 1: pass\n'''\n",
            "«match (  # a: b\n    x\n    # c: d\n):»  # e: f\n    # g: h\n    case (1): pass\n",
            "«match x, y,:»\n    case 1, 2: pass\n",
            "«match {1: 2}[lambda: 3] \\\n :»\n    case {1: 2}: pass\n",
            "«match match:»\n\tcase case: pass\n",
            "«match f'{x:>3}':»\n    case 'a:b': pass\n",
            "«match (y := x):»\n    case [a, *b]: pass\n",
        ),
    ),
    "deep_nesting": Case(
        yes=(
            (
                "def f():\n    for x in y:\n        if x:\n            «with z:»\n"
                "                «while a:»\n                    pass\n"
            ),
            (
                "if a:\n    try:\n        «try:»\n            pass\n        finally:\n            pass\n"
                "    finally:\n        pass\n"
            ),
            "while a:\n    match b:\n        case 1:\n            «match (c):»\n                case 2: pass\n",
        ),
        no=(
            "if a:\n    if b:\n        pass\n",
            "if a:\n    pass\nelif b:\n    pass\nelif c:\n    pass\nelif d:\n    pass\n",
        ),
        tricky=(
            "if a:\n    if b:\n        def f():\n            if c:\n                pass\n",
            "if a:\n    if b:\n        class A:\n            if c:\n                pass\n",
            (
                "if a:\n    pass\nelif b:\n    if c:\n        pass\n    elif d:\n        «if e:» pass\n"
                "        «elif é:» pass\n"
            ),
            "if a:\n    pass\nelse:\n    if b:\n        pass\n    else:\n        «if c:»\n            pass\n",
            "async def f():\n\tasync for a in b:\n\t\tasync with c:\n\t\t\t«async with d:» pass\n",
            "try:\n    pass\nexcept A:\n    try:\n        pass\n    except B:\n        «if c:»\n            pass\n",
            (
                "try:\n    pass\nexcept* A:\n    for x in y:\n        pass\n    else:\n        «try:»\n"
                "            pass\n        except* B: pass\n"
            ),
            "x = [[[a if b else c for a in d if e] for d in f] for f in g]\n",
            "for x in y:\n    for z in x: f = lambda: [a for a in z if a]\n",
        ),
    ),
    "pass_statement": Case(
        yes=("if x:\n    «pass»\n", "class A: «pass»\n"),
        no=("if x:\n    ...\n", "x = 1\n"),
        tricky=(
            "s = 'pass'  # pass\npass_ = password = 1\n",
            "def f(): é = 1; «pass»; «pass» # pass\n",
            "try:\n\tf()\nexcept E: «pass»\n",
            "match x:\n    case _: «pass»\n",
        ),
    ),
    "with_statement": Case(
        yes=(
            "«with open('ä:b') as f:»\n    pass\n",
            "async def f():\n    «async with a as b, c:»\n        pass\n",
        ),
        no=("f = open(x)\n", "for x in y:\n    pass\n"),
        tricky=(
            "# with x:\ns = 'with x:'\nwith_ = {1: 2}\n",
            "«with (\n    a as b,  # c: d\n    e[1:2] as f,\n):»\n    «with g(lambda: 1):» x = y[1:]\n",
            "«with a as b[1:2], \\\n     c:»\n    @d\n    class E: pass\n",
            "match x:\n    case 1:\n\n        «with (y := z):» pass\n",
        ),
    ),
    "multi_with": Case(
        yes=("«with a, b as c:»\n    pass\n", "async def f():\n    «async with a, b:»\n        pass\n"),
        no=("with a as b:\n    pass\n", "with a(b, c):\n    pass\n"),
        tricky=(
            "with a:\n    with b:\n        pass\n",
            "with a as (b, c):\n    pass\n",
            "with (a, b) as c:\n    pass\n",
            "«with (a, b):»\n    pass\n",
            "with (a):\n    pass\n",
            "«with (\n    a as ä,\n    # comment: with\n    b as ö,\n):»\n    pass\n",
            "with ((a, b)): pass\n",
        ),
    ),
    "async_with": Case(
        yes=("async def f():\n    «async with a as b:»\n        pass\n",),
        no=("with a:\n    pass\n", "async def f():\n    with a:\n        pass\n"),
        tricky=(
            "async def f():\n    # async with a:\n    s = 'async with a:'\n    with b: pass\n",
            "async def f():\n\tasync for x in y:\n\t\t«async  with  (a), b[1:2]:» await c\n",
            "async def f():\n    «async \\\n    with a:»\n        with b: pass\n",
        ),
    ),
    "break_statement": Case(
        yes=("while x:\n    «break»\n", "for é in y:\n    if é: «break»\n"),
        no=("while x:\n    continue\n", "for x in y:\n    return_ = x\n"),
        tricky=(
            "break_ = 'break'  # break\nx.breaker\n",
            "for x in y: é = 'é'; «break»; # break\n",
            "while x:\n\tmatch y:\n\t\tcase 1: «break»\nelse:\n\tpass\n",
        ),
    ),
    "continue_statement": Case(
        yes=("while x:\n    «continue»\n", "for é in y:\n    if é: «continue»\n"),
        no=("while x:\n    break\n", "for x in y:\n    pass\n"),
        tricky=(
            "continue_ = 'continue'  # continue\n",
            "async def f():\n    async for x in y: é = 'é'; «continue»; # continue\n",
            "for x in y:\n\ttry:\n\t\tpass\n\tfinally:\n\t\t«continue»\n",
        ),
    ),
    "await_expression": Case(
        yes=("async def f():\n    x = «await g(«await h»)»\n", "async def f():\n    «await é»\n"),
        no=("async def f():\n    async with a:\n        pass\n", "def f():\n    return g()\n"),
        tricky=(
            "async def f():\n    async for x in y: pass\n    return [z async for z in y]\n",
            "async def f():\n    return f'await {«await x»}'  # await y\n",
            "async def f():\n    return [«await x» for x in y], («await\\\n    x.a»).b\n",
            "async def f():\n    return «await x» ** 2\n",
            "awaited = 'await x'\n",
        ),
    ),
    "yield_expression": Case(
        yes=("def f():\n    «yield»\n    «yield 1, 2»\n", "def f():\n    x = «yield é»\n"),
        no=("def f():\n    return 1\n", "def f():\n    yield from x\n"),
        tricky=(
            "def f():\n    # yield 1\n    yield_ = 'yield 1'\n    return (x for x in y)\n",
            "def f():\n    x = («yield»)\n    g((«yield \\\n    («yield 1»)»))\n",
            "async def f():\n    «yield await x»\n",
            "def f(): return lambda: («yield»)\n",
            "def f():\n    s = f'{(«yield x»)}'; «yield s»\n",
        ),
    ),
    "yield_from": Case(
        yes=("def f():\n    «yield from é»\n", "def f():\n    x = «yield from (\n        y\n    )»\n"),
        no=("def f():\n    yield x\n", "from x import y\n"),
        tricky=(
            "def f():\n    yield from_\n",
            "def f():\n    raise E from (yield)\n",
            "def f():\n    s = 'yield from x'  # yield from y\n    «yield  \\\n    from  x»; yield y\n",
            "def f():\n    yield («yield from x»)\n",
        ),
    ),
}
