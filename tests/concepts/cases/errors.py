"""The parts of try statements, and which exceptions they handle."""

from concepts.cases import Case


def handles(name: str, *also: str, other: str) -> Case:
    """Cases of except clauses that name one of these built-in exceptions; `other` is none of them."""
    start = "try:\n    f()\n"
    every = "".join(f"«except {one}:»\n    pass\n" for one in (name, *also))
    return Case(
        yes=(f"{start}{every}", f"{start}«except ({other}, {name}) as e:»\n    raise X from e\n"),
        no=(f"{start}except {other}:\n    pass\n", f"{start}except:\n    raise {name}\n"),
        tricky=(
            f"s = 'except {name}:'  # except {name}:\n{start}except My{name}:\n    pass\n",
            f"from x import {name}\n{start}except {name}:\n    pass\n",
            f"{start}except x.{name}:\n    pass\nexcept {name}.x:\n    pass\nexcept f({name}):\n    pass\n",
            f"try:\n\tawait_ = 1\n«except (  # why: this\n\t*ünï,\n\t{name},\n):» x = {{1: 2}}\n",
            f"{start}«except* \\\n    {name}:»\n    with suppress({name}):\n        pass\n",
            (
                f"async def f():\n    try: g()\n    except {other}:\n        try: h()\n"
                f"        «except ({name}) as Ä:» raise\n"
            ),
        ),
    )


CASES = {
    "try_block": Case(
        yes=("«try:»\n    f()\nexcept E:\n    pass\n", "«try:»\n    f()\nfinally:\n    g()\n"),
        no=("f()\n", "with suppress(E):\n    f()\n"),
        tricky=(
            "s = '''\ntry:\n    f()\n'''  # try:\ntry_ = {1: 2}\n",
            "«try :»  # a comment: here\n    @d(x=lambda: 1)\n    def f(x: int): ...\nexcept* E: ...\n",
            "async def f():\n\t«try:» x = await g()\n\texcept Ä:\n\t\t«try:» # x: y\n\t\t\tpass\n\t\tfinally: pass\n",
        ),
    ),
    "try_else": Case(
        yes=(
            "try:\n    f()\nexcept E:\n    pass\n«else:»\n    g()\n    h()\n",
            "try:\n    f()\nexcept E:\n    pass\n«else:»\n    @d\n    def g():\n        pass\nfinally:\n    h()\n",
        ),
        no=("if x:\n    pass\nelse:\n    pass\n", "try:\n    f()\nexcept E:\n    pass\n"),
        tricky=(
            (
                "try:\n    x = 1 if y else 2\nexcept E: z = 'else:'\n«else:» # else: 1\n    # else: @\n"
                "    @(a if b else c)\n    class A: x = 1 if y else 2\n"
            ),
            "for i in x:\n    try: f()\n    except E: pass\nelse:\n    g()\n",
            (
                "try:\n\tpass\nexcept* Ü:\n\tpass\n«else :»\n\ttry: g()\n\texcept E: pass\n"
                "\t«else:» (h()\n\t\tif x else y); z = 2\n"
            ),
            "try:\n    f()\nexcept E:\n    while x: pass\n    else: pass\nfinally: s = '''\nelse:\n    g()\n'''\n",
            "async def f():\n    try: pass\n    except E: pass\n    «else:» \\\n        (y := await g())  # else:\n",
        ),
    ),
    "finally_block": Case(
        yes=(
            "try:\n    f()\n«finally:»\n    g()\n    h()\n",
            "try:\n    f()\nexcept E:\n    pass\nelse:\n    pass\n«finally:»\n    class A:\n        x = 1\ny = 2\n",
        ),
        no=("try:\n    f()\nexcept E:\n    pass\n", "finally_ = 1\n"),
        tricky=(
            "s = '''\nfinally:\n    f()\n'''  # finally:\n",
            (
                "try:\n\ttry: ünï()\n\t«finally:» pass  # finally: x\n"
                "«finally:»  # finally\n\t# finally:\n\t@finally_\n\tasync def f(): ...\n"
            ),
            "try: pass\nexcept* E: pass\n«finally :» \\\n    (x := f'finally: {y}'); z(\n        1)\n",
        ),
    ),
    "except_handler": Case(
        yes=(
            "try:\n    f()\n«except E:\n    g()\n    h()»\n«except:\n    pass»\n",
            "try:\n    f()\n«except (A, B) as e:\n    raise»\nelse:\n    g()\n",
        ),
        no=("try:\n    f()\nfinally:\n    pass\n", "with suppress(E):\n    pass\n"),
        tricky=(
            "s = 'except E: pass'  # except E: pass\n",
            "try: f()\n«except* Ä: g(); h(\n    1)»  # a comment\n",
            "try:\n\tf()\n«except E:\n\ttry: g()\n\t«except F: pass»»\n",
            (
                "async def f():\n    try: pass\n    «except \\\n      E as e:\n        @d\n"
                "        def g(): '''\nexcept:\n'''»\n    finally: pass\n"
            ),
        ),
    ),
    "except_as": Case(
        yes=(
            "try:\n    f()\n«except E as e:»\n    pass\n",
            "try:\n    f()\n«except (A, B) as e:»\n    raise X from e\n",
        ),
        no=("try:\n    f()\nexcept E:\n    pass\n", "with f() as e:\n    pass\n"),
        tricky=(
            "try:\n    import a as b\nexcept E:  # as e:\n    with x as y: pass\n",
            "try: f()\n«except* (A,  # a: b\n    B) as ünï :» x = {1: 2}\n",
            "try: f()\nexcept ass:\n    try: g()\n    «except E \\\n        as e:» lambda x: 1\n",
            "match x:\n    case E() as e: s = 'except E as e:'\n",
        ),
    ),
    "multi_except": Case(
        yes=("try:\n    f()\n«except (A, B):»\n    pass\n", "try:\n    f()\n«except (A, b.C, D) as e:»\n    raise\n"),
        no=("try:\n    f()\nexcept A:\n    pass\nexcept B:\n    pass\n", "try:\n    f()\nexcept:\n    pass\n"),
        tricky=(
            (
                "try: f()\nexcept (A,): x = 'except (A, B):'  # (A, B):\nexcept (B): pass\n"
                "except (): pass\nexcept f(A, B): pass\n"
            ),
            "try: f()\nexcept ERRORS:\n    pass\nexcept (*a,):\n    pass\nexcept A + (B, C): pass\n",
            "try: f()\n«except* (  # why: this\n\tÄ,\n\t*B,\n) :» x: int = 1\n",
        ),
    ),
    "broad_except": handles("Exception", "BaseException", other="ExceptionGroup"),
    "handles_key_error": handles("KeyError", other="LookupError"),
    "handles_os_error": handles(
        "OSError", "IOError", "EnvironmentError", "FileNotFoundError", "TimeoutError", other="EOFError"
    ),
    "handles_value_error": handles("ValueError", other="UnicodeError"),
    "handles_type_error": handles("TypeError", other="NameError"),
    "handles_attribute_error": handles("AttributeError", other="NameError"),
    "handles_index_error": handles("IndexError", other="LookupError"),
    "handles_stop_iteration": handles("StopIteration", "StopAsyncIteration", other="GeneratorExit"),
}
