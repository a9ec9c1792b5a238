"""Calls of libraries: whatever is called there belongs to a module that the file imports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from daguerre.concepts.detectors import ConceptGroup, Detector
from daguerre.concepts.source import SourceText, Span

GROUP = ConceptGroup("services")


class CalledNames(NamedTuple):
    """called: full names, or starts of some with a star. methods: what counts whatever it is called of."""

    name: str
    description: str
    called: str
    methods: str = ""


TABLE = (
    CalledNames(
        "path_operation", "A call of anything of os.path or pathlib.", "os.path.* posixpath.* ntpath.* pathlib.*"
    ),
    CalledNames(
        "filesystem_mutation",
        "A call of os: remove, unlink, rename(s), replace, mkdir, makedirs, rmdir, removedirs, chmod, (l)chown, link, "
        "symlink, truncate, utime, mkfifo, mknod; of shutil: rmtree, move, chown, make_archive, unpack_archive or a "
        "name that starts with copy; or of a method mkdir, rmdir or unlink of anything.",
        "os.remove os.unlink os.rename os.renames os.replace os.mkdir os.makedirs os.rmdir os.removedirs os.chmod "
        "os.chown os.lchown os.link os.symlink os.truncate os.utime os.mkfifo os.mknod shutil.rmtree shutil.move "
        "shutil.copy* shutil.chown shutil.make_archive shutil.unpack_archive",
        "mkdir rmdir unlink",
    ),
    CalledNames("tempfile_call", "A call of anything of tempfile.", "tempfile.*"),
    CalledNames(
        "subprocess_call",
        "A call of anything of subprocess, or of system, popen, startfile, exec*, spawn*, posix_spawn* of os.",
        "subprocess.* os.system os.popen os.startfile os.exec* os.spawn* os.posix_spawn*",
    ),
    CalledNames("socket_call", "A call of anything of socket, socketserver or ssl.", "socket.* socketserver.* ssl.*"),
    CalledNames(
        "http_call",
        "A call of anything of requests, httpx, aiohttp, urllib3, urllib.request or http.client.",
        "requests.* httpx.* aiohttp.* urllib3.* urllib.request.* http.client.*",
    ),
    CalledNames(
        "db_call",
        "A call of anything of sqlite3, psycopg2 or pymysql, or of a method execute, executemany, executescript.",
        "sqlite3.* psycopg2.* pymysql.*",
        "execute executemany executescript",
    ),
    CalledNames(
        "json_call", "A call of anything of json, simplejson, ujson or orjson.", "json.* simplejson.* ujson.* orjson.*"
    ),
    CalledNames(
        "pickle_call",
        "A call of anything of pickle, cPickle, dill or cloudpickle.",
        "pickle.* cPickle.* dill.* cloudpickle.*",
    ),
    CalledNames("binary_struct_call", "A call of anything of struct.", "struct.*"),
    CalledNames("base64_call", "A call of anything of base64 or binascii.", "base64.* binascii.*"),
    CalledNames(
        "compression_call",
        "A call of anything of zlib, gzip, bz2, lzma, zipfile or tarfile.",
        "zlib.* gzip.* bz2.* lzma.* zipfile.* tarfile.*",
    ),
    CalledNames("hash_call", "A call of anything of hashlib or hmac.", "hashlib.* hmac.*"),
    CalledNames("regex_call", "A call of anything of re or regex.", "re.* regex.*"),
    CalledNames("time_call", "A call of anything of time or datetime.", "time.* datetime.*"),
    CalledNames("random_call", "A call of anything of random or secrets.", "random.* secrets.*"),
    CalledNames("math_call", "A call of anything of math or cmath.", "math.* cmath.*"),
    CalledNames("ffi_call", "A call of anything of ctypes or cffi.", "ctypes.* cffi.*"),
    CalledNames(
        "concurrency_call",
        "A call of anything of threading, multiprocessing or concurrent.",
        "threading.* multiprocessing.* concurrent.*",
    ),
    CalledNames("asyncio_call", "A call of anything of asyncio.", "asyncio.*"),
    CalledNames("logging_call", "A call of anything of logging.", "logging.*"),
    CalledNames("introspection_call", "A call of anything of inspect.", "inspect.*"),
    CalledNames("heap_bisect_call", "A call of anything of heapq or bisect.", "heapq.* bisect.*"),
    CalledNames("itertools_call", "A call of anything of itertools.", "itertools.*"),
    CalledNames("functools_call", "A call of anything of functools.", "functools.*"),
    CalledNames("collections_call", "A call of anything of collections.", "collections.*"),
    CalledNames("contextlib_call", "A call of anything of contextlib.", "contextlib.*"),
)


def calls_of(called: str, methods: str = "") -> Detector:
    """A detector of calls by name, as a row of the table has it."""
    names = defaultdict[str, set[str]](set)
    starts = defaultdict[str, tuple[str, ...]](tuple)
    for name in called.split():
        root = name.partition(".")[0]
        if name.endswith("*"):
            starts[root] += (name[:-1],)
        else:
            names[root].add(name)
    roots = names.keys() | starts.keys()
    last_names = methods.split()

    def detect(source: SourceText) -> Iterator[Span]:
        for root in roots:
            for call, name in source.names.calls(root):
                if name in names[root] or name.startswith(starts[root]):
                    yield source.span(call)
        for call in source.method_calls(last_names):
            yield source.span(call)

    return detect


for _row in TABLE:
    GROUP.node(_row.name, _row.description)(calls_of(_row.called, _row.methods))
