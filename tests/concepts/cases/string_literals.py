"""String literals."""

from concepts.cases import Case

LONG = "x" * 81
CASES = {
    "bytes_literal": Case(
        yes=('x = «b\'a\'» «B"""\nb"""»\n', "«rb'\\d'» + «Br''»\n"),
        no=("x = 'b' + f'b'\n", 'bytes(x)  # b""\n'),
        tricky=(
            "\"b'a'\"\nb = ab\n",
            "f\"{b'a'}\"\n",
            "match x:\n\tcase «b'a'»: é = (\\\n«b''»)\n",
            "print «b'a'» (\n",
        ),
    ),
    "string_literal": Case(
        yes=("x = «'a'» «\"b\"»\n", "«f'{x}'»; «R''»\n", "«'''\na'''»\n"),
        no=("b'a'\n", "x = 1  # 'a'\n"),
        tricky=(
            "é = «u'a\\'b'» \\\n  «'#'»; BR'x'\n",
            "match x:\n\tcase «'a'» | {«'b'»: y}: pass\n",
            "x = «f\"a{y['k']}b{f(1)}\"»\n",
            "@f(«'a'»)\nasync def g(a=(«''»)): «'d'»\n",
            "print «'x'», (  # 'y'\n",
        ),
    ),
    "single_quoted": Case(
        yes=("x = «'a'» + «f'b'»\n",),
        no=('x = "a"\n', "'''a'''\n", "b'a'\n"),
        tricky=("\"'a'\"  # 'a'\n''''a' '''\n", "«''» «r'\\\\'»\\\n«'\"'»\n", "f\"{'a'}\"\n"),
    ),
    "double_quoted": Case(
        yes=('x = «"a"» + «f"b"»\n',),
        no=("x = 'a'\n", '"""a"""\n', 'b"a"\n'),
        tricky=('\'"a"\'  # "a"\n', '«""» «"\'"»; """"a" """\n', "f'{\"a\"}'\n", 'x = («"é\\\nb"»)\n'),
    ),
    "triple_quoted": Case(
        yes=('x = «"""a"""»\n', "«'''\na\n'''»\n", "«rf'''{x}'''»\n"),
        no=("'a' \"\"\n", 'b"""a"""\n'),
        tricky=(
            '\'"""a"""\'  # \'\'\'\n',
            "«''''a' '''»; «\"\"\"\"\"\"»\n",
            "def f():\n\t«'''é\n\t\"\"\" '''»; \"\" ''\n",
        ),
    ),
    "raw_string": Case(
        yes=('x = «r\'\\d\'» + «R"""a"""»\n', "«fr'{x}'» «Rf''»\n"),
        no=("'r'; '\\\\d'; f''\n", "rb'a'; Br'a'\n"),
        tricky=("\"r'a'\"  # r'a'\nr = u'r'\n", "x = («r'é\\\n'»)\nf\"{r'a'}\"\n"),
    ),
    "fstring": Case(
        yes=("x = «f'{a}'» + «F\"b\"»\n", "«rf'''\n{a}\n'''»\n", "«f''» 'a'\n"),
        no=("'f'; '{x}'.format(f)\n", "r'{x}'\n"),
        tricky=(
            "\"f'{a}'\"  # f'{a}'\nf = b'f'\n",
            "async def f(): return «f\"{a!r:>{len('b')}} {{c}} {f(f'{d}')}\"»\n",
            "match «f'é{x:=^3}'»:\n\tcase 'f': y = «f'{(n := 1)}'»\n",
        ),
    ),
    "multiline_string": Case(
        yes=('x = «"""a\nb"""»\n', "f(«'a\\\nb'»)\n", "«f'''\n{x}\n'''»\n"),
        no=("'a\\nb'\n", '"""a"""\n'),
        tricky=("x = ('a'\n'b')  # '''\n", "b'''\n'''; «'''é\n'''» '''a'''\n", "f('a', \\\n'b')\n"),
    ),
    "long_string": Case(
        yes=(f"x = «'{LONG}'»\n", f"«f'{{x}}{LONG}'»\n"),
        no=(f"x = '{LONG[1:]}'\n", f"b'{LONG}'\n", f"x = 1  # '{LONG}'\n"),
        tricky=(
            f"'{LONG[:50]}' '{LONG[:50]}'\n",
            f"rf'{LONG[1:]}'\n",
            "«'''" + "é" * 90 + "'''»; '" + "é" * 80 + "'\n",
        ),
    ),
    "empty_string": Case(
        yes=("x = «''» + «\"\"»\n", 'f(«""""""», «f\'\'»)\n'),
        no=("' '; b''\n", "'a'\n"),
        tricky=("'\"\"'  # ''\nx = '''\n'''\n", "'é' «''» \\\n«r''»\n", "f\"{''}\"\n"),
    ),
    "non_ascii_string": Case(
        yes=("x = «'é'»\n", "«f'{x} 名'» 'a'\n"),
        no=("é = 'e'  # é\n", "'\\u00e9' '\\N{DASH}'\n"),
        tricky=("'a' «'''\n😀'''» b'\\xff'\n", "«'…'»if é else'...'\n"),
    ),
    "format_template": Case(
        yes=("«'{}'».format(x)\n", "«'a {0.b[c]!r:>{w}} {d}'»\n", "«u'''{x:.3f}'''»\n"),
        no=("f'{x}'\n", "r'\\d{3}'\n", "'{{}}' '{' '}'\n", "'{\"a\": 1}'\n"),
        tricky=(
            "'\\N{DASH}{{x}}' '{ }' '{x y}' '{a-b}'\n",
            "«'{{{x}}}'»; «'\\\\{x}'»; '{{{{x}}}}'\n",
            "b'{}'; rf'{x}'  # '{}'\n",
            "x = (\\\n«'é{名}'» '{1,2}')\n",
            '"{" «"{}"»\n',
        ),
    ),
    "percent_template": Case(
        yes=("«'%s'» % x\n", "«'100%% of %(n)-5.2f'»\n", "log(«r'%d %r'», x)\n"),
        no=("'100%'\n", "'%%'\n", "'%Y-%m-%d'\n", "'a' % b\n"),
        tricky=(
            "'100% sure'; '%%s'; '%H:%M'; «'%%%s'»\n",
            "f'{x:%d}'; b'%s'  # '%s'\n",
            "«'%*.*f %#x'» \\\n% é; '%20'; '%(x)'\n",
            "'''%s %''' «'名%c'»\n",
        ),
    ),
    "regex_like_string": Case(
        yes=("re.match(«r'\\d+'», x)\n", "«r'[a-z]*'» «R'(?P<a>b)'»\n"),
        no=("'\\\\d+'\n", "r'C:\\new'\n", "x[r'a'] * 2\n"),
        tricky=("rb'\\d'; r'\\n' r'(a)'; '(?:a)'  # r'\\d'\n", "«rf'{x}\\W'»; x = («r'''é\n(a)?'''»)\n", "«r'f(?)'»\n"),
    ),
    "markup_string": Case(
        yes=("x = «'<b>a</b>'»\n", "«'<br/>'» «'<a href=\"x\">'»\n", "«f'</{x}></p>'»\n"),
        no=("'a < b > c'\n", "'<object at 0x1>'\n", "'<1>' '<>'\n"),
        tricky=(
            "x<b>y; b'<b>'  # <b>\n",
            "'<a@b.c>' '<' 'b>' '->' '<{x}>'\n",
            "«'''<é\n<x:y-z\n  a = 1\n>'''»; '<b c>'\n",
            "f(x) \\\n if «'< <B >'» else '<b'\n",
        ),
    ),
    "url_string": Case(
        yes=("x = «'http://a'»\n", "«f'see https://{x}'»\n", "«'''\nhttps://a\n'''»\n"),
        no=("'ftp://a'; 'http:/'; b'http://'\n", "x = 1  # http://a\n"),
        tricky=("'http:' '//'; 'HTTP://'\n", "x = (\\\n«'éhttp://'»); 'https:\\//'\n"),
    ),
    "filename_string": Case(
        yes=("open(«'a.py'»)\n", "«'../data/x-1.json'» «\"C\\\\a.tar.gz\"»\n"),
        no=("'os.path'; '.py'; '*.txt'\n", "'a b.txt'; 'a.py '\n", "b'a.py'\n"),
        tricky=(
            "'http://a/b.html'; f'{x}.py'; 'a.pyx1'; 'a.py.x'  # 'a.py'\n",
            "a.py = «'é.c'»; «f'a.txt'»; '/.log'; 'a.PY'\n",
            "'a' '.py'; \\\n«'''~/x.md'''»\n",
            "'a.py\\n'; '''a.py\n'''\n",
        ),
    ),
}
