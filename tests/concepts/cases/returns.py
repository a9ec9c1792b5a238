# ruff: noqa: E501
"""What functions return."""

from concepts.cases import Case

CASES = {
    "return_statement": Case(
        yes=("def f(x):\n    «return x»\n", "async def f():\n\t«return»\n"),
        no=("def f():\n    yield 1\n",),
        tricky=(
            "x = 'return 1'  # return 2\nreturns = f'{x} return'\n",
            "def f(): «return 1»\ndef g(x):\n    if x: «return x»; print(x)\n    «return (\n        x  # return\n    )»\n",
            "g = lambda: 1\ndef f():\n    '''return 1'''\n    «return \\\n        g»  # return\n",
        ),
    ),
    "return_none": Case(
        yes=("def f():\n    «return»\n", "def f():\n    «return None»\n"),
        no=("def f():\n    pass\n", "def f(x):\n    return x\n"),
        tricky=(
            "def f(x):\n    return 'None'\ndef g(x):\n    return x is None\ndef h():\n    return (None,)\n",
            "def f(): «return (None)»\n",
            "def f(x):\n    match x:\n        case None: «return»  # None\n        case _:\n            return not None\n",
        ),
    ),
    "return_bool": Case(
        yes=("def f():\n    «return True»\n", "async def f():\n    «return False»\n"),
        no=("def f():\n    return None\n",),
        tricky=(
            "def f(): return 1\ndef g(): return 0\ndef h(): return 'True'\ndef i(): return True, False\n",
            "def f(x): «return (True)»\ndef g(x): return not True\ndef h(x): return True if x else False\n",
        ),
    ),
    "return_tuple": Case(
        yes=("def f(a, b):\n    «return a, b»\n", "def f(a, b):\n    «return (a, b)»\n"),
        no=("def f(a):\n    return a\n", "def f(a, b):\n    return [a, b]\n"),
        tricky=(
            "def f(a): return (a)\ndef g(a): «return a,»\ndef h(): «return ()»\ndef i(*a): «return *a,»\n",
            "def f(a, b): return g(a, b)\ndef h(a): return tuple(a)\ndef k(a): return a[1, 2]\n",
            "def f():\n    return lambda: (1, 2)\n",
        ),
    ),
    "return_call": Case(
        yes=("def f(x):\n    «return g(x)»\n", "def f(x):\n    «return x.g().h(1)»\n"),
        no=("def f(x):\n    return x\n",),
        tricky=(
            "async def f(x):\n    return await g(x)\n",
            "def f(x): return g(x) + 1\ndef h(x): return not g(x)\ndef k(x): return g(x)[0]\ndef m(x): return g(x).y\n",
            "def f(x):\n    «return (\n        g(x)\n    )»\ndef h(x): return 'g(x)'\ndef k(x): return (y := g(x))\n",
            "def f(): return lambda: g()\ndef h(): «return (lambda: 1)()»\n",
        ),
    ),
    "return_predicate": Case(
        yes=(
            "def f(x):\n    «return x > 1»\n",
            "def f(x):\n    «return x and g(x)»\n",
            "def f(x):\n    «return not x»\n",
        ),
        no=("def f(x):\n    return x\n",),
        tricky=(
            "def f(x): return -x\ndef g(x): return ~x\ndef h(x): return x & 1\ndef k(x): return bool(x > 1)\n",
            "def f(x): return 'a < b and c'\ndef g(x): return f'{x == 1}'\ndef h(x): return (x == 1, not x)\n",
            "def f(x):\n    «return (\n        1 < x < 3\n    )»\ndef g(x): «return x or 'default'»\n",
            "def f(x): return x == 1 if x else 2\ndef g(x): return [y for y in x if not y]\n",
        ),
    ),
    "return_string": Case(
        yes=("def f():\n    «return 'a'»\n", "def f(x):\n    «return f'{x}'»\n"),
        no=("def f():\n    return 1\n", "def f():\n    return b'a'\n"),
        tricky=(
            'def f(): «return """\n  return 1\n"""»\ndef g(): «return ("a"\n  f"{1}" r"\\d")»\n',
            "def f(): return 'a'.join(x)\ndef g(): return 'a' % 1\ndef h(): return 'a',\ndef k(): return 'a' 'b' + c\n",
            "def ünï():\n\t«return 'ünï' \\\n\t\t'名'»\n",
        ),
    ),
}
