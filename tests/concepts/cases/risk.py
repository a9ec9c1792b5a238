"""What a reviewer of security or quality would stop at."""

from concepts.cases import Case

CASES = {
    "bare_except": Case(
        yes=("try:\n    f()\n«except:\n    pass»\n",),
        no=("try:\n    f()\nexcept OSError:\n    pass\n",),
        tricky=(
            "x = 'except:'  # except:\n",
            "try:\n    f()\n«except:\n    try:\n        g()\n    «except:\n        pass»»\n",
            "try: f()\n«except : pass»\n",
        ),
    ),
    "swallowed_exception": Case(
        yes=(
            "try:\n    f()\n«except OSError:\n    pass»\n",
            "try:\n    f()\n«except (KeyError, ValueError) as error: ...»\n",
            "try:\n\tf()\n«except:\n\tpass»\nelse:\n\tg()\n",
        ),
        no=(
            "try:\n    f()\nexcept OSError:\n    log(1)\n",
            "try:\n    f()\nexcept OSError:\n    raise\n",
            "for x in y:\n    try:\n        f()\n    except OSError:\n        continue\n",
        ),
        tricky=(
            "try:\n    f()\n«except OSError:  # why\n    'not now'\n    # nothing\n    pass; pass»\n",
            "try:\n    f()\nexcept OSError:\n    pass\n    x = None\n",
            "try:\n    pass\nexcept OSError:\n    return_ = f'{pass_}'\nfinally:\n    pass\n",
            "try:\n    f()\n«except* OSError:\n    pass»\n",
            "try:\n    f()\nexcept OSError:\n    if x:\n        pass\n",
            "try:\n    f()\nexcept OSError:\n    f'{x()}'\n",
        ),
    ),
    "star_import": Case(
        yes=("«from os import *»\n", "«from . import *»\n", "«from .a.b import *»\n"),
        no=("from os import path\nimport os\n",),
        tricky=(
            "s = 'from os import *'  # from os import *\n",
            "def f(*, a): return f(*a)\n",
            "«from a \\\n  import *»; x = 1\n",
        ),
    ),
    "global_statement": Case(
        yes=("def f():\n    «global x, y»\n    x = 1\n",),
        no=("def f():\n    def g():\n        nonlocal x\n    x = 1\n",),
        tricky=(
            "s = 'global x'  # global x\nglobal_ = globals()\n",
            "def f(): «global ünï»; ünï = 1\n",
            "«global x»\n",
        ),
    ),
    "mutable_default_argument": Case(
        yes=(
            "def f(x=«[]», y=«{}», *, z=«{1}»):\n    pass\n",
            "async def f(x=«list()», /, y: dict[str, int] = «dict(a=1)», z=«set()»): ...\n",
            "f = lambda x=«[i for i in y]», y=«{i: i for i in y}», *, z=«{i for i in y}»: x\n",
        ),
        no=(
            "def f(x=None, y=(), z=0, w=frozenset()):\n    x = []\n",
            "def f(x: list = None) -> dict:\n    return g(x=[], y={})\n",
            "x = []\nfoo(y=list())\n",
        ),
        tricky=(
            "def f(x=(«[]»), *, y, z=None): ...\n",
            "def f(x=[] or None, y=(i for i in z), w=tuple([]), v=list): ...\n",
            "class A:\n    x: list = []\n    def f(self, x=\\\n      «[]»): ...\n",
            "@deco(x=[])\ndef f(x=lambda y=«[]»: y): ...\n",
            "from sqlalchemy import list\ndef f(x=list()): ...\n",
            "def list(): ...\ndef f(x=list(), y=«dict()»): ...\n",
            "def set(): ...\nclass A:\n    def list(self): ...\n"
            "    def f(self, x=obj.dict(), y=set(), z=«{*()}»): ...\n",
            "import builtins as b\ndef f(x=«b.list()», y=list[int]()): ...\n",
            "def f(list, x=«list()»): ...\n",
            "def f(x='[]', y=\"{}\"):  # x=[]\n    pass\n",
        ),
    ),
    "hardcoded_secret": Case(
        yes=(
            "password = «'hunter2'»\n",
            "DB_PASSWORD: str = «\"x\"»\nGITHUB_TOKEN = «'ghp'»\ngithub_token = «'ghp'»\nauthToken = «'a'»\n",
            "self.apiKey = «'k'»\nconfig['api-key'] = «'k'»\n",
            "connect(user='a', passwd=«'b'», **{'secret_key': «'c'»})\n",
            "def f(user='a', token=«'t'», *, secret=«'s'»): ...\n",
            "SECRET_KEY = «b'dev'»\n",
            "x = {'user': 'a', 'access_key': «'b'»}\n",
        ),
        no=(
            "password = ''\ntoken = None\nsecret = b''\napi_key = 3\n",
            "password = os.environ['PASSWORD']\n",
            "password = '<your password>'\npad_token = '<pad>'\ncls_token = b'[CLS]'\n",
            "password_field = 'x'\ntokens = 'y'\nsecretary = 'z'\nmonkey = 'a'\n",
            "password: str\npassword = getpass('password')\n",
        ),
        tricky=(
            "# password = 'hunter2'\ns = \"password = 'hunter2'\"\n",
            "user, password = 'a', «'b'»\nuser, token = pair\n[a, *token] = 'x', 'y'\n"
            "(a, (secret, b)) = c, («'d'», 'e')\n",
            "if password == 'x' or (token := «'y'»): ...\n",
            "ｐａｓｓｗｏｒｄ = «'ü'»\n",
            "a = password = b = («'x'\n  \"y\"»)\n",
            "password = f'{x}'\npassword += 'x'\npassword = 'a' + b\npassword = 'a' if b else 'c'\n",
            "password = \\\n    «'x'»; x = lambda secret=«'s'»: secret\n",
            "config['password']['user'] = 'x'\nconfig[password] = 'x'\nconfig[0]['password'] = «'x'»\n",
            "match x:\n    case {'password': 'y'}: token = «'z'»\n    case A(secret='s'): ...\n",
            "def f(a='secret', password=None, *, b='token', token): ...\n",
            "{'password': '', 'token': x, **{}}\nf('password', 'x')\nx = {'AWS::Secret': 'y', 'a secret': 'z'}\n",
        ),
    ),
    "sql_string": Case(
        yes=(
            "q = «'SELECT a, b FROM t WHERE c = ?'»\n",
            'q = «"""\n    INSERT INTO t\n    VALUES (1)\n"""»\n',
            "q = «'UPDATE t SET a = 1'»; r = «'DELETE FROM t'»; s = «'CREATE TABLE t (a)'»\n",
            "q = «'select * from t'»; r = «'insert into t values (1)'»; s = «'delete from t where a = 1'»\n",
            "q = «f'SELECT {a} FROM {t}'»\n",
            "q = «f'select count(*), {a} from {t}'»\n",
        ),
        no=(
            "q = 'Select a file from the list'\n",
            "q = 'select a file from the list'\n",
            "q = 'update the set of things'; r = 'insert into the list'; s = 'create table of contents'\n",
            "q = 'SELECT'; r = 'FROM t'; s = 'UPDATED t SET'\n",
        ),
        tricky=(
            "# SELECT a FROM t\nSELECT = FROM\n",
            "q = b'SELECT a FROM t'\n",
            "q = («'SELECT a '\n     'FROM t'»)\n",
            "q = («'SELECT a '  # é\n     f'FROM {t}'»)\n",
            "q = «'SELECT*FROM t'» + x\nr = 'the SELECT a FROM t'\n",
            'q = f"{x}SELECT a FROM t"\nr = f\'{f(«"SELECT a FROM b"»)}\'\n',
            "q = «'DELETE FROM '» + t\ns = «'select a.b as c, max(d) from e'»\n",
            "«'''SELECT is a word, FROM is another'''»\n",
            "q = 'Delete from t where a'; r = 'delete from the list those we do not need'\n",
            "q = 'update the set of what you see'; r = 'drop table manners in the dining hall'\n",
        ),
    ),
}
