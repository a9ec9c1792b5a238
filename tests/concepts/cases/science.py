"""Arrays and the libraries for them, as far as the imports of a file tell."""

from concepts.cases import Case

CASES = {
    "numpy_call": Case(
        yes=(
            "import numpy as np\nx = «np.zeros(3)»\n",
            "from numpy import array as A\n«A([1])»\n",
            "import numpy.linalg as la\n«la.norm(x)»\n",
        ),
        no=("np.zeros(3)\n", "import math\nmath.sin(1)\n", "import numpy as np\nnp.pi\nx.sum()\n"),
        tricky=(
            "numpy.zeros(3)\n",
            "import numpyro as np\nnp.zeros(3)\n",
            "from .numpy import zeros\nzeros(3)\n",
            "from . import numpy\nnumpy.zeros(3)\n",
            "import numpy as np\n«np.zeros(3)».sum()\nnp()\n",
            "import numpy as np\ns = 'np.zeros(3)'  # np.zeros(3)\nf'{«np.é(3)»}'\n",
            "try:\n    import numpy as np\nexcept ImportError: np = None\n@«np.vectorize(1)»\ndef f(): pass\n",
            "x = 1; «zeros(2)»\nfrom numpy import (\n    zeros, ones as o)\nif (a := «o(1)»): «zeros(2)»\n",
            "from numpy import *\nzeros(3)\n",
        ),
    ),
    "numpy_random_call": Case(
        yes=(
            "import numpy as np\n«np.random.rand(3)»\n",
            "from numpy.random import default_rng\nrng = «default_rng(0)»\n",
            "from numpy import random as r\n«r.seed(1)»\n",
        ),
        no=("import random\nrandom.random()\n", "import numpy as np\nnp.zeros(1)\n", "np.random.rand(3)\n"),
        tricky=(
            "import numpy as np\n«np.random.default_rng(0)».normal()\nnp.random\nnp.random_()\n",
            "import random as np\nnp.random.rand(3)\n",
            "import numpy as np\ns = 'np.random.rand()'  # np.random.rand()\n",
            "import numpy.random\n«numpy.random.rand( # é\n)»\n",
            "from numpy import random\nrandom()\n",
        ),
    ),
    "linear_algebra_call": Case(
        yes=(
            "import numpy as np\n«np.linalg.norm(x)»\n",
            "from scipy.linalg import solve as s\n«s(a, b)»\n",
            "from torch import linalg\nq = «linalg.qr(a)»\n",
        ),
        no=("import numpy as np\nnp.dot(a, b)\n", "np.linalg.norm(x)\n", "import numpy as np\nnp.linalg\n"),
        tricky=(
            "linalg.solve(a, b)\n",
            "from numpy import linalg\nlinalg(x)\n",
            "import numpy_linalg as n\nn.solve(a)\n",
            "from ..linalg import solve\n«solve(a, b)»\n",
            "import numpy as np\ns = 'np.linalg.inv(a)'  # np.linalg.inv(a)\nf'{«np.linalg.inv(é)»}'\n",
            "import numpy as np\n«np.linalg.svd(a)»[0].sum()\nx.linalg.inv(np)\n",
        ),
    ),
    "array_attribute": Case(
        yes=(
            "import numpy as np\nn = «x.shape»[0]\n",
            "from torch import nn\n«f(x).dtype»\n",
            "import pandas.io\n«self.df.T».a\n",
        ),
        no=("x.shape\n", "import numpy as np\nx.size\n", "import numpy as np\nnp.dtype('f4')\n"),
        tricky=(
            "import turtle\nturtle.shape\nx.shape\n",
            "from .numpy import a\nx.shape\n",
            "import numpyro\nx.shape\n",
            "import numpy as np\ns = 'x.shape'  # x.shape\nf'{«x.shape»} {««x.T».dtype»}'\n",
            "from jax.numpy import *\n«é.shape» = «(a @ b)\\\n    .T».b\n",
            "import numpy as np\nshape = np.shape(x)\nT = f(T, dtype=np.float32)\n",
            "def f():\n\timport scipy.sparse as s\nif (n := «x.ndim») > 1: pass\n",
            "import torch\nfrom a import x\nx.shape\ntorch.dtype\n«x().shape»\n",
        ),
    ),
    "array_kwarg": Case(
        yes=(
            "import numpy as np\nnp.zeros(3, «dtype=int»)\n",
            "from numpy import sum\nx.mean(«axis=-1», «keepdims=True»)\n",
            "import torch.nn as nn\nf(«device = (d)»)\n",
        ),
        no=("f(axis=1)\n", "import numpy as np\nf(1, a=2)\n", "import numpy as np\ndef f(axis=1): pass\n"),
        tricky=(
            "from .numpy import a\nf(axis=1)\n",
            "import numpyro, math\nf(axis=1)\n",
            "import math, numpy\nf(«axis=g(«shape=1»)»)\n",
            "import numpy\nclass A(B, dtype=1): pass\nmatch x:\n    case A(axis=1): pass\n",
            "import numpy\ns = 'f(axis=1)'  # f(axis=1)\nf'{axis=}{f(«axis=é»)}'\n",
            "import numpy\nf((axis := 1), axis == 1, **{'axis': 1})\nlambda axis=1: 2\n",
        ),
    ),
    "scipy_call": Case(
        yes=(
            "import scipy\n«scipy.fft(x)»\n",
            "from scipy.optimize import minimize as m\n«m(f, x0)»\n",
            "import scipy.sparse as sp\n«sp.csr_matrix(a)»\n",
        ),
        no=("scipy.fft(x)\n", "import numpy\nnumpy.fft(x)\n", "from scipy import stats\nstats.norm\n"),
        tricky=(
            "from .scipy import f\nf()\n",
            "import scipyx as scipy\nscipy.fft(x)\n",
            "from scipy import stats\n«stats.norm(\n    1)».pdf(2)\n«stats()»\n",
            "import scipy\ns = 'scipy.f()'  # scipy.f()\nf'{«scipy.é()»}'\n",
            "import scipy as s\n@«s.f()»\nasync def f(): await «s.g()»\n",
        ),
    ),
    "pandas_call": Case(
        yes=(
            "import pandas as pd\ndf = «pd.DataFrame(a)»\n",
            "from pandas import read_csv\n«read_csv(f)»\n",
            "import pandas\n«pandas.io.f()»\n",
        ),
        no=("pd.DataFrame()\n", "import pandas as pd\ndf.head()\n", "import geopandas as pd\npd.f()\n"),
        tricky=(
            "from .pandas import f\nf()\n",
            "import pandas as pd\n«pd.concat([a])».head()\npd()\n",
            "import pandas as pd\ns = 'pd.f()'  # pd.f()\nf'{«pd.é()»}'\n",
            "import polars as pandas\npandas.f()\n",
            "def f():\n\timport pandas as pd\n\treturn (x := «pd.f()»)\n",
        ),
    ),
}
