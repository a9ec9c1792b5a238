"""Comprehensions and generator expressions."""

from concepts.cases import Case

CASES = {
    "list_comprehension": Case(
        yes=("x = «[é for é in b]»\n", "f(«[«[a for a in b]» for b in c if d]»)\n"),
        no=("x = [a, b]\n", "x = list(a for a in b)\n", "x = {a for a in b}\n"),
        tricky=(
            "x = [(a for a in b)]\n",
            "x = a[b, for_]\n",
            "for [a] in [b]: pass\n",
            "s = '[a for a in b]'  # [a for a in b]\n",
            "s = f'{«[a for a in b]»}'\n",
            "async def f():\n\treturn «[\n\t\tawait a  # [b]\n\t\tasync for a in b\n\t]»\n",
            "x = («[a \\\n  for a in (y := b)]»)[0]\n",
            "match «[a for a in b]»:\n    case [a]: pass\n",
        ),
    ),
    "dict_comprehension": Case(
        yes=("x = «{é: b for é, b in c}»\n", "f(«{a: «{b: c for b in d}» for a in e}»)\n"),
        no=("x = {a: b}\n", "x = {a for a in b}\n", "x = dict(a for a in b)\n"),
        tricky=(
            "x = {a: [b for b in c]}\n",
            "x = {a for a in {b: c}}\n",
            "s = '{a: b for a in c}'  # {a: b for a in c}\n",
            "s = f'{ «{a: b for a in c}» }'\n",
            "x = «{\n\ta: (lambda: b)  # c: d\n\tfor a in b \\\n\tif (c := a)\n}»\n",
            "x = {a[b:c] for a in d}\n",
            "async def f(): return «{a: await b async for a in c}»\n",
        ),
    ),
    "set_comprehension": Case(
        yes=("x = «{é for é in b}»\n", "f(«{(a, b) for a, b in c}»)\n"),
        no=("x = {a, b}\n", "x = {a: b for a in c}\n", "x = set(a for a in b)\n"),
        tricky=(
            "x = {(a for a in b)}\n",
            "x = «{a[b:c] for a in d}»\n",
            "x = «{(lambda: a) for a in b}»\n",
            "x = {f'{a}:' : b for a in b}\n",
            "s = '{a for a in b}'  # {a for a in b}\n",
            "s = f'{ «{a for a in b}» }'\n",
            "async def f():\n\treturn «{\n\t\ta  # b: c\n\t\tasync for a in b\n\t}»\n",
            "x = {*[a for a in b]}\n",
        ),
    ),
    "generator_expression": Case(
        yes=("x = «(é for é in b)»\n", "x = sum«(a for a in b)»\n", "f(«(a for a in b)», c)\n"),
        no=("x = [a for a in b]\n", "def f():\n    yield a\n", "x = (a, b)\n"),
        tricky=(
            "x = ([a for a in b])\n",
            "x = sum([a for a in b])\n",
            "f«(a for a in b)»\n",
            "x = («(a for a in b)»)\n",
            "s = '(a for a in b)'  # (a for a in b)\n",
            "s = f'{«(a for a in b)»}'\n",
            "async def f():\n\treturn any«(\n\t\tawait a  # (b)\n\t\tasync for a in b\n\t)»\n",
            "x = all«(any«(a for a in b)» for b in (c := d))»\n",
            "x = f \\\n  «(a for a in b if (c))»\n",
            "class A(metaclass=«(a for a in b)»): pass\n",
        ),
    ),
    "filtered_comprehension": Case(
        yes=(
            "x = «[é for é in b if é]»\n",
            "f«(a for a in b for c in a if c if d)»\n",
            "x = «{a: b for a in c if a}», «{a for a in b if c}»\n",
        ),
        no=("x = [a for a in b]\n", "for a in b:\n    if a: pass\n"),
        tricky=(
            "x = [a if b else c for a in d]\n",
            "x = [a for a in (b if c else d)]\n",
            "x = [«[a for a in b if a]» for b in c]\n",
            "x = filter(None, [a for a in b])  # if c\n",
            "s = '[a for a in b if c]'\n",
            "s = f'{«[a for a in b if c]»}'\n",
            "async def f():\n\treturn «[\n\t\ta\n\t\tasync for a in b \\\n\t\tif (c := await a)\n\t]»\n",
            "x = [a for a in b] if c else d\n",
        ),
    ),
    "nested_comprehension": Case(
        yes=(
            "x = «[é for b in c for é in b]»\n",
            "x = «[[a for a in b] for b in c]»\n",
            "x = «{a: {b for b in c} for a in d}», «{(e for e in f): g for f in h}»\n",
        ),
        no=("x = [a for a in b]\n", "for a in b:\n    for c in a: pass\n", "x = [a for a in b], [c for c in d]\n"),
        tricky=(
            "x = [a for a in [b for b in c]]\n",
            "x = [f([b for b in a]) for a in c]\n",
            "x = [a for a in b if [c for c in a]]\n",
            "x = [[a] for a in b]\n",
            "x = f«(a for b in c if b for a in b)»\n",
            "s = '[a for b in c for a in b]'  # for a in b for b in c\n",
            "s = f'{«[a for b in c for a in b]»}'\n",
            "async def f():\n\treturn «[\n\t\ta async for b in c \\\n\t\tfor a in b\n\t]»\n",
            "x = [(lambda: [b for b in a]) for a in c]\n",
            "x = «[([a for a in b]) for b in (y := c)]»\n",
        ),
    ),
}
