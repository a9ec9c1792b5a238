"""Operations with binary operators."""

from concepts.cases import Case


def binary(symbol: str, others: tuple[str, ...], *, tricky: tuple[str, ...] = ()) -> Case:
    """Binary operations with an operator; `others` are expressions without it."""
    return Case(
        yes=(f"x = «é {symbol} 1»\n", f"f(«(a) {symbol} b[c]», k=[«1{symbol}g()»])\n"),
        no=("x = a and b\n", *(f"x = {one}\n" for one in others)),
        tricky=(
            f"x {symbol}= 1\n",
            f"s = 'a {symbol} b'  # a {symbol} b\n",
            f"x = 'a' {symbol} b\ny = b {symbol} 'a'\n",
            f"x = f'{{a}}' {symbol} b\ny = b'a' {symbol} b\n",
            f"s = f'a {symbol} b {{«a {symbol} b»:>{{c}}}}'\n",
            f"x = (\n    «a  # b {symbol} c\n    {symbol}\n    ü»\n)\n",
            f"x = «a \\\n  {symbol} b» if (y := «c{symbol}d») else e\n",
            f"match «a {symbol} b»:\n\tcase c if «d {symbol} e»: pass\n",
            f"@f(«a {symbol} b»)\nasync def g(c=«a {symbol} b»): await («c {symbol} d»)\n",
            *tricky,
        ),
    )


LEFT = "x = ««a {0} b» {0} c»\n"

CASES = {
    "addition": binary(
        "+",
        ("+a", "a - b", "sum(a)"),
        tricky=(LEFT.format("+"), "x = «'a' + b + c»\n", "«a ++b»\n"),
    ),
    "subtraction": binary(
        "-", ("-a", "a + b"), tricky=(LEFT.format("-"), "x = «a --b»\n", "def f() -> None: x = 1e-5\n")
    ),
    "multiplication": binary(
        "*", ("a ** b", "f(*a)", "a / b"), tricky=(LEFT.format("*"), "def f(*a, **b): «a*b»\n", "x = [*a, «b * c»]\n")
    ),
    "division": binary(
        "/",
        ("a // b", "a * b"),
        tricky=(LEFT.format("/"), "def f(a, /, b): pass\n", "x = p / 'name'\n", "x = 'http://a/b'\n"),
    ),
    "floor_division": binary(
        "//", ("a / b", "divmod(a, b)"), tricky=(LEFT.format("//"), "x = 'http://a'\n", "x = a / (b / c)\n")
    ),
    "modulo": binary(
        "%",
        ("divmod(a, b)", "a / b"),
        tricky=(LEFT.format("%"), "x = '%d %s' % (a, b)\n", "x = ('a'\n  '%s') % b\n", "s = '{:%Y}'\n"),
    ),
    "power": binary(
        "**",
        ("a * b", "f(**a)", "pow(a, b)"),
        tricky=("x = «a ** «b ** c»»\n", "x = -«a ** b»\n", "def f(**a): return {**a}\n"),
    ),
    "matmul": binary(
        "@", ("a * b", "dot(a, b)"), tricky=(LEFT.format("@"), "@a\n@b.c\ndef f(): pass\n", "@«a @ b»\nclass C: pass\n")
    ),
    "bitwise_op": Case(
        yes=("x = «é & b»\n", "f(«a | b», «c ^ d»)\n", "x = «a | «b ^ «c & d»»»\n"),
        no=("x = a and b or c\n", "x = ~a\n", "x = a << b\n"),
        tricky=(
            "x &= 1; x |= 2; x ^= 3\n",
            "match x:\n\tcase 1 | 2 if «a | b»: pass\n",
            "def f(a: «int | None») -> «a | b»: pass\n",
            "x = 'a' | b\ny = b'a' ^ c\nz = d & f'e'\n",
            "s = 'a | b'  # a & b\n",
            "s = f'{a:^10} {«a ^ b»}'\n",
            "x = (\n    ««a  # b | c\n    | b» \\\n    | c»\n)\n",
            "x = lambda: (y := «a&b»)\n",
            "def f(a: 'int | None'): pass\n",
            "async def f(): return «await a | b»\n",
        ),
    ),
    "bit_shift": Case(
        yes=("x = «é << b»\n", "f(«a >> 1», «1 << 2 + 3»)\n"),
        no=("x = a < b > c\n", "x = a & b\n"),
        tricky=(
            "x <<= 1; y >>= 2\n",
            "x = «(«a << b») >> c»\n",
            "s = '>>> a << b'  # a >> b\n",
            "print >> 'f', x; y = b'' << a\n",
            "x = f'{a:>>10} {«a >> b»}'\n",
            "x = ««a  \\\n  << b» << (\n    c  # d >> e\n)»\n",
            "def f() -> 1: return a < b < c\n",
            "@f(«a << b»)\nasync def g(): (x := «await h >> 1»)\n",
        ),
    ),
}
