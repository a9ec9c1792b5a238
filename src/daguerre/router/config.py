"""The configuration of a router: a TOML file of these tables, checked as a whole before anything is routed.

Money is in dollars for a million tokens, times in milliseconds. Of a wrong file, a DataError names the line.
`Config.model_json_schema()` is the JSON Schema of the file.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from daguerre.errors import DaguerreError, DataError, InputError, unknown
from daguerre.http.settings import Keys, sites_of
from daguerre.router.quality import quality_in
from daguerre.router.toml_lines import line_of

Operation = Literal["chat", "completions", "responses", "embeddings", "fim", "edit", "decisions"]
Need = Literal[
    "suffix",
    "pins",
    "spans",
    "edit",
    "decisions",
    "schema",
    "strict_schema",
    "tools",
    "images",
    "logprobs",
    "daguerre",
]
Step = Literal[
    "classify",
    "look_up",
    "extract",
    "tool_arguments",
    "short_answer",
    "facts",
    "edit",
    "infill",
    "summarize",
    "plan",
    "reason",
    "write_code",
    "long_text",
]
Override = Literal["slo_ms", "backend", "step", "tags", "max_cost", "cache", "explore", "test"]
OPERATIONS, NEEDS, STEPS = get_args(Operation), get_args(Need), get_args(Step)
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class ConfigTable(BaseModel):
    """A table of the file: nothing in it is ignored, and nothing changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Price(ConfigTable):
    """Dollars for a million tokens, and for each request."""

    input: Amount = 0.0
    output: Amount = 0.0
    request: Amount = 0.0


class Latency(ConfigTable):
    """What is expected of a backend before it was measured, in milliseconds: until its first text, and for each token
    after it, at the median and at the 95th percentile; and how much a cold start adds. A backend is cold where nobody
    has asked it for `cold_after` seconds, or ever; None: it never is.
    """

    first: Amount = 500.0
    first_p95: Amount = 1500.0
    token: Amount = 15.0
    token_p95: Amount = 30.0
    cold_start: Amount = 0.0
    cold_after: Amount | None = None


class Backend(ConfigTable):
    """A server that speaks OpenAI's interface, or one that litellm speaks for it.

    name        in decisions, logs and headers
    api         openai, or litellm: the library of that name asks APIs of other shapes (it is in the extra `litellm`)
    url         its base, such as http://127.0.0.1:8000/v1; litellm knows those of hosted APIs
    model       the name that it knows the model by; for litellm, with its provider, such as anthropic/claude-opus-4
    key_env, key_file   where its API key is; neither: it needs none
    body        fields that every request to it gets, such as a decoding mode; no secret, since the log has them
    operations  what it serves
    needs       what else it can do: requests that need more never go there; `daguerre` is a request's object of that
                name, with all that no other need is about
    context     tokens of the longest request, its answer included
    tags        such as where data stay; a request that asks for tags, or whose step type or key has some, goes where
                all of them are
    quality     by step type, the share of requests that it answers well, 0 to 1; `default` for all others, .5 if it
                is not given
    drafts      operations in which it takes a likely answer to check instead of writing it: as `prediction` in chat,
                else as `daguerre.draft`
    most_in_flight   requests at a time
    timeout     seconds without a byte after which a request to it has failed
    """

    name: Annotated[str, Field(pattern=NAME)]
    api: Literal["openai", "litellm"] = "openai"
    url: HttpUrl | None = None
    model: str
    key_env: str | None = None
    key_file: Path | None = None
    body: dict[str, Any] = Field(default_factory=dict)
    operations: tuple[Operation, ...] = ("chat", "completions")
    needs: tuple[Need, ...] = ("tools", "schema", "strict_schema")
    context: Count = 8192
    tags: tuple[str, ...] = ()
    quality: dict[Step | Literal["default"], Share] = Field(default_factory=dict)
    price: Price = Price()
    latency: Latency = Latency()
    drafts: tuple[Literal["chat", "completions", "fim"], ...] = ()
    most_in_flight: Count = 64
    timeout: Annotated[float, Field(gt=0)] = 60.0

    @field_validator("url")
    @classmethod
    def _no_password(cls, given: HttpUrl | None) -> HttpUrl | None:
        if given is not None and (given.username or given.password):
            raise ValueError("leave the user and the password out: name the key with key_env or key_file")
        return given

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.key_env is not None and self.key_file is not None:
            raise ValueError("give key_env or key_file, not both")
        return self

    @model_validator(mode="after")
    def _has_url(self) -> Self:
        if self.api == "openai" and self.url is None:
            raise ValueError("give its url, such as http://127.0.0.1:8000/v1")
        return self

    def quality_of(self, step: str) -> float:
        """The share of requests of a step type that it answers well."""
        return self.quality.get(step, self.quality.get("default", 0.5))  # type: ignore[call-overload]


class StepRule(ConfigTable):
    """What a step type needs: the least quality, milliseconds within which 95% of its answers must be there, and tags
    that a backend must have.
    """

    quality: Share = 0.0
    slo_ms: Annotated[float, Field(gt=0)] | None = None
    tags: tuple[str, ...] = ()
    tokens: Count = 256
    """Expected length of an answer that names no limit."""


NO_RULE = StepRule()
RULES = {"facts": StepRule(quality=0.8)}
"""Of step types that a file does not name: facts from memory are what fast models err in most."""


class Explore(ConfigTable):
    """A share of requests goes to a backend that is not the best, of those that may have it."""

    share: Share = 0.0
    steps: tuple[Step, ...] = STEPS


class Retry(ConfigTable):
    """Before the first byte of an answer: how many attempts a request has in all, and seconds before a second one at
    the same backend, twice as long each time.
    """

    attempts: Count = 4
    backoff: Amount = 0.1


class Breaker(ConfigTable):
    """When a backend is left alone: after so many failures in a row, for `cool` seconds, twice as long each time it
    fails again, up to `most_cool`.
    """

    failures: Count = 3
    cool: Annotated[float, Field(gt=0)] = 2.0
    most_cool: Annotated[float, Field(gt=0)] = 60.0


class Measuring(ConfigTable):
    """How backends' latencies are kept: a measurement loses half its weight in so many seconds."""

    half_life: Annotated[float, Field(gt=0)] = 60.0


class Cache(ConfigTable):
    """Answers that are kept, and given again to equal requests: of temperature 0, and without tools, unless the request
    wishes `x-route-cache: on`.

    ttl         seconds that an answer is kept; 0: nothing is
    most_bytes  of all answers together; the oldest go first
    near        the least similarity (cosine of counted words and word pairs) of a request's last message to one that
                was answered, all else equal, whose answer may be given to a request that wishes `x-route-cache: near`;
                None: that wish is refused
    """

    ttl: Amount = 0.0
    most_bytes: Count = 64 * 2**20
    near: Share | None = None


class Hedge(ConfigTable):
    """A second backend is asked where the first has sent nothing within the 95th percentile that was predicted for it,
    or later: so late that second answers cost 5% of first ones at most, and, where there is an SLO, that only what the
    second needs is left of it. The first of the two that answers wins, the other request is ended, and may still be
    billed.

    share   the most requests that may be asked twice, of all
    steps   of these types
    """

    share: Share = 0.0
    steps: tuple[Step, ...] = STEPS


class Grader(ConfigTable):
    """Says how good an answer is, 0 to 1, beside another one or alone.

    exact   1 where it is equal to the other answer but for white space, its JSON as a value, its tool calls as calls
    schema  1 where it is valid by the request's schema, or its tool calls are by theirs; nothing where there is none
    tests   1 where `command`, which has absolute paths, exits with 0: the answer is its standard input, code alone
            where it has a code fence, and the request as JSON is in the file that the variable DAGUERRE_REQUEST names
    judge   the number that the backend `judge` gives, asked whether the answer is right

    share   of answers that have no shadow, those that are graded alone; not by `exact`
    """

    kind: Literal["exact", "schema", "tests", "judge"] = "exact"
    command: tuple[str, ...] = ()
    judge: str | None = None
    share: Share = 0.0
    timeout: Annotated[float, Field(gt=0)] = 30.0

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "tests" and not self.command:
            raise ValueError("a grader of kind tests needs a command with absolute paths, such as ['/srv/run_tests']")
        if self.kind == "judge" and self.judge is None:
            raise ValueError("a grader of kind judge needs the name of a backend: judge = 'name'")
        if self.kind == "exact" and self.share:
            raise ValueError("a grader of kind exact compares two answers: leave share out, or choose another kind")
        return self


class Shadow(ConfigTable):
    """A share of requests is asked of a second backend also, in the background, after the client was answered.

    backend         which; None: one that could have had the request, each as likely
    most_in_flight  requests at a time; more are left out
    """

    share: Share = 0.0
    backend: str | None = None
    steps: tuple[Step, ...] = STEPS
    most_in_flight: Count = 4


class Cascade(ConfigTable):
    """A small backend answers first, and the one that was decided on where that answer is not accepted: it is then
    given the answer as a draft, if it takes any (`drafts`).

    small    which answers first; None: there is no cascade
    accept   what an answer must pass: schema, where the request has one, for text or calls; and likelihood
    least    by step type, `default` for all others, the least geometric mean of its tokens' probabilities (of a
             decision, of its labels'); a type without one has no cascade by likelihood. `daguerre route fit --cascade`
             finds them
    steps    of these types
    score    an answer that is too unlikely is taken nevertheless where the other backend finds it so likely, as `least`
             counts; that reads it behind the request, and writes on where it does not. For Daguerre's servers alone,
             with `drafts` (`daguerre.accept_draft`); None: it is only a draft
    tests    commands by name, as a grader of kind tests has one: where a request names one (`x-route-test`), it alone
             says whether the answer is accepted
    timeout  seconds for a command, and for checking a schema
    """

    small: str | None = None
    accept: tuple[Literal["likelihood", "schema"], ...] = ("likelihood", "schema")
    least: dict[Step | Literal["default"], Share] = Field(default_factory=dict)
    steps: tuple[Step, ...] = STEPS
    score: Share | None = None
    tests: dict[Annotated[str, Field(pattern=NAME)], Annotated[tuple[str, ...], Field(min_length=1)]] = Field(
        default_factory=dict
    )
    timeout: Annotated[float, Field(gt=0)] = 30.0

    def least_of(self, step: str) -> float | None:
        """The least likelihood of an accepted answer; None: likelihood accepts none."""
        return self.least.get(step, self.least.get("default"))  # type: ignore[call-overload]


class KeyLimits(ConfigTable):
    """What the owner of a key may use; None: no limit.

    tags      a backend must have them to get the owner's requests
    operator  whether /status tells the owner what all others have asked and spent
    """

    dollars_per_day: Amount | None = None
    tokens_per_day: Count | None = None
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    tags: tuple[str, ...] = ()
    operator: bool = False


class Server(ConfigTable):
    """Where the router listens, and who may ask.

    keys_file     has lines as `daguerre serve --keys` reads them
    state         a file for what outlasts a restart; one router at a time uses it
    most_body     bytes of a request, which must be there within `body_timeout` seconds
    origins       sites whose pages may ask, such as https://example.com
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8800
    keys_file: Path | None = None
    state: Path | None = None
    most_body: Count = 8 * 2**20
    body_timeout: Annotated[float, Field(gt=0)] = 60.0
    origins: tuple[str, ...] = ()
    log: Path | None = None
    log_text: bool = False

    @field_validator("origins")
    @classmethod
    def _sites(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return sites_of(given)
        except InputError as error:
            raise ValueError(str(error)) from None


class Config(ConfigTable):
    """A whole file.

    steps         what each step type needs; those that are not named have no SLO, and no floor but facts, 0.8
    cost_within   costs within this share of the least count as equal, so that load decides
    overrides     which of its own wishes a request may name, in headers `x-route-*` or in `metadata`
    quality_model a file of `daguerre route fit`: predicts for each request how likely each backend's answer is right
    keys          limits by owner of a key, as the file of keys names them; `default` is for all others, each for itself
    """

    backends: Annotated[tuple[Backend, ...], Field(min_length=1)]
    steps: dict[Step, StepRule] = Field(default_factory=dict)
    cost_within: Share = 0.0
    overrides: tuple[Override, ...] = ("slo_ms", "tags")
    explore: Explore = Explore()
    quality_model: Path | None = None
    retry: Retry = Retry()
    circuit: Breaker = Breaker()
    measuring: Measuring = Measuring()
    cache: Cache = Cache()
    hedge: Hedge = Hedge()
    shadow: Shadow = Shadow()
    grader: Grader = Grader()
    cascade: Cascade = Cascade()
    keys: dict[str, KeyLimits] = Field(default_factory=dict)
    server: Server = Server()

    @field_validator("backends")
    @classmethod
    def _unlike_names(cls, given: tuple[Backend, ...]) -> tuple[Backend, ...]:
        names = [each.name for each in given]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two backends are called {twice[0]!r}: rename one")
        return given

    @model_validator(mode="after")
    def _known_backends(self) -> Self:
        known = {each.name for each in self.backends}
        for place, name in (
            (("shadow", "backend"), self.shadow.backend),
            (("grader", "judge"), self.grader.judge),
            (("cascade", "small"), self.cascade.small),
        ):
            if name is not None and name not in known:
                said = f"names no backend: {name!r}; there are {', '.join(sorted(known))}"
                raise PydanticCustomError("unknown_backend", "{said}", {"said": said, "place": place})
        return self

    @model_validator(mode="after")
    def _small_tells_likelihoods(self) -> Self:
        cascade = self.cascade
        if cascade.small is None or "likelihood" not in cascade.accept or not cascade.least:
            return self
        if "logprobs" not in self.backend(cascade.small).needs:
            said = f"{cascade.small} must tell log-probabilities: add 'logprobs' to its needs, or leave out `least`"
            raise PydanticCustomError("no_logprobs", "{said}", {"said": said, "place": ("cascade", "least")})
        return self

    def backend(self, name: str) -> Backend:
        """The backend of a name. InputError if there is none."""
        for each in self.backends:
            if each.name == name:
                return each
        raise unknown("backend", name, [each.name for each in self.backends])

    def rule(self, step: str) -> StepRule:
        """What a step type needs."""
        return self.steps.get(step, RULES.get(step, NO_RULE))  # type: ignore[call-overload]

    @cached_property
    def sha256(self) -> str:
        """Of the configuration as canonical JSON, defaults included, but for those that older logs do not know: so they
        can be decided again.
        """
        value = self.model_dump(mode="json")
        if self.cascade == Cascade():
            del value["cascade"]
        for backend in value["backends"]:
            if not backend["drafts"]:
                del backend["drafts"]
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def read_config(path: Path, *, files: bool = True) -> Config:
    """The configuration of a TOML file. DataError for a file that cannot be read or is wrong. files: so must those be
    that it names.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    found = parse_config(text, str(path))
    for place, read in _files(found) if files else ():
        try:
            read()
        except DaguerreError as error:
            raise _wrong(text, str(path), place, str(error)) from None
    return found


def key_in(path: Path, backend: str) -> str:
    """A backend's API key. InputError for a file that cannot be read or has none."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"backend {backend!r}: cannot read its key from {path}: {error}") from None
    if not key:
        raise InputError(f"backend {backend!r}: {path} is empty")
    return key


def _files(config: Config) -> Iterator[tuple[tuple[Any, ...], Callable[[], object]]]:
    """The place of each file that a configuration names, and what reads it."""
    if config.quality_model is not None:
        yield ("quality_model",), partial(quality_in, config.quality_model, [one.name for one in config.backends])
    yield ("server", "keys_file"), partial(Keys.read, config.server.keys_file, None)
    for number, one in enumerate(config.backends):
        if one.key_file is not None:
            yield ("backends", number, "key_file"), partial(key_in, one.key_file, one.name)


def parse_config(text: str, name: str) -> Config:
    """The configuration of a text; `name` is for errors."""
    try:
        return Config.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DataError(f"{name} is no TOML: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = tuple(first["loc"] or first.get("ctx", {}).get("place", ()))
        raise _wrong(text, name, place, str(first["msg"]).removeprefix("Value error, ")) from None


def _wrong(text: str, name: str, place: tuple[Any, ...], said: str) -> DataError:
    """An error with the line of a place."""
    return DataError(f"{name}, line {line_of(text, place)}: {'.'.join(map(str, place)) or 'file'}: {said}")
