"""Calls of libraries: snippets by a pattern, and some of their own."""

from concepts.cases import Case


def library(module: str, called: str, uncalled: str = "no_such_module") -> Case:
    """The case of a concept that is calls of anything of a module: of `called`, a name in it."""
    first, _, last = called.rpartition(".")
    whole = f"{module}.{called}"
    inner = f"{module}.{first}" if first else module
    root, _, rest = whole.partition(".")
    broken = f"{root}\\\n  .{rest}"
    return Case(
        yes=(
            f"import {inner}\nx = «{whole}(1)»\n",
            f"import {inner} as other\n«other.{last}(\n    y)».z\n",
            f"from {inner} import {last} as other, b\n@«other(1)»\ndef f(): ...\n",
        ),
        no=(
            f"import {uncalled}\n{whole}(1)\n{last}(1)\n",
            f"import {inner}\nx = {whole}\nprint(x, {whole})\n",
        ),
        tricky=(
            f"import {inner}\n# {whole}(1)\ns = '{whole}(1)'\nself.{whole}(1)\n{root}x.{called}(1)\n",
            f"import {inner}\ndef f({root}): return {whole}(1)\nasync def g(): return await «{whole}(1)»\n",
            f"import {inner}\nx = [{whole}(1) for {root} in «{whole}(2)»]\ny = f'{{«{whole}(3)»}}'\n",
            f"import {inner}\nif (y := «{broken}(1)»):\n\tü = lambda {root}: {whole}(1)\n",
            f"from .{inner} import {last}\n{last}(1)\nfrom x.{inner} import {last} as y\ny(1)\n",
            f"try:\n    import {inner}\nexcept ImportError:\n    {root} = None\n«{whole}(«{whole}()»)»\n",
            f"import {inner}\nmatch x:\n    case {whole}(1): «{whole}(1)»\n",
        ),
    )


def more(case: Case, yes: tuple[str, ...] = (), no: tuple[str, ...] = (), tricky: tuple[str, ...] = ()) -> Case:
    return Case(case.yes + yes, case.no + no, case.tricky + tricky)


CASES = {
    "path_operation": more(
        library("os.path", "join"),
        yes=(
            "from pathlib import Path\nx = «Path('a')» / 'b'\n«Path.cwd()»\n",
            "from os import path\n«path.exists(x)»\n",
        ),
        no=("import os\nos.listdir(x)\nx.joinpath(y)\n",),
        tricky=("import os\nos.pathx.join(1)\nos.path(1)\n«os.path.join(1)»\n",),
    ),
    "filesystem_mutation": Case(
        yes=(
            "import os, shutil\n«os.remove(x)»\n«shutil.rmtree(y)»\n«shutil.copy2(a, b)»\n",
            "from os import makedirs as m\n«m(x)»\n«path.mkdir()»\n«p.unlink()»\n",
        ),
        no=("import os\nos.listdir(x)\nos.remove\n", "x.replace('a', 'b')\ny.remove(1)\nz.rename(2)\ncopy(a)\n"),
        tricky=(
            "import os\n# os.remove(x)\ns = 'os.remove(x)'\nself.os.remove(x)\ndef f(os): os.remove(x)\n",
            "import os\nx = f'{«os.rename(a, «os.replace(b, c)»)»}'\nasync def f(): «os.\\\n  mkdir(\n\tü)»\n",
            "from os import *\nremove(x)\nmkdir(x)\nfrom .shutil import move\nmove(a)\n",
            "import shutil\nshutil.which(x)\nshutil.copyright\n«shutil.copytree(a, b)»\nos.remove(x)\n",
        ),
    ),
    "tempfile_call": library("tempfile", "mkdtemp"),
    "subprocess_call": more(
        library("subprocess", "run"),
        yes=("import os\n«os.system('x')»\n«os.popen('y')»\n«os.execvp(a, b)»\n",),
        no=("import os\nos.getpid()\nsystem('x')\nplatform.system()\n",),
    ),
    "socket_call": more(library("socket", "create_connection"), yes=("import ssl\n«ssl.create_default_context()»\n",)),
    "http_call": more(
        library("requests", "get"),
        yes=(
            "import urllib.request\n«urllib.request.urlopen(x)»\n",
            "from http.client import HTTPConnection as H\n«H(x)»\n",
        ),
        no=("import urllib.parse, http\nurllib.parse.quote(x)\nhttp.HTTPStatus(200)\n",),
        tricky=("from urllib import request, parse\n«request.urlopen(x)»\nparse.quote(x)\nrequest(1)\n",),
    ),
    "db_call": more(
        library("sqlite3", "connect"),
        yes=("«cursor.execute('x')»\n«db.executemany('x', y)»\n",),
        no=("execute(x)\ncursor.execute\ncursor.executes(x)\n",),
        tricky=("# c.execute(x)\ns = 'c.execute(x)'\n«f().execute(f'{«c.executescript(x)»}')»\n",),
    ),
    "json_call": more(
        library("json", "loads"),
        yes=("try:\n    import json\nexcept ImportError:\n    import simplejson as json\n«json.dumps(x)»\n",),
        no=("response.json()\njson = f()\njson.loads(x)\n",),
        tricky=(
            "import json\nclass A:\n    json = «json.loads(x)»\n    def f(self): return «json.loads(x)»\n",
            "def f():\n    import json\n    return «json.loads(x)»\ndef g(json): return json.loads(x)\n",
            "import json\ndef f():\n    for json in x: json.loads(1)\n    def g(): json.dumps(2)\n«json.loads(3)»\n",
            "import json\ndef f(x=«json.loads(1)», json=2): ...\n@«json.loads(3)»\ndef g(json): ...\n",
            "import json\ndef f():\n    global json\n    json = 1\n«json.loads(2)»\n",
            "import json\ndef f(json):\n    def g():\n        nonlocal json\n        json = 1\n        json.loads(2)\n",
            "import json\n[y for x in «json.loads(1)» for json in json.loads(x) if json.dumps(x)]\n",
            "import json\ndef f():\n    [json := 1 for _ in x]\n    json.loads(2)\n",
            "import json\ndef f():\n    try: ...\n    except A as json: json.loads(1)\ndef g():\n"
            "    def json(): ...\n    json.loads(2)\n",
            "import json\ndef f(x):\n    match x:\n        case [json, *_]: json.loads(1)\ndef g(x):\n    match x:\n"
            "        case {**json}: json.loads(1)\n",
        ),
    ),
    "pickle_call": library("pickle", "dumps"),
    "binary_struct_call": library("struct", "pack"),
    "base64_call": more(library("base64", "b64encode"), yes=("import binascii\n«binascii.hexlify(x)»\n",)),
    "compression_call": more(library("zlib", "compress"), yes=("import gzip\nwith «gzip.open(x)» as f: ...\n",)),
    "hash_call": more(
        library("hashlib", "sha256"), yes=("import hmac\n«hmac.new(k, m)».digest()\n",), no=("hash(x)\n",)
    ),
    "regex_call": more(
        library("re", "compile"),
        no=("import re\np = x\np.match(y)\ncompile(x, y, z)\n",),
        tricky=("import re\nre_ = 1\nre_.compile(1)\nx.re.compile(2)\n«re.compile(3)».match(4)\n",),
    ),
    "time_call": more(
        library("time", "sleep"),
        yes=("from datetime import datetime, time\n«datetime.now()»\n«time(1)»\n",),
        tricky=("import datetime\n«datetime.datetime.now()».date()\n",),
    ),
    "random_call": more(
        library("random", "choice"),
        yes=("import secrets\n«secrets.token_hex()»\n",),
        no=("from numpy import random\nrandom.rand()\n",),
    ),
    "math_call": library("math", "sqrt"),
    "ffi_call": library("ctypes", "CDLL"),
    "concurrency_call": more(
        library("threading", "Thread"),
        yes=("from concurrent.futures import ThreadPoolExecutor as T\nwith «T(4)» as p: ...\n",),
    ),
    "asyncio_call": library("asyncio", "gather"),
    "logging_call": more(library("logging", "getLogger"), no=("import logging\nlogger.info(1)\n",)),
    "introspection_call": library("inspect", "signature"),
    "heap_bisect_call": more(library("heapq", "heappush"), yes=("from bisect import bisect\n«bisect(a, b)»\n",)),
    "itertools_call": library("itertools", "chain"),
    "functools_call": more(library("functools", "partial"), no=("import functools\n@functools.cache\ndef f(): ...\n",)),
    "collections_call": library("collections", "OrderedDict"),
    "contextlib_call": library("contextlib", "suppress"),
}
