"""Files, streams, the environment, logs and routes."""

from concepts.cases import Case

CASES = {
    "file_open": Case(
        yes=("x = «open('a')»\n", "with «path.open('rb')» as f: ...\n", "from io import open as o\n«o(x)»\n"),
        no=("opened(x)\nopener.close()\n", "os.fdopen(x)\nx = open\n"),
        tricky=(
            "# open(x)\ns = 'open(x)'\ndef open(x): ...\nf(open)\n",
            "from a import b as open\nopen(x)\n«x.open(1)»\n",
            "async def f():\n\tasync with «g().open(\\\n\t  «open(x)»)»: ...\n",
            "x = f'{«open(y)».read()}'\nopen_(x)\nopen[0](x)\nöpen(x)\n",
        ),
    ),
    "file_context": Case(
        yes=(
            "«with open('a') as f:»\n    f.read()\n",
            "«with lock, path.open() as f:» pass\n",
        ),
        no=("with lock: open(x)\n", "with closing(open(x)): pass\n", "f = open(x)\n"),
        tricky=(
            "# with open(x) as f:\ns = 'with open(x): ...'\nwith opened(x): ...\nwith open: ...\n",
            "async def f():\n    «async with a.open(x) as f:»  # y:\n        with g(): ...\n",
            "«with (\n\topen(x[1:2]) as ü,  # with:\n\ty,\n):»\n\t@deco\n\tdef f(): ...\n",
            "from a import b as open, open as c\nwith open(x): ...\n«with \\\n  c(x):» ...\n",
            "with (f := open(x)): ...\nwith open(x).f() as g: ...\n",
        ),
    ),
    "file_read": Case(
        yes=(
            "x = «f.read()»\ny = «f.readline()»\nz = «f.readlines()»\n",
            "«Path(x).read_text()».split()\n«p.read_bytes()»\n",
        ),
        no=("f.write(x)\nf.reader()\nf.read_()\n", "read(f)\nx = f.read\n"),
        tricky=(
            "# f.read()\ns = 'f.read()'\ndef read(): ...\n@x.read\ndef f(): ...\n",
            "x = f'{«ü.read()»}'\nwhile y := «(f).\\\n  read(\n 1)»: ...\n",
            "from os import read\nread(1)\n«os.read(1)»\nasync def f(): await «r.readline()»\n",
            "with open(x) as f: return_ = «f[0].readlines()»[1:]\n",
        ),
    ),
    "file_write": Case(
        yes=("«f.write(x)»\n«f.writelines(y)»\n", "«Path(x).write_text(y)»\n«p.write_bytes(z)»\n"),
        no=("f.read()\nf.flush()\nf.writer(x)\n", "write(x)\nx = f.write\n"),
        tricky=(
            "# f.write(x)\ns = 'f.write(x)'\nclass write: ...\nw = f.write; w(x)\n",
            "f = lambda ü: «ü.write(f'{«g.write(1)»}')»\nasync def f(): await «x.write(\n\ty)»\n",
            "from a import write as w\nw(x); write.x(1); «write.write(1)»\n",
        ),
    ),
    "env_var_access": Case(
        yes=(
            "import os\nx = «os.environ»['A']\n«os.environ».get('B')\ny = «os.getenv('C')»\n",
            "from os import environ as e, getenv\n«e»['A'] = 1\n«getenv('x')»\n",
        ),
        no=("import os\nos.getcwd()\nos.environment\n", "environ['A']\nos.getenv('x')\n"),
        tricky=(
            "import os\n# os.environ['A']\ns = \"os.environ['A']\"\nf(os.getenv)\nself.os.environ\n",
            "import os\ndef f(os): os.environ\nclass A:\n    os = «os.environ»\n"
            "    def g(self): return «(os).environ»\n",
            "import os\nx = f'{«os.environ»[1]}'\ny = [os.environ for os in «os.environ»]\n",
            "import os, ünï as o\no.environ\ndel «os.\\\n  environ»['A']\nwith patch.dict(«os.environ», A='1'): ...\n",
            "from .os import environ\nenviron['x']\nfrom os import environb\nenvironb_ = «environb»\n",
        ),
    ),
    "std_stream_access": Case(
        yes=(
            "import sys\n«sys.stdout».write('x')\nprint(1, file=«sys.stderr»)\n",
            "from sys import stdin as i\nx = «i».read()\n",
        ),
        no=("import sys\nsys.argv\nsys.exit()\n", "sys.stdout\nstdin.read()\n", "import sys\nsys.std\n"),
        tricky=(
            "import sys\n# sys.stdout\ns = 'sys.stdout'\nx.sys.stdout\nsubprocess.run(stdout=1)\n",
            "import sys\n«sys.stdout» = f = «sys.__stdout__»\nx = lambda sys: sys.stdout\n",
            "import sys as ü\nfor x in «ü.\\\n  stdin»: print(f'{«ü.stdout».y}')\n",
            "from sys import stdout\ndef f(stdout=«stdout»): return stdout\n",
            "import sys\nfor sys.x in y: ...\nmatch x:\n    case «sys.stdin»: ...\n",
        ),
    ),
    "web_route": Case(
        yes=(
            "@«app.route('/')»\ndef f(): ...\n",
            "@deco\n@«router.get('/a/{b}', tags=[1])»\nasync def f(): ...\n",
        ),
        no=("@app.route\ndef f(): ...\n", "@app.get('x')\ndef f(): ...\n", "app.route('/')(f)\nrequests.get('/x')\n"),
        tricky=(
            "# @app.route('/')\ns = '''@app.route('/')\ndef f(): ...'''\n@route('/')\ndef f(): ...\n",
            "class A:\n\t@ «self.app.post(\n\t\t'/ü'  # x\n\t)»\n\tdef f(self): ...\n@app.get('/')\nclass B: ...\n",
            "@app.get(f'/{x}')\ndef f(): ...\n@app.route(x, '/')\ndef g(): ...\n@app.get(b'/')\ndef h(): ...\n",
            "@app.fetch('/')\n@«x().websocket('/' 'a')»\n@(«y.put('/')»)\ndef f():\n    @x.get(rule='/')\n"
            "    def g(): ...\n",
        ),
    ),
    "log_call": Case(
        yes=(
            "«logger.info('x')»\n«self._log.debug('y')»\n«LOG.exception(z)»\n",
            "import logging as l\n«l.warning('x')»\n",
            "«access_log.error('x')»\n«cls.logger.log(1, 'x')»\n",
        ),
        no=("math.log(x)\nnp.log(x)\nparser.error('x')\n", "logger.setLevel(1)\nlogging.getLogger(x)\n", "log('x')\n"),
        tricky=(
            "# logger.info('x')\ns = \"logger.info('x')\"\nlogger.info\nblog.info(1)\ncatalog.error(2)\n"
            "logger_x.info(3)\n",
            "from logging import info as i, error\n«i('x')»; «error(f'{«error(1)»}')»\ndef f(error): error(1)\n",
            "logging.info('x')\nx.logging.info('x')\n",
            "async def f(): await «(Logger_).\\\n  warn(\n\t'ü')»\n",
            "get_logger().info('x')\nlogger().info('x')\nlogger[0].info('x')\n",
            "«log.log(x)»\nlog.log.x(1)\nx = (y := «a.b.log.critical('z')»)\n",
        ),
    ),
}
