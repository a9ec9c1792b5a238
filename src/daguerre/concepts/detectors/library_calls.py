"""Calls of libraries: whatever is called there belongs to a module that the file imports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from daguerre.concepts.detectors import Detector, add
from daguerre.concepts.source import SourceText, Span

CALLED = {
    "path_operation": "os.path.* posixpath.* ntpath.* pathlib.*",
    "tempfile_call": "tempfile.*",
    "subprocess_call": "subprocess.* os.system os.popen os.startfile os.exec* os.spawn* os.posix_spawn*",
    "socket_call": "socket.* socketserver.* ssl.*",
    "http_call": "requests.* httpx.* aiohttp.* urllib3.* urllib.request.* http.client.*",
    "json_call": "json.* simplejson.* ujson.* orjson.*",
    "pickle_call": "pickle.* cPickle.* dill.* cloudpickle.*",
    "binary_struct_call": "struct.*",
    "base64_call": "base64.* binascii.*",
    "compression_call": "zlib.* gzip.* bz2.* lzma.* zipfile.* tarfile.*",
    "hash_call": "hashlib.* hmac.*",
    "regex_call": "re.* regex.*",
    "time_call": "time.* datetime.*",
    "random_call": "random.* secrets.*",
    "math_call": "math.* cmath.*",
    "ffi_call": "ctypes.* cffi.*",
    "concurrency_call": "threading.* multiprocessing.* concurrent.*",
    "asyncio_call": "asyncio.*",
    "logging_call": "logging.*",
    "introspection_call": "inspect.*",
    "heap_bisect_call": "heapq.* bisect.*",
    "itertools_call": "itertools.*",
    "functools_call": "functools.*",
    "collections_call": "collections.*",
    "contextlib_call": "contextlib.*",
}
"""Full names of what is called, or starts of some with a star."""


def calls_of(called: str, methods: str = "") -> Detector:
    """A detector of calls by name, as `CALLED` has it; `methods` count whatever they are called of."""
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


for _name, _called in CALLED.items():
    add(_name, calls_of(_called))
add("db_call", calls_of("sqlite3.* psycopg2.* pymysql.*", "execute executemany executescript"))
add(
    "filesystem_mutation",
    calls_of(
        "os.remove os.unlink os.rename os.renames os.replace os.mkdir os.makedirs os.rmdir os.removedirs os.chmod "
        "os.chown os.lchown os.link os.symlink os.truncate os.utime os.mkfifo os.mknod shutil.rmtree shutil.move "
        "shutil.copy* shutil.chown shutil.make_archive shutil.unpack_archive",
        "mkdir rmdir unlink",
    ),
)
