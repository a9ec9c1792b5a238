# ruff: noqa: E501
"""Functions: where they stand, what decorates them, what they are called; and lambdas."""

from concepts.cases import Case

CASES = {
    "function_def": Case(
        yes=("«def f(x):»\n    pass\n", "@g\n«async def f(x: int = 1) -> {1: 2}:»\n    return {3: 4}\n"),
        no=("class A:\n    pass\n", "f = lambda x: x\n"),
        tricky=(
            "x = 'def f(): pass'  # def f():\ny = f'''\ndef f():\n{x}'''\ndefine(x)\n",
            "«def f(\n    x=':',  # a: b\n):» return x[1:2]\n",
            "class A:\n\t«def é(self):»\n\t\t@g\n\t\t«def 名():» pass\n",
            "«def f():»  # a: b\n    # c: d\n    (yield)\nif x:\n    «def \\\n    g():» pass\n",
            "match def_:\n    case 1:\n        «def f(x=lambda: 1):» 'a: b'; pass\n",
        ),
    ),
    "async_function_def": Case(
        yes=("«async def f():»\n    pass\n", "class A:\n    @g\n    «async def f(self):» await x\n"),
        no=("def f():\n    pass\n",),
        tricky=(
            "«async def f():»\n    async for x in y: pass\n    async with z: pass\n    def g(): 'async def'\n",
            "«async   def é(\n):» ...  # async def f():\n",
        ),
    ),
    "method_def": Case(
        yes=("class A:\n    «def f(self):»\n        pass\n", "class A:\n    @g\n    «async def f():» pass\n"),
        no=("def f(self):\n    pass\n",),
        tricky=(
            "class A:\n    if x:\n        «def f(self):»\n            def g(self): pass\n    h = lambda self: 1\n",
            "def f():\n    class É:\n\n        '''def f(self):'''\n        «def g(self):» pass  # def f(self):\n",
            "class A: pass\ndef f(self): pass\n",
        ),
    ),
    "nested_function_def": Case(
        yes=("def f():\n    «def g():»\n        pass\n", "def f():\n    if x:\n        «async def g():» pass\n"),
        no=("def f():\n    pass\ndef g():\n    pass\n", "class A:\n    def f(self): pass\n"),
        tricky=(
            "def f():\n    class A:\n        def g(self):\n            «def h(x=':'):»  # def k():\n                pass\n",
            "def f():\n    g = lambda: 1\n    '''\n    def h(): pass\n    '''\n",
            "async def f():\n\t@g\n\t«def é(\n\t):» pass\n",
        ),
    ),
    "private_function": Case(
        yes=("«def _f():»\n    pass\n", "class A:\n    «async def __f(self):» pass\n"),
        no=("def f():\n    pass\n", "class A:\n    def __init__(self): pass\n"),
        tricky=(
            "def f_(_x): return _g()\n«def _():» pass\n«def ____():» pass\ndef __é__(): pass\n",
            "@_g\ndef f(): '_f'  # def _f():\nclass _A: pass\n_h = lambda: 1\n«def __a_(\n):» pass\n",
        ),
    ),
    "dunder_method": Case(
        yes=(
            "class A:\n    «def __init__(self):»\n        pass\n",
            "class A:\n    «async def __aenter__(self):» pass\n",
        ),
        no=("class A:\n    def f(self): pass\n", "class A:\n    def __f(self): pass\n"),
        tricky=(
            "def __getattr__(name): pass\nclass A:\n    __x__ = 1\n    def ____(self): self.__len__()  # def __x__():\n",
            "class A:\n\tif x:\n\t\t@g\n\t\t«def __é__(self):»\n\t\t\tdef __h__(): pass\n",
        ),
    ),
    "property_def": Case(
        yes=(
            "class A:\n    @property\n    «def f(self):»\n        return 1\n",
            "import functools as ft\nclass A:\n    @ft.cached_property\n    «def f(self):» return 1\n",
        ),
        no=("class A:\n    def f(self): return 1\n", "class A:\n    f = property(g)\n"),
        tricky=(
            "class A:\n    @f.setter\n    def f(self, x): pass\n    @cached_property\n    def g(self): pass\n    @x.property\n    def h(self): pass\n",
            "from x import property\nclass A:\n    @property\n    def f(self): pass\n    # @property\n    def g(self): '@property'\n",
            "class A:\n    @(property)\n    @g  # @h\n    «def é(\n        self\n    ):» return {1: 2}\n",
        ),
    ),
    "property_setter": Case(
        yes=("class A:\n    @f.setter\n    «def f(self, x):»\n        pass\n", "@a.b.setter\n«def f(x):» pass\n"),
        no=("class A:\n    @property\n    def f(self): pass\n",),
        tricky=(
            "@setter\ndef f(x): pass\n@f.deleter\ndef f(): pass\n@f.setter()\ndef g(): pass\n# @f.setter\ndef h(): '@f.setter'\n",
            "@g\n@(é\n  .setter)\n«def é(self, x=1):» pass\n@f.setter\nclass A: pass\n",
        ),
    ),
    "classmethod_def": Case(
        yes=(
            "class A:\n    @classmethod\n    «def f(cls):»\n        pass\n",
            "class A:\n    @g\n    @classmethod\n    «async def f(cls):» pass\n",
        ),
        no=("class A:\n    def f(cls): pass\n", "class A:\n    f = classmethod(g)\n"),
        tricky=(
            "from x import classmethod\nclass A:\n    @classmethod\n    def f(cls): pass\n",
            "class A:\n    '''@classmethod'''\n    # @classmethod\n    @a.classmethod\n    def f(cls): pass\n",
            "class É:\n\t@ \\\n\tclassmethod  # @x\n\n\t«def f(cls):» return 1\n",
        ),
    ),
    "staticmethod_def": Case(
        yes=(
            "class A:\n    @staticmethod\n    «def f():»\n        pass\n",
            "class A:\n    @staticmethod\n    @g\n    «async def f(x):» pass\n",
        ),
        no=("class A:\n    def f(): pass\n", "class A:\n    f = staticmethod(g)\n"),
        tricky=(
            "class A:\n    @x.staticmethod\n    def f(): pass\n    # @staticmethod\n    def g(): '@staticmethod'\n",
            "class A:\n\t@(staticmethod)\n\t«def é(a=':'):» pass\n\t@staticmethods\n\tdef h(): pass\n",
        ),
    ),
    "abstract_method": Case(
        yes=(
            "import abc\nclass A:\n    @abc.abstractmethod\n    «def f(self):»\n        pass\n",
            "from abc import abstractmethod as am\nclass A:\n    @property\n    @am\n    «async def f(self):» ...\n",
        ),
        no=("import abc\nclass A:\n    def f(self): raise NotImplementedError\n",),
        tricky=(
            "class A:\n    @abstractmethod\n    def f(self): pass\n",
            "from x import abstractmethod\nclass A:\n    @abstractmethod\n    def f(self): '@abc.abstractmethod'\n",
            "import abc as é\nclass A(é.ABC):\n\t# @é.abstractmethod\n\tdef f(self): pass\n\t@(é\n\t.abstractmethod)\n\t«def g(self, x={1: 2}):» pass\n",
        ),
    ),
    "memoization": Case(
        yes=(
            "import functools\n@functools.lru_cache(maxsize=None)\n«def f(x):»\n    return x\n",
            "from functools import cache as c\n@c\n«def f(x):» return x\n",
        ),
        no=("import functools\n@functools.wraps(g)\ndef f(x): return x\n",),
        tricky=(
            "from django import cache\n@cache\ndef f(x): return x\n@lru_cache\ndef g(x): return x\n",
            "import functools\nf = functools.cache(g)\n# @functools.cache\ndef h(): '@functools.cache'\n",
            "import functools as ft\nclass A:\n    @staticmethod\n    @ft.lru_cache(\n        maxsize=1)  # @x\n    «async def é(x, y=':'):» return x\n",
            "import functools\n@functools.cached_property\ndef f(self): pass\n@functools.cache.x\ndef g(): pass\n",
        ),
    ),
    "decorator": Case(
        yes=("«@f»\ndef g():\n    pass\n", "«@f.g(1)»\n«@h»\nclass A:\n    «@k»\n    async def g(self): pass\n"),
        no=("def f():\n    pass\n", "x = a @ b\n"),
        tricky=(
            "x = '''\n@f\n'''\n# @f\ny = (a\n@ b)\nz @= y\n",
            "«@(f  # @g\n  .h)»  # @k\n# @m\n\ndef g(): pass\n",
            "class A:\n\t«@ (é @ b)»\n\t«@x[1]( \\\n\t  2)» \n\tdef 名(self): pass\n",
            "«@(lambda f: f)»\n«@(x := y)»\ndef f(a=b @ c): return a @ b\n",
        ),
    ),
    "decorator_with_args": Case(
        yes=("«@f(1)»\ndef g():\n    pass\n", "«@f.g()»\nclass A:\n    pass\n"),
        no=("@f\ndef g():\n    pass\n",),
        tricky=(
            "@f(1).g\n@(f(1) or h)\n@f[g(1)]\ndef k(x=f(1)): pass\n",
            "# @f(1)\nx = '@f(1)'\n@h  # @f(1)\n«@(f(\n  1,  # )\n))»  # (\nasync def é(): pass\n",
            "class A:\n\t@g\n\t«@f(lambda: 1) (x)»\n\tdef h(self): pass\n",
        ),
    ),
    "lambda_expression": Case(
        yes=("f = «lambda x: x»\n", "g(«lambda: 1», key=«lambda *a, b=1, **c: (a, b)»)\n"),
        no=("def f(x): return x\n",),
        tricky=(
            "x = 'lambda x: x'  # lambda x: x\nlambda_ = f'lambda: {x}'\n",
            "f = «lambda x: «lambda y: x[y:1]»»; é = (\n    «lambda ñ=(\n        1\n    ): ñ if ñ else {1: 2}»)\n",
            "def f(x=«lambda: (yield)»): return (x := «lambda: 1»)\n",
        ),
    ),
    "callback_lambda": Case(
        yes=("f(«lambda x: x», 1)\n", "sorted(x, key=«lambda y: y[1]»)\n"),
        no=("f = lambda x: x\n", "f(x)\n"),
        tricky=(
            "(lambda x: x)(1)\nf([lambda: 1], (lambda: 1, 2), x or (lambda: 1), k=[lambda: 1])\n",
            "class A(metaclass=lambda *a: 1): pass\nf('lambda: 1')  # f(lambda: 1)\n",
            "f((\n  «lambda é: g(«lambda: 1»)»\n), y)\n",
            "@f(«lambda: 1»)\ndef g(x=lambda: 1): return lambda: f((x := lambda: 1)) if x else 2\n",
        ),
    ),
    "accessor_name": Case(
        yes=(
            "«def get_x():»\n    pass\n",
            "class A:\n    «async def _fetch(self):» pass\n    «def load_é(self):» pass\n",
        ),
        no=("def f():\n    pass\n", "def getter():\n    pass\n"),
        tricky=(
            "class A:\n    def __get__(self): pass\n    def __get(self): pass\n    def getX(self): pass\n    def x_get(self): pass\n",
            "get_x = 1\nread_y()\n# def get_x():\nz = 'def get_x():'\nclass get_a: pass\n«def read(\n    x=':',  # :\n):» pass\n",
        ),
    ),
    "mutator_name": Case(
        yes=(
            "«def set_x(x):»\n    pass\n",
            "class A:\n    «async def _save(self):» pass\n    «def update_é(self):» pass\n",
        ),
        no=("def f():\n    pass\n", "def settle():\n    pass\n"),
        tricky=(
            "class A:\n    def __set__(self): pass\n    def __set_name__(self): pass\n    def setUp(self): self.set_x()\n",
            "def settings(): pass\ndef reset_x(): '''def set_x():'''\n«def write_(x: dict = {1: 2}):» pass  # def set_x():\n",
        ),
    ),
    "predicate_name": Case(
        yes=("«def is_x():»\n    pass\n", "class A:\n    «async def _has_é(self):» pass\n    «def can(self):» pass\n"),
        no=("def f():\n    pass\n", "def issue():\n    pass\n"),
        tricky=(
            "class A:\n    def __should__(self): pass\n    def this_is_x(self): return x is y\n    def isX(self): pass\n",
            "is_x = lambda: 1\nif is_x(): pass\n# def is_x():\n«def should_(*, is_y=lambda: 1):» pass\n",
        ),
    ),
    "parser_name": Case(
        yes=(
            "«def parse_x():»\n    pass\n",
            "class A:\n    @classmethod\n    «async def from_é(cls):» pass\n    «def _decode(self):» pass\n",
        ),
        no=("def f():\n    pass\n", "def parser():\n    pass\n"),
        tricky=(
            "from x import parse_y\nparse_y()\ndef parse2(): '''def parse():'''\ndef to_parse(): pass\n",
            "def fromkeys(): pass\ndef __decode__(): pass\n«def parse(\n    # def f():\n):» return parse_x(1)\n",
        ),
    ),
    "factory_name": Case(
        yes=(
            "«def make_x():»\n    pass\n",
            "class A:\n    «async def _create(self):» pass\n    «def new_é(self):» pass\n",
        ),
        no=("def f():\n    pass\n", "def maker():\n    pass\n"),
        tricky=(
            "class A:\n    def __new__(cls): pass\n    def newest(self): pass\n    def createX(self): pass\n    def is_new(self): pass\n",
            "class make_x: pass\nbuild_y(x='def build_x():')  # def new_x():\n«def build(x=y[1:2]):» pass\n",
        ),
    ),
    "handler_name": Case(
        yes=(
            "«def on_x():»\n    pass\n",
            "class A:\n    «def visit_Né(self):» pass\n    «async def _handle(self):» pass\n",
        ),
        no=("def f():\n    pass\n", "def once():\n    pass\n"),
        tricky=(
            "def handler(): pass\ndef visitor(): pass\ndef generic_visit(): pass\ndef onClick(): self.on_x()\ndef __on__(): pass\n",
            "on_x = lambda: 1\n# def on_x():\n@on_x\n«def visit(\n    x=('a: b'  # :\n)):» '''def on_x():'''\n",
        ),
    ),
}
