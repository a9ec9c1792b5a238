"""Names, numbers, and other literals."""

from concepts.cases import Case

CASES = {
    "builtin_name": Case(
        yes=("«print»(«len»(x))\n", "def f(«type»=«int»): pass\n"),
        no=("x.id = y.format(z)\n", "x = None is True\n"),
        tricky=(
            "s = 'print(len)'  # print\nprinter = lens\n",
            "x = (y. # c\n    id)\nz = y \\\n    .list\n",
            "from ...abs import «max» as «min»\nfrom .set import a\n",
            "match «type»:\n\tcase «str»() | ok.int(): pass\n",
            "if («id» := 3): «__import__»(f'{len(x)}')\n",
            "def f(\n  x, «print»\n",
        ),
    ),
    "single_letter_name": Case(
        yes=("«x» = np.«T»\n", "for «i» in range(«n»): pass\n", "«f»(«k»=1)\n"),
        no=("_ = xy\n", "self.name\n"),
        tricky=(
            "'x'  # y\nr'a'; b'c'; 1j; 0x1; f''\n",
            "«é» = «名» = 1e5 if «ß» else «a»\n",
            "async def «f»(*«a», **kw):\n\treturn «a»\\\n\t.«b»\n",
            "print(f\"{x}\" f'{y!r}')\n",
            "import numpy as «n»; from «a».bc import de as «q»\n",
        ),
    ),
    "camel_case": Case(
        yes=("self.«assertEqual»(a)\n", "«aB» = «é名X»\n"),
        no=("snake_case = PascalCase = UPPER = lower\n",),
        tricky=(
            "'camelCase'  # camelCase\n_camelCase = some_Case\n",
            "import module as «myModule»\ndef «setUp»(self): pass\n",
            "f'{camelCase}'\n@«aB»\nasync def f():\n\tawait «x1Y»\n",
            "iPhone_x = «iPhone» = ab\n",
        ),
    ),
    "pascal_case": Case(
        yes=("class «Foo»(Bar_x, «OSError»): pass\n", "«Élan» = x.«Aa»\n"),
        no=("camelCase = snake_case = UPPER = A\n",),
        tricky=(
            "x = True is None and False\n",
            "'Foo'  # Foo\n_Foo = Foo_Bar = T1 = A\n",
            "from a import «Bb» as B, C as «Dd»\n",
            "match x:\n\tcase «Foo»(A=1): pass\n",
            "Rb'Foo'; F'{Foo}'\n",
        ),
    ),
    "upper_case_name": Case(
        yes=("«MAX» = x.«FLAG_1»\n", "«_A» = «T1»\n"),
        no=("T = A\n", "Foo = bar\n"),
        tricky=(
            "'MAX'  # MAX\nMAx = ___ = 0XFF\n",
            "if («ÉÉ» := 1): «__ALL__» = 名名\n",
            "from a import b as «CD»\nf'{CD}'\n",
            "RB'x'; BR'y'\n",
        ),
    ),
    "private_attribute": Case(
        yes=("«self._x» = 1\n", "«f(y)._z».w\n", "««a._b»._c»()\n"),
        no=("_x = self.x_\n", "self.__x = y.__init__\n"),
        tricky=(
            "from ._a import _b as _c\nimport a._b\n",
            "'self._x'  # self._x\n",
            "x = («é\\\n  . _名»)\n",
            "del «x._»\ny.a__\n",
            "match x:\n\tcase «A._B»: pass\n",
            'x = f"{«self._y»}"\n',
            "async def f(): return await «(«g\n\t._h»)._i»\n",
        ),
    ),
    "int_literal": Case(
        yes=("x = «1» + «0xe5» - «0b1_0»\n", "y[«0»:-«7»]\n", "«1_000»if x else «2»\n"),
        no=("1.0; 1e5; 2j; x1; '3'; True\n",),
        tricky=(
            "«1» .real; 1.; 1_0J; 1E1_0; .5; «0XeE»\n",
            "f'{1}' 'x1'  # 1\n",
            "x = (\n  «0o7»,\n\\\n  «00»)\n",
            "match x:\n\tcase «1» | -«2»: pass\n",
            "print «1», (\n",
        ),
    ),
    "float_literal": Case(
        yes=("x = «1.0» + «.5»\n", "y = «1e5»\n", "«1_0.»\n"),
        no=("1; 2j; 0xe5; x.y; '1.0'\n",),
        tricky=("1.5j; 1e5J; 0XE1; «1E-3»; «1.»+2\n", "f'{1.5:2.3f}'  # 1.5\n", "«1.».real; «1.»\\\n.x; ...\n"),
    ),
    "complex_literal": Case(
        yes=("x = «1j» + «.5J»\n", "«1e5j»\n"),
        no=("1; j; x1j; 'j'; 1.0\n",),
        tricky=("f'{1j}'  # 1j\n0x1; «0_1.J».imag\n", "1 if j else «0j»\n"),
    ),
    "hex_literal": Case(
        yes=("x = «0xff» | «0X_A»\n",),
        no=("0b1; 0o7; 10; x0ff\n",),
        tricky=("'0xff'; b'\\xff'  # 0xff\nf'{0xff}'\n", "-«0x1»if x else 0\n", "f(\n «0xF»)\n"),
    ),
    "bin_oct_literal": Case(
        yes=("x = «0b1» | «0O17»\n",),
        no=("0xb1; 10; 0; o7\n",),
        tricky=("'0b1'; 0xB1; 0x0b1; 00  # 0b1\n", "f'{0b1}'; «0B_1»\\\n+«0o0»\n"),
    ),
    "large_int": Case(
        yes=("x = «1001» + «0xffff»\n", "«1_000_000»\n"),
        no=("1000; 0x10; 5; 1e9; 2000.0; 2000j\n",),
        tricky=(
            "1_000; 0x3e8; «0x3e9»; 0b1111100111; 0000_0000; «0o2000»\n",
            "'2000'  # 2000\nf'{2000}'\nx2000 = -«2000»\n",
            "«" + "9" * 5000 + "» + (\n",
        ),
    ),
    "bool_literal": Case(
        yes=("x = «True» or «False»\n", "def f(a=«False»): pass\n"),
        no=("x = None\n", "true = false\n"),
        tricky=(
            "'True'  # False\nTrue_ = 1\n",
            "match x:\n\tcase «True»: pass\n",
            "while «True»:\\\n\tf(f'{True}')\n",
            "print «True» (\n",
        ),
    ),
    "none_literal": Case(
        yes=("x = «None»\n", "def f(a: int | «None» = «None») -> «None»: pass\n"),
        no=("x = none = NoneType\n",),
        tricky=(
            "'None'  # None\n",
            "match x:\n\tcase «None»: pass\n",
            "f'{None}'; async_ = ((«None»))\n",
            "x is not\\\n«None»\n",
        ),
    ),
    "ellipsis_literal": Case(
        yes=("def f(): «...»\n", "x[«...», 1]\n"),
        no=("x = Ellipsis\n", "'...'  # ...\n"),
        tricky=(
            "from ... import x\nfrom ...a import b\nfrom .... import c\n",
            "def é(x: tuple[int, «...»] = «...»): yield from «...»\n",
            "(«...»); '…'; f'...'\n",
            "class A: «...»; x = «...».__class__\n",
        ),
    ),
    "list_literal": Case(
        yes=("x = «[]»\n", "f(«[1, «[2]»]»)\n"),
        no=("x = [a for a in b]\n", "[a, b] = c\n", "x[1]\n"),
        tricky=(
            "'[1]'  # [1]\nfor [a, b] in «[\n\t1, # ]\n\t2]»: del [c]\n",
            "match x:\n\tcase [1, 2]: pass\n",
            "@f(«[é]»)\nasync def g(a: Callable[«[int]», int]): pass\n",
            "[a, x[1]], y = («[«[]»[0]]»)\n",
            "if (n := «[*a]»): s = f'{«[1]»}'\n",
            "y = x[«[0, 1]»]\n",
        ),
    ),
    "tuple_literal": Case(
        yes=("x = «(1, 2)»\n", "return_ = «1, 2»\n", "f(«()»)\n"),
        no=("(a, b) = c\n", "f(1, 2)\n", "x = (1)\n", "def f(a, b): pass\n"),
        tricky=(
            "x[1, 2]; x[(1, 2)]; x[«(1, 2)»,]\n",
            "'(1, 2)'  # (1, 2)\nfor a, b in «(c), d»: del (a, b)\n",
            "match «x, y»:\n\tcase (1, 2): pass\n",
            "a, b = «b, a»; isinstance(x, «(é, ê,)»)\n",
            "x = «{1}, {2}»\n",
            "x = f'{«a, b»} {«(c, d)»}{ «{1}, 2»}{ «e, f» }'\n",
            "with (a, b): pass\nwith «(a, b)» as c: pass\nasync def f(): yield «1, \\\n2»\n",
            "(yield_ := «(1,\n)»)\n",
        ),
    ),
    "dict_literal": Case(
        yes=("x = «{}»\n", "f(«{'a': «{**b}»}»)\n"),
        no=("x = {1}\n", "{a: b for a, b in c}\n", "dict(a=1)\n"),
        tricky=(
            "'{1: 2}'  # {}\nf'{x:{y}}'\n",
            "match x:\n\tcase {'a': 1}: pass\n",
            'é = «{\n\t1: 2,  # }\n}»; y = f"{ «{1: 2}»[1]}"\n',
            "@f(**«{}»)\nasync def g(a=(«{}»)): return (n := «{'a':\\\n1}»)\n",
        ),
    ),
    "set_literal": Case(
        yes=("x = «{1, 2}»\n", "y in «{*a, *b}»\n"),
        no=("x = {}\n", "{a for a in b}\n", "set()\n"),
        tricky=(
            "'{1}'  # {1}\nf'{x}'\n",
            "x = «{(1,\n\t2)}»\nf'{ «{é}» }'\n",
            "match «{1}»:\n\tcase {}: pass\n",
            "@f(«{1}»)\nasync def g(): return ((n := «{a}»))\n",
        ),
    ),
}
