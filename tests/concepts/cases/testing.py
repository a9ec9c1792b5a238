"""Tests: unittest, pytest and mocks."""

from concepts.cases import Case

CASES = {
    "test_function": Case(
        yes=(
            "«def test_a():»\n    pass\n",
            "class A:\n    «def testFoo(self):»\n        pass\n",
            "«async def test():» await x\n",
        ),
        no=("def f(): pass\n", "def my_test(): pass\n", "class TestA: pass\n"),
        tricky=(
            "def _test(): pass\ntest_a()\ntest = lambda: 1\n",
            "s = '''\ndef test_a(): pass\n'''\n# def test_a(): pass\n",
            "@deco(a='x:')\n# b:\n«def test_a(x: int = {1: 2}[1]) -> 'a:' :»  # c:\n    pass\n",
            "def f():\n\t«def test_é(\n\t\ta,\n\t):»\n\t\tpass\n",
            "«def test_a():»\n    @b\n    «def test_c():» pass\n",
            "«def testing():» pass\n",
        ),
    ),
    "assert_method": Case(
        yes=(
            "«self.assertEqual(a, b)»\n",
            "import numpy as np\n«np.testing.assert_allclose(a, b)»\n",
            "«m.assert_called()»\n",
        ),
        no=("assert x\n", "assertEqual(a, b)\n", "x.check()\n"),
        tricky=(
            "self.assertion()\nself.assert1()\nx._assertX()\nself.assertEqual\n",
            "from numpy.testing import assert_equal\nassert_equal(a, b)\n",
            "with «self.assertRaises(A)»: pass\n",
            "s = 'self.assertEqual(a)'  # self.assertEqual(a)\n",
            "def assertEqual(self): return «super().assertÉqual(1)»\n",
            "async def f():\n    await «self.assert_(\n        x)»\n",
            "assert (x.f())\nassert f'{«x.assertIn(a)»}'\n",
        ),
    ),
    "assert_raises_context": Case(
        yes=(
            "«with self.assertRaises(A):»\n    f()\n",
            "import pytest\n«with pytest.raises(A) as e:» f()\n",
            "from pytest import raises as r\n«with r(A, match='a:'):»\n    pass\n",
        ),
        no=("with open(f) as g:\n    pass\n", "self.assertRaises(A, f)\n", "with pytest.raises(A): pass\n"),
        tricky=(
            "with self.assertRaises: pass\n",
            "import pytest\nwith pytest.warns(A): pass\nwith f(pytest.raises(A)): pass\n",
            "s = 'with self.assertRaises(A): pass'  # with self.assertRaises(A):\n",
            "«with (\n    a as é,\n    self.assertRaisesRegex(A, 'b:'),\n):»  # c:\n\tpass\n",
            "async def f():\n    async with self.assertRaises(A): pass\n",
            "from x import raises\nwith raises(A): pass\n",
            "«with a.assertRaises(A):»\n    «with b().assertRaises(B):» pass\n",
        ),
    ),
    "mocking": Case(
        yes=(
            "from unittest import mock\nm = «mock.Mock()»\n",
            "from unittest.mock import patch as p\n@«p('a.b')»\ndef f(): pass\n",
            "def test_a(monkeypatch): «monkeypatch.setattr(a, 'b', 1)»\n",
        ),
        no=("patch('a')\n", "mock.Mock()\n", "import unittest\nunittest.main()\n"),
        tricky=(
            "import unittest.mock\n«unittest.mock.patch.object(a, 'b')»\nunittest.mock.Mock\n",
            "import mock\n«mock.MagicMock()».f()\nmock()\n",
            "from unittest.mock import Mock\nm = «Mock()»\nm.assert_called()\n",
            "from a import monkeypatch, mocker as m\nmonkeypatch.setattr(1)\nm.patch(2)\n",
            "«mocker.patch.object(é, 'b')»\nself.mocker.patch('a')\nmonkeypatch()\n",
            "s = 'mocker.patch(a)'  # monkeypatch.setenv(a)\nf'{«mocker.Mock()»}'\n",
            "from .mock import f\nf()\nimport mockito as mock\nmock.f()\n",
            "from unittest.mock import patch\nasync def f():\n\twith «patch('a')» as b, «patch.dict(c)»: pass\n",
        ),
    ),
    "pytest_call": Case(
        yes=(
            "import pytest\nwith «pytest.raises(A)»: pass\n",
            "import pytest as pt\n@«pt.mark.skipif(x)»\ndef f(): pass\n",
            "from pytest import skip as s\n«s('a')»\n",
        ),
        no=(
            "pytest.skip('a')\n",
            "import pytest\n@pytest.fixture\ndef f(): pass\n",
            "import unittest\nunittest.skip()\n",
        ),
        tricky=(
            "import pytest_asyncio as pytest\npytest.f()\n",
            "from .pytest import f\nf()\n",
            "import pytest\n«pytest.param(«pytest.é()», a=pytest.mark.x)».f()\npytest()\n",
            "import pytest\ns = 'pytest.skip()'  # pytest.skip()\nf'{«pytest.skip()»}'\n",
            "def f():\n\tfrom pytest import raises\n\t«raises(A, (n := 1))»\n",
        ),
    ),
    "pytest_fixture": Case(
        yes=(
            "import pytest\n@«pytest.fixture»\ndef f(): pass\n",
            "from pytest import fixture as fx\n@a\n@«fx(scope='module')»\nasync def f(): pass\n",
            "import pytest_asyncio\n@«pytest_asyncio.fixture»\nasync def f(): pass\n",
        ),
        no=("@pytest.fixture\ndef f(): pass\n", "import pytest\nx = pytest.fixture(f)\n", "@fixture\ndef f(): pass\n"),
        tricky=(
            "import pytest\n@pytest.fixture()\nclass A: pass\n",
            "import pytest\n@pytest.fixtures\n@pytest.mark.fixture\n@x.fixture\ndef fixture(): pass\n",
            "import pytest\ns = '''\n@pytest.fixture\ndef f(): pass\n'''  # @pytest.fixture\n",
            "import pytest\nclass A:\n\t@ «pytest.fixture(\n\t\tname='é')»\n\tdef f(self): pass\n",
            "import pytest\n@pytest.fixture()()\n@(«pytest.fixture»)\ndef f(): pass\n",
            "from a import fixture\n@fixture\ndef f(): pass\n",
        ),
    ),
    "pytest_parametrize": Case(
        yes=(
            "import pytest\n@«pytest.mark.parametrize('a', [1])»\ndef test_a(a): pass\n",
            "from pytest import mark as m\n@«m.parametrize('a', [1])»\nclass TestA: pass\n",
        ),
        no=(
            "pytest.mark.parametrize('a', b)\n",
            "import pytest\n@pytest.mark.skip()\ndef f(): pass\n",
            "x.parametrize(a)\n",
        ),
        tricky=(
            "import pytest\npytestmark = [«pytest.mark.parametrize('é', b)»]\n",
            "import pytest\np = pytest.mark.parametrize\np('a', b)\n@pytest.mark.parametrize\ndef f(): pass\n",
            "import pytest\ns = \"@pytest.mark.parametrize('a', b)\"  # pytest.mark.parametrize(a)\n",
            "import pytest\ndef pytest_generate_tests(metafunc): metafunc.parametrize('a', b)\n",
            "from pytest import mark\n@«mark.parametrize(\n    'a', [mark.x(1)]\n)»\nasync def f(): pass\n",
            "from a import mark\n@mark.parametrize('a', b)\ndef f(): pass\n",
        ),
    ),
}
