"""Statements and calls that raise, warn or end the program."""

from concepts.cases import Case


def raises(name: str, *also: str, other: str) -> Case:
    """Cases of raise statements of these built-in exceptions; `other` is none of them."""
    every = "".join(f"«raise {one}('x')»\n" for one in (name, *also))
    return Case(
        yes=(f"{every}«raise {name}»\n", f"if x:\n    «raise {name}(f(1)) from e»\n"),
        no=(f"raise {other}('{name}')\n", f"x = {name}('x')\n"),
        tricky=(
            f"s = 'raise {name}()'  # raise {name}()\nraise My{name}\nraise {name}_()\n",
            f"from x import {name}\nraise {name}('x')\n",
            f"raise x.{name}()\nraise {name}.x\nraise f({name})\nraise X from {name}()\nraise {name}()(1)\n",
            f"def f():\n\tif ünï: «raise ({name})(\n\t\t'x',  # raise {name}\n\t)»; x = 1\n",
            f"async def f():\n    try: g()\n    except {name}: raise\n    else: «raise \\\n        {name} from None»\n",
            f"match x:\n    case _ if (y := 1): «raise {name}(f'raise {{x:3}}', *a, **k)»\n",
        ),
    )


CASES = {
    "raise_statement": Case(
        yes=("«raise E»\n", "try:\n    f()\nexcept E as e:\n    «raise X(1) from e»\n"),
        no=("f()\n", "x.raise_for_status()\n"),
        tricky=(
            "s = 'raise E'  # raise E\nraise_ = 1\nf.throw(E)\n",
            "if x: «raise E(\n    'ü',  # a comment\n)»; «raise»\n",
            "async def f():\n\t'''raise E'''\n\t«raise \\\n\t\t(yield)»\n",
        ),
    ),
    "raise_from": Case(
        yes=("«raise X from e»\n", "«raise X(1) from None»\n"),
        no=("raise X\n", "from e import x\n"),
        tricky=(
            "raise X('from e')  # from e\nraise X((yield from e))\nraise\n",
            "if x: «raise X(\n    'ü'\n) \\\n    from f(e)»; from a import b\n",
            "s = 'raise X from e'\nasync def f():\n\t«raise (await X)from(y := e)»\n",
        ),
    ),
    "reraise": Case(
        yes=("try:\n    f()\nexcept E:\n    «raise»\n", "def f():\n    g()\n    «raise»\n"),
        no=("raise E\n", "try:\n    f()\nexcept E as e:\n    raise e\n"),
        tricky=(
            "s = 'raise'  # raise\nraise_ = 1\nraise(E)\nraise \\\n    E\n",
            "try: f()\nexcept* Ü: g(); «raise»  # E\nelse: '''\nraise\n'''\n",
            "async def f():\n\tif x: «raise»; raise E\n",
        ),
    ),
    "raises_value_error": raises("ValueError", other="UnicodeError"),
    "raises_type_error": raises("TypeError", other="NameError"),
    "raises_key_error": raises("KeyError", other="LookupError"),
    "raises_runtime_error": raises("RuntimeError", other="RecursionError"),
    "raises_attribute_error": raises("AttributeError", other="NameError"),
    "raises_index_error": raises("IndexError", other="LookupError"),
    "raises_stop_iteration": raises("StopIteration", "StopAsyncIteration", other="GeneratorExit"),
    "not_implemented": raises("NotImplementedError", other="RuntimeError"),
    "input_validation": Case(
        yes=(
            "«if x < 0:»\n    raise E\n",
            "«if x:»\n    m = 1\n    raise E(m)\n«elif y:»\n    raise F from e\nelse:\n    g()\n",
        ),
        no=("if x:\n    f()\n", "if x:\n    f()\nelse:\n    raise\n"),
        tricky=(
            "if x:\n    f()\nelse:\n    raise E\n",
            "try:\n    f()\nexcept E:\n    if x:\n        raise\n",
            "if x:\n    if y: f()\n    else: raise E\nwhile z: raise E\n",
            "«if (y := x) and {1: 2}[  # why: this\n    'ü']:» f(); raise E\n",
            "if x:\n\tdef f(): raise E\n\tasync def g():\n\t\t«if z \\\n\t\t\t:» raise E\n",
            "if x:\n    raise E\n    f()\ns = 'if x: raise E'  # if x: raise E\ny = 1 if x else E\n",
            "for i in x:\n    «if i:»\n        'raise E'\n        raise (E)  # raise\n    else: pass\n",
        ),
    ),
    "assert_statement": Case(
        yes=("«assert x»\n", "«assert x == 1, 'message'»\n"),
        no=("x = 1\n", "self.assertEqual(x, 1)\n"),
        tricky=(
            "s = 'assert x'  # assert x\nassert_ = 1\nassert_(x)\n",
            "if x: «assert (\n    y, 'ü'  # a comment\n)»; z = 1\n",
            "async def f():\n\t«assert \\\n\t\t(await g()), f'{x:3}'»\n\t'''assert x'''\n",
        ),
    ),
    "warning_call": Case(
        yes=("import warnings\n«warnings.warn('x', W, stacklevel=2)»\n", "from warnings import warn\n«warn('x')»\n"),
        no=("log.warn('x')\n", "import warnings\nwarnings.simplefilter('ignore')\n"),
        tricky=(
            "warnings.warn('x')\n",
            "from x import warn\nwarn('x')\n",
            "import warnings as ü\nf = ü.warn\ns = 'ü.warn()'  # ü.warn()\nx = [«ü \\\n  .warn_explicit(\n    *a)»]\n",
            (
                "import warnings\nwarnings.warn\nself.warnings.warn('x')\nwarnings.warn.x()\n"
                "@«warnings.warn(f'{x}')»\nasync def f(): ...\n"
            ),
            "def f():\n\tfrom warnings import warn as w; «w('x')»; warn('x')\n",
        ),
    ),
    "program_exit": Case(
        yes=(
            "import sys\n«sys.exit(1)»\n",
            "«exit()»\n«quit()»\n«raise SystemExit(2)»\n",
            "import os\n«os._exit(0)»\n",
        ),
        no=("import sys\nsys.exit\n", "self.exit()\n", "raise Exit\n"),
        tricky=(
            "sys.exit(1)\nos._exit(1)\n",
            "from x import exit, SystemExit\nexit(1)\nraise SystemExit\n",
            (
                "from sys import exit as ende\ns = 'sys.exit()'  # sys.exit()\n"
                "if x: «raise SystemExit from «ende(\n    'ü')»»\n"
            ),
            (
                "import sys as s, os\nos.exit()\ns.exit.x()\nx.sys.exit()\ntry: «s.exit(main())»\n"
                "except SystemExit: raise\nx = SystemExit()\n"
            ),
            "async def f():\n\tawait exit_()\n\tatexit.register(exit)\n\twith x as quit: y = lambda: (quit)()\n",
        ),
    ),
}
