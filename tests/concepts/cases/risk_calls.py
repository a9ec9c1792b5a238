"""Calls that a reviewer of security would stop at."""

from concepts.cases import Case

CASES = {
    "shell_true": Case(
        yes=(
            "import subprocess\n«subprocess.run(cmd, shell=True)»\n",
            "from subprocess import run\n«run(cmd, check=True, shell=True)»\n",
            "«self.execute('ls', shell=True)»\n",
            "import subprocess as sp\n«sp.Popen(a, 0, None, None, None, None, None, True, True)»\n",
        ),
        no=(
            "import subprocess\nsubprocess.run(cmd)\nsubprocess.run(cmd, shell=False)\n",
            "import subprocess\nsubprocess.run(cmd, shell=1)\nsubprocess.run(cmd, shell='True')\n",
            "shell = True\nrun(cmd, shell=shell)\n",
        ),
        tricky=(
            "# run(cmd, shell=True)\ns = 'run(cmd, shell=True)'\ndef f(cmd, shell=True): ...\n",
            "«run(cmd, **{'shell': True})»\nrun(cmd, {'shell': True})\n",
            "from subprocess import *\nx = «run(\n\tcmd,\n\tshell = \\\n  (True),  # no\n)»\n",
            "async def f(): return await g(«partial(run, shell=True)»())\n",
            "import subprocess\ndef f(subprocess): subprocess.run(1, 2, 3, 4, 5, 6, 7, 8, True)\n",
            "import subprocess\nsubprocess.run(*a, 2, 3, 4, 5, 6, 7, 8, True)\nPopen(1, 2, 3, 4, 5, 6, 7, 8, True)\n",
            "f(shell_=True)(shell=not False)\nmatch x:\n    case A(shell=True): «A(shell=True)»\n",
            "f(shell=True if x else False)\nclass A(B, shell=True): ...\n",
        ),
    ),
    "eval_exec": Case(
        yes=("«eval('1')»\n", "«exec(code, {})»\n", "import builtins\n«builtins.eval(x)»\n"),
        no=("model.eval()\nast.literal_eval(x)\nself.exec('x')\n", "compile(x, '', 'eval')\n"),
        tricky=(
            "s = 'eval(x)'  # eval(x)\nf = eval\nf(x)\n",
            "from builtins import eval as e\n«e(x)»\nfrom pandas import eval\neval(x)\n",
            "def eval(model): ...\neval(m)\n",
            "class A:\n    def eval(self): return «eval(self.x)»\n    def exec(self, exec): exec()\n",
            "x = f'{«eval(y)»}'\n(«(eval)(x)»)\n«__builtins__.exec(x)»\n",
            "def f(exec=«exec('x')»):\n    exec(1)\n    return lambda eval: eval(2)\n",
            "[eval(x) for eval in «eval('y')»]\n[«eval(x)» for x in y if «exec(x)»]\n",
            "def f():\n    global eval\n    eval = 1\n    def g(): eval(1); «exec(2)»\n",
            "def f():\n    eval = g\n    async def h(): await eval(1)\n«eval(2)»\n",
            "evаl(x)\n",  # the a is Cyrillic
            "@«eval('deco')»\ndef f(): ...\n",
            "«𝐞𝐯𝐚𝐥(x)»\n",  # Python reads it as eval
        ),
    ),
    "insecure_tempfile": Case(
        yes=("import tempfile\nx = «tempfile.mktemp()»\n", "from tempfile import mktemp as m\n«m('.x')»\n"),
        no=("import tempfile\ntempfile.mkstemp()\ntempfile.NamedTemporaryFile()\n",),
        tricky=(
            "mktemp()\ntempfile.mktemp()\n",
            "import tempfile\n# tempfile.mktemp()\ns = 'tempfile.mktemp()'\nf = tempfile.mktemp\n"
            "obj.tempfile.mktemp()\n",
            "import tempfile as t\nwith open(«t.mktemp(\n)») as f: ...\n",
            "from .tempfile import mktemp\nmktemp()\n",
        ),
    ),
    "unsafe_deserialization": Case(
        yes=(
            "import pickle\nx = «pickle.load(f)»\ny = «pickle.loads(b)»\n",
            "import yaml\nx = «yaml.load(f)»\ny = «yaml.load(f, Loader=yaml.FullLoader)»\nz = «yaml.unsafe_load(f)»\n",
            "from marshal import loads\n«loads(x)»\nimport shelve\n«shelve.open(p)»\n",
            "import _pickle, dill\n«_pickle.Unpickler(f)».load()\n«dill.load(f)»\n",
            "import pandas as pd\n«pd.read_pickle(p)»\n",
        ),
        no=(
            "import yaml\nyaml.safe_load(f)\nyaml.load(f, Loader=yaml.SafeLoader)\nyaml.load(f, yaml.CSafeLoader)\n",
            "import json, pickle\njson.load(f)\npickle.dump(x, f)\npickle.dumps(x)\n",
            "import yaml\nyaml.load_all(f, Loader=yaml.loader.BaseLoader)\nyaml.dump(x)\n",
        ),
        tricky=(
            "pickle.loads(x)\nyaml.load(x)\ndef f(pickle): pickle.load(x)\n",
            "import pickle\n# pickle.load(f)\ns = 'pickle.load(f)'\nf(pickle.load)\nself.pickle.load(f)\n",
            "from yaml import load, SafeLoader as L, Loader\nload(f, L)\n«load(f, Loader)»\nload(f, **{'Loader': L})\n",
            "import yaml\nclass SafeLoader(yaml.Loader): ...\nx = «yaml.load(f, SafeLoader)»\n",
            "from other import SafeLoader\nimport yaml\n«yaml.load(f, Loader=SafeLoader)»\n",
            "import yaml\nfrom yaml import SafeLoader\ndef f(SafeLoader): return «yaml.load(1, SafeLoader)»\n",
            "import yaml\ntry:\n    from yaml import CSafeLoader as L\nexcept ImportError:\n"
            "    from yaml import SafeLoader as L\n"
            "yaml.load(f, L)\n",
            "import yaml\ntry:\n    from yaml import CSafeLoader as L\nexcept ImportError:\n"
            "    from yaml import Loader as L\n"
            "«yaml.load(f, Loader=L)»\n",
            "try:\n    import pickle\nexcept ImportError:\n    import safe as pickle\n«pickle.loads(x)»\n",
            "import yaml\n«yaml.load(*a)»\n«yaml.load(f, **k)»\n«yaml.load(f, Loader=None)»\n«yaml.full_load(f)»\n",
            "import pickle\ndef f(): return [y := «pickle.load(f)», f'{«pickle.loads(«pickle.load(f)»)»}']\n",
            "import pickle\npickle = None\n«pickle.load(f)»\n",
            "from .pickle import load\nload(f)\nfrom ruamel import yaml\nyaml.load(f)\n",
        ),
    ),
    "weak_hash": Case(
        yes=(
            "import hashlib\n«hashlib.md5(x)».hexdigest()\n«hashlib.sha1()»\n",
            "import hashlib\n«hashlib.new('md5')»\n«hashlib.new(name='SHA1', data=x)»\n",
            "import hashlib as h\n«h.md5(x, usedforsecurity=False)»\n",
        ),
        no=(
            "import hashlib\nhashlib.sha256(x)\nhashlib.new('sha256')\nhashlib.new(name)\n",
            "md5(x)\nhashlib.md5(x)\n",
        ),
        tricky=(
            "from hashlib import md5 as sha256, sha256 as md5\n«sha256(x)»\nmd5(x)\n",
            "import hashlib\ns = 'hashlib.md5(x)'  # hashlib.md5(x)\nf(hashlib.md5, 'md5')\nself.hashlib.md5(x)\n",
            "from hashlib import new, file_digest as fd, sha1\n«new('md' '5')»\nnew(f'md5')\nnew(b'md5')\n"
            "«fd(f, 'md5')»\n«fd(f, sha1)»\n",
            "from hashlib import md5\ndef f(md5): return md5(x)\ndef g(): return «md5(x)»\n",
            "import hashlib\ndef f(x=«hashlib.md5()»):\n\treturn («hashlib. \\\n  sha1(x)»)\n",
            "import hashlib\nclass A:\n    hashlib = «hashlib.md5()»\n    def f(self): «hashlib.md5()»\n",
            "import hashlib\nhashlib.new('sha-256')\n«hashlib.new('Sha-1')»\nhashlib.new(*a, 'md5')\nhashlib.sha1\n",
        ),
    ),
    "tls_verify_disabled": Case(
        yes=(
            "import requests\n«requests.get(url, verify=False)»\n",
            "session = f()\n«session.post(url, timeout=3, verify=False)»\n«session.verify = False»\n",
            "import ssl\nctx.verify_mode = «ssl.CERT_NONE»\n«ctx.check_hostname = False»\n",
            "from ssl import _create_unverified_context as c\nx = «c»()\n",
        ),
        no=(
            "import requests\nrequests.get(url)\nrequests.get(url, verify=True)\nrequests.get(url, verify='ca.pem')\n",
            "import ssl\nssl.CERT_REQUIRED\nssl.create_default_context()\n",
            "verify = False\nget(url, verify=verify)\n",
        ),
        tricky=(
            "requests.get(url, verify=0)\nget(url, verify=False)\nrequests.get(url, verify=None)\nverify(False)\n",
            "# s.get(url, verify=False)\ns = 's.get(url, verify=False)'\ndef f(url, verify=False): ...\n",
            "x = «s.get(url, **{'verify': False})»\ny = {'verify': False}\nssl.CERT_NONE\n",
            "import ssl\nssl._create_default_https_context = «ssl._create_unverified_context»\n",
            "import ssl\ndef f(ssl): return ssl.CERT_NONE\ns = f'{«ssl.CERT_NONE»}'\n",
            "from ssl import CERT_NONE\nf(«CERT_NONE», obj.CERT_NONE)\n",
            "import httpx\nasync def f():\n    async with «httpx.AsyncClient(\n"
            "\tverify = \\\n    False)» as c: await c.get(u)\n",
            "«a = b.verify = False»\nself.verify == False\nself.verified = False\nself.verify = not True\n",
            "import requests as r, functools\nif (x := «functools.partial(r.get, verify=False)»): ...\n"
            "findroot(f, verify=False)\nclass A(verify=False): ...\n",
        ),
    ),
}
