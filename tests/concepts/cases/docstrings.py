"""Docstrings."""

from concepts.cases import Case


def of(text: str, quotes: str = '"""', found: bool = True) -> str:
    """A function with a docstring."""
    literal = f"{quotes}{text}{quotes}"
    return f"def f():\n    {f'«{literal}»' if found else literal}\n    return 1\n"


def told(yes: list[str], no: list[str], tricky_yes: list[str], tricky_no: list[str]) -> Case:
    """Those of what a docstring says: the same texts outside of docstrings are none."""
    elsewhere = f"def f(x='''{yes[0]}'''):\n    pass\n    '''{yes[0]}'''\n"
    formatted = f"class A:\n    f'''{yes[0]}'''\n\nclass B:\n    ('''{yes[0]}''',)\n"
    remark = "def f():\n" + "".join(f"    # {line}\n" for line in yes[0].split("\n")) + "    pass\n"
    in_parts = f"@d\nasync def é():\n\t«('a' # c\n\t'''\n{yes[0]}''')»; pass\n"
    return Case(
        yes=tuple(of(text) for text in yes),
        no=tuple(of(text, found=False) for text in no),
        tricky=(
            elsewhere,
            formatted,
            remark,
            in_parts,
            *(of(text) for text in tricky_yes),
            *(of(text, found=False) for text in tricky_no),
        ),
    )


CASES = {
    "docstring": Case(
        yes=(
            "def f():\n    «'a'»\n",
            'class A:\n    «"""\n    é\n    """»\n    x = 1\n',
            "async def f(): «r'a'»; pass\n",
        ),
        no=("def f():\n    x\n    'a'\n", "def f(x='a'): return 'b'\n"),
        tricky=(
            "«'''a'''»\n'''b'''\n",
            "# c\n\n«('a'\n  \"b\")»\n",
            "def f():\n\tf'a'\nclass A:\n\tb'a'\n",
            "if x:\n\t'a'\nfor y in z: 'b'\n",
            "class A:\n\tx = 1\n\t'a'\n\t@d('b')\n\tdef g(self): # c\n\n\t\t«u'''é\n'''»\n",
            "def f():\n\t'a'.join(x)\ndef g():\n\t'a' % b\ndef h(): 'a', 'b'\n",
            "def f():\n\t(n := 'a')\nlambda: 'a'\nmatch x:\n\tcase 1: 'a'\n",
        ),
    ),
    "one_line_docstring": Case(
        yes=("def f():\n    «'a'»\n", 'class A: «"""é b"""»; pass\n'),
        no=('def f():\n    """a\n    b"""\n', "def f():\n    x = 'a'\n"),
        tricky=(
            "def f():\n\t«'a\\nb'»\n",
            "async def f():\n\t'a'\\\n\t'b'\n",
            "def f():\n\t('a'\n\t)\n\t'''b'''\n",
            "def f():\n\t'''a\n'''\ndef g(): f'a'\n",
        ),
    ),
    "module_docstring": Case(
        yes=("«'a'»\n", '# c\n\n«"""é\n"""»; x = 1\n'),
        no=("x = 1\n'a'\n", "def f(): 'a'\n"),
        tricky=("class A:\n\t'a'\n", "f'a'\n", "«('a' # c\n  'b')»\n'c'\n", "'a' + 'b'\n", "from a import b\n'a'\n"),
    ),
    "class_docstring": Case(
        yes=("class A:\n    «'a'»\n", "class A(B): «'''é\n'''»; x = 1\n"),
        no=("def f(): 'a'\n", "class A:\n    x = 1\n    'a'\n"),
        tricky=(
            "'a'\nclass A:\n\tdef f(self): 'b'\n",
            "def f():\n\t'a'\n\t@d('x')\n\tclass A: # c\n\n\t\t«('b'\n'c')»\n\t\tclass B: «'d'»\n",
            "class A: f'a'\nclass B: b'b'\n",
        ),
    ),
    "function_docstring": Case(
        yes=("def f():\n    «'a'»\n", "class A:\n    async def f(self): «'''é\n'''»; pass\n"),
        no=("class A: 'a'\n", "def f():\n    x\n    'a'\n"),
        tricky=(
            "'a'\ndef f(x='b'):\n\tf'c'\n",
            "@d('x')\ndef f(): # c\n\n\t«('a'\n'b')»\n\tdef g():\n\t\t«'c'»\n\tclass A: 'd'\n",
            "lambda: 'a'\ndef f(): b'a'\n",
        ),
    ),
    "google_docstring": told(
        ["A.\n\n    Args:\n        x: y\n    ", "A.\n\n    Yields: \n        é\n    "],
        ["A: Args", "Parameters\n    ------\n    "],
        ["Returns:\n    x"],
        ["See Args: x", "Args: x", "args:\n", "Args::\n", "My Args:\n"],
    ),
    "numpy_docstring": told(
        ["A.\n\n    Parameters\n    ----------\n    x : int\n    ", "A.\n    Returns\n    ---\n    é"],
        ["Parameters: x", "Args:\n    x: y"],
        ["Other Parameters\n    ----------------\n"],
        [
            "Parameters\n    ==========\n",
            "Parameters\n\n    -----\n",
            "Title\n    -----\n",
            "Notes\n    --\n",
            "a Notes\n----\n",
        ],
    ),
    "rest_docstring": told(
        ["A.\n\n    :param x: y\n    ", "A.\n    :rtype: é\n    "],
        ["Args:\n    x: y", "param x: y"],
        [":raises ValueError: if", ":param int x: a", "\n\t:returns: x"],
        ["See :param x: y", "A :class:`x` or\n    :meth:`y`", ":param: x", ":returns x"],
    ),
    "doctest_example": told(
        ["A.\n\n    >>> f(1)\n    1\n    ", ">>> é\n"],
        ["A > b >> c", "..."],
        ["\n\t>>> x"],
        ["See >>> x", ">>>x", "> >> x"],
    ),
    "doc_returns": told(
        ["Returns é", "A.\n\n    :return: x\n    ", "A.\n    Return:\n        x"],
        ["A.", "returns x"],
        ["A :rtype: x", "(Return)"],
        ["RETURNS", "Returned", "return_x Returns_y", ":return x:"],
    ),
    "doc_raises": told(
        ["Raises é", "A.\n\n    :raises X: y\n    ", "Raise it"],
        ["A.", "raises x"],
        ["a :raise X:", "Raises:\n   X"],
        ["RAISES", "Raised", ":raised x:", "Raises_y"],
    ),
    "doc_examples": told(
        ["A.\n\n    Examples\n    --------\n    é\n    ", "A.\n    Example::\n        x"],
        ["A.", "Example of x"],
        ["Example:", "a\n\tExamples: \n"],
        ["For Example:", "Example: x", "example:\n", "Exampless\n"],
    ),
    "doc_deprecated": told(
        ["Deprecated é", "A.\n\n    .. deprecated:: 1.0\n    "],
        ["A.", "deprecate"],
        ["It is DEPRECATED."],
        ["undeprecated", "deprecated_x", "Deprecates"],
    ),
}
