"""Classes by their bases and decorators."""

from concepts.cases import Case

CASES = {
    "dataclass": Case(
        yes=(
            "from dataclasses import dataclass\n@dataclass\n«class A:»\n    x: int\n",
            "import attr\n@attr.s(auto_attribs=True)\n«class A(B):»\n    x: int\n",
        ),
        no=("import dataclasses\nclass A:\n    x: int\n", "@dataclass\nclass A:\n    x: int\n"),
        tricky=(
            (
                "import dataclasses as dc, attrs\n@other\n@dc.dataclass(frozen=True)\n"
                "«class A:» x: int\n@attrs.define\n«class B:» ...\n"
            ),
            "from x import dataclass\n@dataclass\nclass A: ...\n",
            "from .dataclasses import dataclass as d\n@d\nclass A: ...\n",
            "@dataclasses.dataclass\nclass A: ...\n",
            (
                "from dataclasses import dataclass as d, field\ns = '@d\\nclass A: ...'\n@d\n"
                "def f(): ...\n@field\nclass B:\n    # @d\n    class C: ...\n"
            ),
            (
                "def f():\n    from dataclasses import dataclass as ünï\n    @(ünï)\n"
                "    # a comment: here\n    «class A(\n        B,\n    ):» pass\n"
            ),
        ),
    ),
    "namedtuple_class": Case(
        yes=(
            "from collections import namedtuple\nP = «namedtuple('P', 'x y')»\n",
            "import typing as t\n«class P(t.NamedTuple):»\n    x: int\n",
        ),
        no=("P = namedtuple('P', 'x y')\n", "from typing import NamedTuple\nclass P(tuple):\n    pass\n"),
        tricky=(
            "import collections as c\nclass P(«c.namedtuple('P', (\n    'x',\n))»):\n    pass\n",
            "from x import namedtuple\nP = namedtuple('P', 'x')\n",
            (
                "from typing_extensions import NamedTuple as NT\nf = NT\n"
                "P = «NT('P', [('x', int)])»\n«class Q(NT, G[T]):» x: int\n"
            ),
            (
                "from collections import namedtuple\nf(namedtuple)\n"
                "s = \"namedtuple('P', 'x')\"  # namedtuple('P', 'x')\nself.namedtuple('P')\n"
            ),
        ),
    ),
    "enum_class": Case(
        yes=(
            "from enum import Enum\n«class A(Enum):»\n    X = 1\n",
            "import enum\n«class A(str, enum.IntFlag):»\n    X = 1\n",
        ),
        no=("class A(Enum):\n    X = 1\n", "import enum\nclass A(B):\n    X = enum.auto()\n"),
        tricky=(
            "from enum import Enum as E, Flag\n@d\n«class Ä(E):» Enum = Flag\nA = E('A', 'x y')\n",
            "from x import Enum\nclass A(Enum): pass\n",
            (
                "from enum import Enum\nclass A(f(Enum)): pass\nclass B(metaclass=Enum): pass\n"
                "class C:  # (Enum)\n    pass\n"
            ),
            "enum = f()\nclass A(enum.Enum): pass\n",
            "import enum as e\nclass A(e.EnumMeta): ...\nclass B(\n    x.enum.Enum,\n): ...\n",
        ),
    ),
    "protocol_class": Case(
        yes=(
            "from typing import Protocol\n«class A(Protocol):»\n    pass\n",
            "import typing_extensions as t\n«class A(B, t.Protocol[T]):»\n    pass\n",
        ),
        no=("class A(Protocol):\n    pass\n", "from typing import Protocol\nclass A(B[Protocol]):\n    pass\n"),
        tricky=(
            "import asyncio\nclass A(asyncio.Protocol): ...\n",
            "from x.typing import Protocol\nclass A(Protocol): ...\n",
            (
                "import typing\ns = 'class A(typing.Protocol):'\nx = typing.Protocol\n@x\n"
                "«class A(\n    typing.Protocol  # a base: this\n):» '''d'''\n"
            ),
        ),
    ),
    "pydantic_model": Case(
        yes=(
            "from pydantic import BaseModel\n«class A(BaseModel):»\n    x: int\n",
            "import pydantic as p\n«class A(p.RootModel[int]):»\n    pass\n",
        ),
        no=("from peewee import BaseModel\nclass A(BaseModel):\n    pass\n", "class A(BaseModel):\n    pass\n"),
        tricky=(
            (
                "from pydantic import BaseModel as M, Field\nx = M()\nclass B(Field): ...\n"
                "«class A(N, M, extra='allow'):» x: int = Field(1)\n"
            ),
            (
                "import pydantic\nclass A:\n    model: pydantic.BaseModel\n"
                "    # class B(pydantic.BaseModel):\n    «class C(pydantic.BaseModel):» ...\n"
            ),
            "def f(pydantic):\n    class A(pydantic.BaseModel): ...\n",
            "from .pydantic import BaseModel\nclass A(BaseModel): ...\n",
        ),
    ),
    "exception_class": Case(
        yes=(
            "«class E(Exception):»\n    pass\n",
            "«class E(mod.SomeError, B):»\n    pass\n",
            "«class W(UserWarning):» ...\n",
        ),
        no=("class E:\n    pass\n", "class MyError(Base):\n    pass\n"),
        tricky=(
            "class A(make_error(Exception)): ...\nclass B(Errors, ExceptionGroup): ...\n",
            "raise Exception('class E(Exception):')  # class E(Exception):\n",
            "class A(B, error=ValueError): ...\n",
            "def f():\n\t@d\n\t«class Ü(g(x).Error,\n\t\tOSError):» pass\n",
            "«class E(BaseError[T]):» x = 1\nclass F(Error.Base): ...\n",
        ),
    ),
    "orm_or_model_class": Case(
        yes=(
            "«class A(models.Model):»\n    x = 1\n",
            "«class B(BaseModel):»\n    x: int\n",
            "«class Base(DeclarativeBase):» ...\n",
        ),
        no=("class Model:\n    pass\n", "class MyModel(Base):\n    pass\n"),
        tricky=(
            "class A(Model.Base): ...\nclass B(f(Model)): ...\nclass C(metaclass=Model): ...\n",
            "s = 'class A(Model):'  # class A(Model):\nclass A(ModelAdmin, Models): ...\n",
            "class A:\n    «class Mëta(x[0].Model[T],\n               y):» ...\n    Model = 1\n",
        ),
    ),
    "unittest_class": Case(
        yes=(
            "import unittest\n«class A(unittest.TestCase):»\n    pass\n",
            "«class A(unittest.IsolatedAsyncioTestCase, B):»\n    pass\n",
        ),
        no=("class TestCase:\n    pass\n", "class TestA(Base):\n    def test(self):\n        pass\n"),
        tricky=(
            "import unittest as u\n@skip\n«class A(Mixin, u.TestCase):» ...\nclass B(u.TestSuite): ...\n",
            "x = unittest.TestCase\ns = 'class A(TestCase):'  # class A(TestCase):\n",
            "class A(TestCase.Sub, make(TestCase), TestCases): ...\n",
            "def f():\n    «class Ä(\n        my.BaseTestCase,\n    ):» # x: y\n        pass\n",
        ),
    ),
    "ast_visitor_class": Case(
        yes=(
            "import ast\n«class V(ast.NodeVisitor):»\n    pass\n",
            "from ast import NodeTransformer\n«class V(NodeTransformer):»\n    pass\n",
        ),
        no=("import ast\nclass Visitor:\n    pass\n", "class V(Transformer):\n    pass\n"),
        tricky=(
            "class V(Visitor.X, visit(NodeVisitor)): ...\nclass W(Visitors): ...\n",
            "s = f'class V({ast.NodeVisitor}):'  # class V(NodeVisitor):\n",
            (
                "class A:\n    async def f(self):\n        «class Ü(a().CSTVisitor[T]):» x: int\n"
                "        ast.NodeVisitor().visit(x)\n"
            ),
        ),
    ),
    "abstract_class": Case(
        yes=(
            "from abc import ABC\n«class A(ABC):»\n    pass\n",
            "import abc\n«class A(B, metaclass=abc.ABCMeta):»\n    pass\n",
        ),
        no=(
            "class A(ABC):\n    pass\n",
            "from abc import ABC, abstractmethod\nclass A:\n    @abstractmethod\n    def f(self): ...\n",
        ),
        tricky=(
            "import collections.abc as abc\nclass A(abc.ABC): ...\n",
            (
                "from abc import ABCMeta as M, ABC as B\nclass A(M): ...\n"
                "class C(metaclass=B): ...\n«class D(x, B):» ...\n«class E(\n    metaclass=(M),\n"
                "):» ...\n"
            ),
            "import abc\ns = 'class A(abc.ABC):'  # class A(abc.ABC):\nclass A(f(abc.ABC), key=abc.ABCMeta): ...\n",
            "class A(metaclass=abc.ABCMeta): ...\n",
        ),
    ),
}
