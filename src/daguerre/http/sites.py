"""Which pages of a browser may ask: those of this server and of the sites that the operator names.

A page of any site can make its reader's browser send requests to any address that the reader reaches, this machine's
own included. Browsers say in `Origin` and `Sec-Fetch-Site` where a request comes from; programs send neither. A name
that a stranger owns may also be made to mean this machine (DNS rebinding): its page is then of the same origin as this
server, and only the header `Host` tells.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Scope

from daguerre.errors import shown
from daguerre.http.errors import ApiError
from daguerre.http.settings import ANYWHERE, Settings

PAGES = ("/", "/playground", "/docs", "/page")
"""Where links of other sites may lead."""
OUR_OWN = ("same-origin", "none")
"""Values of Sec-Fetch-Site: of this server's pages, and of what a user typed."""
LOCAL_NAMES = ("localhost", "host.docker.internal")
PORTS = (":80", ":443")
"""That an address may leave out."""


def check_site(scope: Scope, headers: Headers, settings: Settings) -> None:
    """ApiError for a request of a page that may not ask here."""
    if not settings.keys.names:
        _check_host(scope, headers.get("host", ""), settings.origins)
    if is_foreign(headers, settings.origins) and not _is_link(scope, headers):
        raise ApiError(
            "pages of other sites may not ask here: the operator can name their site with --origin "
            "(of a router: origins in the table [server])",
            403,
            code="foreign_origin",
        )
    if "origin" in headers or "sec-fetch-site" in headers:
        _check_type(headers)


def allowing(settings: Settings, app: ASGIApp) -> ASGIApp:
    """The application, whose answers tell browsers which sites may read them."""
    if not settings.origins:
        return app
    return CORSMiddleware(app, settings.origins, allow_methods=["*"], allow_headers=["*"], expose_headers=["*"])


def is_foreign(headers: Headers, origins: Iterable[str]) -> bool:
    """Whether a browser says that a request is of a page of another site, which is none of `origins`."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if ANYWHERE in origins or (origin is not None and origin.lower() in origins):
        return False
    if site is not None and site not in OUR_OWN:
        return True
    return origin is not None and _bare(origin.lower().partition("://")[2]) != _bare(headers.get("host", "").lower())


def under(path: str, places: Iterable[str]) -> bool:
    """Whether a path is one of these, or is in one of these folders."""
    return any(path == place or (place != "/" and path.startswith(place + "/")) for place in places)


def _is_link(scope: Scope, headers: Headers) -> bool:
    """Whether a request opens a page of this server in the browser's window."""
    shows = scope["method"] in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
    return shows and "origin" not in headers and under(scope["path"], PAGES)


def _check_host(scope: Scope, host: str, origins: Iterable[str]) -> None:
    """ApiError where a server of this machine alone is asked by a name that is not this machine's."""
    server = scope.get("server")
    if not server or not _is_loopback(server[0]) or not host or ANYWHERE in origins:
        return
    named = {one.partition("://")[2] for one in origins}
    name = host.lower().rstrip(".")
    if not _is_local(_name_of(name)) and name not in named and _name_of(name) not in named:
        raise ApiError(
            f"this server has no keys, so on this machine it answers to the machine's own names alone and not to "
            f"{shown(host)}: ask for localhost, or give the server keys, or name the site with --origin",
            403,
            code="foreign_host",
        )


def _check_type(headers: Headers) -> None:
    """ApiError for a body that a page of any site could send without being asked first."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    empty = "transfer-encoding" not in headers and headers.get("content-length", "0") == "0"
    if not empty and kind != "application/json" and not kind.endswith("+json"):
        raise ApiError("send the content type application/json from a browser", 415, code="unsupported_media_type")


def _bare(address: str) -> str:
    """A host and its port, without a port that may be left out."""
    return next((address.removesuffix(port) for port in PORTS if address.endswith(port)), address)


def _name_of(host: str) -> str:
    """A host without its port and brackets."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].rstrip(".")


def _is_local(name: str) -> bool:
    return name in LOCAL_NAMES or name.endswith(".localhost") or _is_loopback(name)


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
