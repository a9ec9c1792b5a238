"""Record what real clients send for tasks of each step type: `python tests/clients/record_steps.py OUT [TASKS]`.

The tasks are those of step_tasks.toml, or of the second file named (step_tasks_blind.toml). Runs in an environment with
the clients (openai, openai-agents, langchain-openai, litellm, instructor, pydantic-ai, llama-index, smolagents, dspy;
those that are missing are left out and named) against a server of its own on this machine, which keeps each body and
gives canned answers, calls of tools included, so that loops go on. A row is
{"step", "task", "client", "operation", "body"}; the label is of the task, which a person chose.

A task is [system, user] or a table of `Task`'s fields. `form` and `tools` are names of tables [forms.NAME] and
[tools.NAME] of the file. Their fields are of `KINDS`, a choice such as a|b, or a list of another form; with "?" at the
end a field may be absent.
"""

# ruff: noqa: T201
from __future__ import annotations

import gzip
import importlib.util
import inspect
import json
import os
import re
import sys
import threading
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Optional, get_type_hints

from pydantic import BaseModel, Field, TypeAdapter, create_model

OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENAI_API_KEY": "none",
    "HF_HUB_OFFLINE": "1",
    "DSPY_CACHEDIR": "/tmp/dspy-none",
}
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/completions": "completions",
    "/v1/fim/completions": "fim",
}
MODEL = "gpt-4o-mini"
KINDS: dict[str, Any] = {"text": str, "number": float, "count": int, "flag": bool, "texts": list[str]}
HOLES = {
    "qwen": "<|fim_prefix|>{before}<|fim_suffix|>{behind}<|fim_middle|>",
    "starcoder": "<fim_prefix>{before}<fim_suffix>{behind}<fim_middle>",
    "deepseek": "<｜fim▁begin｜>{before}<｜fim▁hole｜>{behind}<｜fim▁end｜>",
    "codellama": "<PRE> {before} <SUF>{behind} <MID>",
    "codestral": "[SUFFIX]{behind}[PREFIX]{before}",
}


@dataclass(frozen=True)
class Task:
    """What a client is asked to do, and the type of the answer."""

    step: str
    name: str
    system: str = ""
    user: str = ""
    earlier: tuple[str, ...] = ()
    """Turns before, the user's first."""
    form: type[BaseModel] | None = None
    """What the answer has to be an object of."""
    tools: tuple[Callable[..., str], ...] = ()
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Tools that the canned answers call, in order, and their arguments."""
    after: str = ""
    """The type of the answer after the last call; "": that request is not kept."""
    before: str = ""
    behind: str = ""
    """Text before and after a cursor."""
    shapes: tuple[str, ...] = ()
    """How an editor's plugin sends them: "suffix", "fim" or one of `HOLES`."""

    @property
    def steps(self) -> list[str]:
        """The labels of the requests of a loop, "" after the last that is kept."""
        return ["tool_arguments"] * len(self.calls) + [self.after, ""] if self.calls else [self.step, ""]

    @property
    def messages(self) -> list[dict[str, str]]:
        turns = [{"role": ("user", "assistant")[place % 2], "content": one} for place, one in enumerate(self.earlier)]
        return [*messages(self.system), *turns, {"role": "user", "content": self.user}]


class Lead(BaseModel):
    """A contact."""

    name: str
    company: str = Field(description="the employer")
    phone: str | None = None


class Trip(BaseModel):
    origin: str
    destination: str
    departure: str
    seats: int


class Verdict(BaseModel):
    label: Literal["refund", "exchange", "question", "praise"]


class Flag(BaseModel):
    on_topic: bool
    why: str


class Todo(BaseModel):
    steps: list[str]


SCHEMAS: list[tuple[str, type[BaseModel], str, str]] = [
    ("extract", Lead, "", "Met Orla Byrne at the fair, she runs sales at Tidal Pumps, reach her at 0161 555 010."),
    ("extract", Lead, "Read the business card.", "KOWALSKI & SYN\nPiotr Kowalski\ntel. 22 555 31 90"),
    (
        "extract",
        Trip,
        "Fill in the booking.",
        "two of us want to go from Ghent to Basel on the 9th of July in the morning",
    ),
    ("extract", Trip, "", "Need 3 tickets Turin -> Nice, leaving Sunday."),
    ("classify", Verdict, "What does the customer want?", "The sleeves are too long, could I get a size smaller?"),
    ("classify", Verdict, "", "Best gloves I ever had, thank you!"),
    ("classify", Flag, "The bot is only for gardening. Check the message.", "Can you do my tax return?"),
    ("classify", Flag, "Is the message about cooking?", "how long do lentils simmer"),
    ("plan", Todo, "Decompose the goal.", "Open a pop-up bookshop in a disused station"),
    ("plan", Todo, "", "I want to digitize 4,000 family slides. What are the steps, in order?"),
]


class Recorder:
    """The server's memory: whose request is next, and its label."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.client = self.task = ""
        self.steps: list[str] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def expect(self, client: str, task: Task, *steps: str) -> None:
        """The labels of the next requests, "" to keep none; the last holds for all that follow."""
        self.client, self.task, self.steps, self.calls = client, task.name, list(steps), list(task.calls)

    def take(self, path: str, body: dict[str, Any]) -> str:
        """Keep a body; its label."""
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        row = {"step": step, "task": self.task, "client": f"{self.client} {version(self.client)}"}
        if step:
            self.rows.append(row | {"operation": OPERATIONS[path], "body": body})
        return step

    def call(self) -> tuple[str, dict[str, Any]] | None:
        """The next call of the task's own."""
        return self.calls.pop(0) if self.calls else None


def filled(schema: dict[str, Any], root: dict[str, Any] | None = None) -> Any:
    """Some value of a schema."""
    root = schema if root is None else root
    if "$ref" in schema:
        return filled(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "enum" in schema or "const" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            return filled(schema[name][0], root)
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        return {name: filled(one, root) for name, one in schema.get("properties", {}).items()}
    made = {"array": lambda: [filled(schema.get("items", {}), root)], "integer": lambda: 2, "number": lambda: 1.5}
    return made.get(str(kind), {"boolean": lambda: True, "null": lambda: None}.get(str(kind), lambda: "some text"))()


def called(body: dict[str, Any], step: str) -> tuple[str, dict[str, Any]] | None:
    """The tool that is called, with arguments; None: none."""
    tools = [one.get("function", one) for one in body.get("tools") or []]
    if not tools:
        return None
    choice = body.get("tool_choice")
    named = choice.get("function", choice).get("name") if isinstance(choice, dict) else None
    forced = named is not None or choice in ("required", "any")
    if not forced and step != "tool_arguments":
        return None
    tool = next((one for one in tools if one.get("name") == named), tools[0])
    return tool["name"], filled(tool.get("parameters") or {})


def text_of(body: dict[str, Any]) -> str:
    """What is said where no tool is called."""
    wanted = body.get("response_format") or (body.get("text") or {}).get("format") or {}
    if wanted.get("type") == "json_schema":
        return json.dumps(filled(wanted.get("json_schema", wanted).get("schema", {})))
    said = json.dumps(body)
    if "final_answer" in said:
        return "Thought: done.\n<code>\nfinal_answer('done')\n</code>"
    fields = re.findall(r"\[\[ ## (\w+) ## \]\]", said)
    outputs = [name for name in dict.fromkeys(fields) if name not in ("completed", "structure")]
    return "\n".join(f"[[ ## {name} ## ]]\nSome text." for name in outputs) or "Some text."


def answer(path: str, body: dict[str, Any], step: str, own: tuple[str, dict[str, Any]] | None) -> dict[str, Any]:
    """A canned answer of a surface; `own`: the task's own call of a tool."""
    call, usage = (
        (own if own and body.get("tools") else called(body, step)),
        {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    )
    said = [one for one in body.get("messages") or body.get("input") or [] if isinstance(one, dict)]
    results = [one for one in said if one.get("role") == "tool" or one.get("type") == "function_call_output"]
    call_id = f"c{len(results) + 1}"
    if path.endswith("responses"):
        content = [{"type": "output_text", "text": text_of(body), "annotations": []}]
        item: dict[str, Any] = {"type": "message", "id": "m", "role": "assistant", "status": "completed"} | {
            "content": content
        }
        if call:
            item = {"type": "function_call", "id": "f", "call_id": call_id, "name": call[0], "status": "completed"}
            item["arguments"] = json.dumps(call[1])
        tokens = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        head = {"id": "r", "object": "response", "created_at": 1, "model": MODEL, "status": "completed", "tools": []}
        more = {"tool_choice": "auto", "parallel_tool_calls": True, "usage": tokens | details}
        return head | more | {"output": [item]}
    if path.endswith("chat/completions"):
        message: dict[str, Any] = {"role": "assistant", "content": text_of(body)}
        if call:
            function = {"name": call[0], "arguments": json.dumps(call[1])}
            message |= {"content": None, "tool_calls": [{"id": call_id, "type": "function", "function": function}]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop"}
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": MODEL,
            "choices": [choice],
            "usage": usage,
        }
    choice = {"index": 0, "text": "Some text.", "finish_reason": "stop", "logprobs": None}
    return {"id": "c", "object": "text_completion", "created": 1, "model": MODEL, "choices": [choice], "usage": usage}


def serve(recorder: Recorder) -> ThreadingHTTPServer:
    """A server on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            step = recorder.take(self.path, body)
            own = recorder.call() if step == "tool_arguments" else None
            data = json.dumps(answer(self.path, body, step, own)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def search(query: str) -> str:
    """Search records."""
    return "nothing"


def get_weather(city: str) -> str:
    """Current weather of a city."""
    return "7 degrees, rain"


def find_items(query: str, limit: int = 5) -> str:
    """Search records of the workspace: stock, flights, pull requests, calendar."""
    return '[{"id": 31, "title": "56 cm frame", "state": "open", "on_time": true}]'


def do_action(target: str, details: str) -> str:
    """Change something: send, move, write, remind."""
    return "done"


TOOLS: list[Callable[..., str]] = [find_items, get_weather, do_action]


def messages(system: str, *user: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}] * bool(system) + [{"role": "user", "content": one} for one in user]


def kind_of(word: str, forms: Mapping[str, type[BaseModel]]) -> Any:
    """The type of a field."""
    if word.endswith("?"):
        return Optional[kind_of(word[:-1], forms)]  # noqa: UP045
    if "|" in word:
        return Literal[tuple(word.split("|"))]
    return KINDS.get(word) or list[forms[word]]  # type: ignore[valid-type]


def form_of(name: str, fields: Mapping[str, str], forms: Mapping[str, type[BaseModel]]) -> type[BaseModel]:
    """A class with the fields."""
    given = {field: (kind_of(word, forms), None if word.endswith("?") else ...) for field, word in fields.items()}
    return create_model(name, **given)  # type: ignore[call-overload]


def tool_of(name: str, about: str, takes: Mapping[str, str], result: str) -> Callable[..., str]:
    """A function with that signature, as a program would offer it, which gives one result."""

    def tool(*given: Any, **named: Any) -> str:
        return result

    kinds = {field: kind_of(word, {}) for field, word in takes.items()}
    tool.__name__, tool.__doc__, tool.__annotations__ = name, about, kinds | {"return": str}
    told = inspect.Parameter.POSITIONAL_OR_KEYWORD
    taken = [
        inspect.Parameter(field, told, annotation=kinds[field], default=None if word.endswith("?") else inspect._empty)
        for field, word in takes.items()
    ]
    tool.__signature__ = inspect.Signature(taken, return_annotation=str)  # type: ignore[attr-defined]
    return tool


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a file."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    tools, forms = table.pop("tools", {}), dict[str, type[BaseModel]]()
    for name, fields in table.pop("forms", {}).items():
        forms[name] = form_of(name, fields, forms)
    tasks = []
    for step, some in table.items():
        for number, one in enumerate(some):
            given = {"system": one[0], "user": one[1]} if isinstance(one, list) else dict(one)
            calls = given.get("calls", [])
            results = {call["tool"]: call["result"] for call in calls}
            given["calls"] = tuple((call["tool"], call["arguments"]) for call in calls)
            given["tools"] = tuple(
                tool_of(name, tools[name]["about"], tools[name]["takes"], results.get(name, "done"))
                for name in given.get("tools", [])
            )
            given["form"] = forms[given["form"]] if "form" in given else None
            given |= {name: tuple(given.get(name, ())) for name in ("earlier", "shapes")}
            tasks.append(Task(step, f"{step} {number}", **given))
    return tasks


def schema_of(tool: Callable[..., str]) -> dict[str, Any]:
    hints = {name: hint for name, hint in get_type_hints(tool).items() if name != "return"}
    fields = {name: TypeAdapter(hint).json_schema() for name, hint in hints.items()}
    taken = inspect.signature(tool).parameters
    required = [name for name in hints if taken[name].default is inspect.Parameter.empty]
    parameters = {"type": "object", "properties": fields, "required": required}
    return {"name": tool.__name__, "description": tool.__doc__, "parameters": parameters}


Ask = Callable[[Task], object]
Way = Callable[[], object]


class Clients:
    """Each client's way to ask, to fill a schema, and to run a loop of tools."""

    def __init__(self, url: str, recorder: Recorder) -> None:
        self.url, self.recorder = url, recorder

    def plain(self) -> dict[str, Ask]:
        """Clients for tasks without tools."""
        found: dict[str, Ask] = {}
        for name in (
            "openai",
            "openai-agents",
            "langchain-openai",
            "litellm",
            "pydantic-ai-slim",
            "dspy",
            "llama-index-llms-openai-like",
        ):
            try:
                version(name)
                found[name] = getattr(self, "ask_" + re.sub(r"\W", "_", name))()
            except Exception as error:
                print(f"left out {name}: {type(error).__name__}: {error}", flush=True)
        return found

    def ask_openai(self) -> Ask:
        from openai import OpenAI

        client, turn = OpenAI(base_url=self.url, api_key="none"), [0]

        def ask(task: Task) -> object:
            turn[0] += 1
            if turn[0] % 3 == 0:
                said: Any = replace(task, system="").messages if task.earlier else task.user
                system = {"instructions": task.system} if task.system else {}
                return client.responses.create(model=MODEL, input=said, **system)
            if turn[0] % 7 == 0 and not task.earlier:
                prompt = f"{task.system}\n\n{task.user}".strip()
                return client.completions.create(model=MODEL, prompt=prompt, max_tokens=400)
            more: dict[str, Any] = {"temperature": 0} if turn[0] % 2 else {"max_completion_tokens": 1024}
            return client.chat.completions.create(model=MODEL, messages=task.messages, **more)

        return ask

    def ask_openai_agents(self) -> Ask:
        from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
        from openai import AsyncOpenAI

        set_tracing_disabled(True)
        client, turn = AsyncOpenAI(base_url=self.url, api_key="none"), [0]

        def ask(task: Task) -> object:
            turn[0] += 1
            kind = OpenAIChatCompletionsModel if turn[0] % 2 else OpenAIResponsesModel
            agent = Agent(name="one", instructions=task.system or None, model=kind(model=MODEL, openai_client=client))
            return Runner.run_sync(agent, replace(task, system="").messages if task.earlier else task.user)

        return ask

    def ask_langchain_openai(self) -> Ask:
        from langchain_core.prompts import ChatPromptTemplate
        from langchain_openai import ChatOpenAI

        chat = ChatOpenAI(base_url=self.url, api_key="none", model=MODEL, temperature=0.3, max_tokens=800)
        with_system = ChatPromptTemplate([("system", "{system}"), ("human", "{user}")]) | chat
        alone = ChatPromptTemplate([("human", "{user}")]) | chat
        return lambda task: (
            chat.invoke(task.messages)
            if task.earlier
            else (with_system if task.system else alone).invoke({"system": task.system, "user": task.user})
        )

    def ask_litellm(self) -> Ask:
        import litellm

        where: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": self.url, "api_key": "none"}
        return lambda task: litellm.completion(messages=task.messages, **where)

    def ask_pydantic_ai_slim(self) -> Ask:
        from pydantic_ai import Agent
        from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

        def ask(task: Task) -> object:
            earlier: list[ModelMessage] = [
                ModelResponse([TextPart(one)]) if place % 2 else ModelRequest([UserPromptPart(one)])
                for place, one in enumerate(task.earlier)
            ]
            agent = Agent(self.pydantic_model(), instructions=task.system or None)
            return agent.run_sync(task.user, message_history=earlier or None)

        return ask

    def pydantic_model(self) -> Any:
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=self.url, api_key="none"))

    def ask_dspy(self) -> Ask:
        import dspy

        dspy.configure(lm=dspy.LM(f"openai/{MODEL}", api_base=self.url, api_key="none", cache=False))

        def ask(task: Task) -> object:
            signature = dspy.Signature("request -> response", task.system or None)
            if not task.earlier:
                return dspy.Predict(signature)(request=task.user)
            turns = [
                {"request": one, "response": two}
                for one, two in zip(task.earlier[::2], task.earlier[1::2], strict=True)
            ]
            signature = signature.prepend("history", dspy.InputField(), dspy.History)
            return dspy.Predict(signature)(request=task.user, history=dspy.History(messages=turns))

        return ask

    def ask_llama_index_llms_openai_like(self) -> Ask:
        from llama_index.core.llms import ChatMessage
        from llama_index.llms.openai_like import OpenAILike

        llm = OpenAILike(model=MODEL, api_base=self.url, api_key="none", is_chat_model=True, max_tokens=512)
        return lambda task: llm.chat([ChatMessage(**one) for one in task.messages])

    def record(self, task: Task, ways: Mapping[str, Way], *steps: str) -> None:
        """Run some ways; what follows "/" in a way's name is not the client's."""
        for name, way in ways.items():
            self.recorder.expect(name.partition("/")[0], task, *steps)
            attempt(name, way)

    def editors(self, task: Task) -> dict[str, Way]:
        """Bodies of the plugins of editors: Continue's with tokens of models, suffixes, and /v1/fim/completions."""
        import httpx
        from openai import OpenAI

        def posted(path: str, **body: Any) -> object:
            return httpx.post(f"{self.url}/{path}", json={"model": MODEL, "temperature": 0.01, **body})

        def suffixed() -> object:
            client = OpenAI(base_url=self.url, api_key="none")
            return client.completions.create(model=MODEL, prompt=task.before, suffix=task.behind, max_tokens=64)

        ways: dict[str, Way] = {}
        for shape in task.shapes:
            if shape == "suffix":
                ways["openai"] = suffixed
            elif shape == "fim":
                ways["httpx/fim"] = lambda: posted(
                    "fim/completions", prompt=task.before, suffix=task.behind, max_tokens=128
                )
            else:
                prompt = HOLES[shape].format(before=task.before, behind=task.behind)
                more = {"max_tokens": 4096, "stream": True, "stop": [*re.findall(r"<[^>\s]*>", HOLES[shape]), "\n\n"]}
                ways[f"httpx/{shape}"] = partial(posted, "completions", prompt=prompt, **more)
        return ways

    def ways(self, kind: type[BaseModel], system: str, user: str) -> dict[str, Way]:
        """One call for each client, each in its own way to get an object of a class."""

        def openai() -> object:
            from openai import OpenAI

            client = OpenAI(base_url=self.url, api_key="none")
            return client.chat.completions.parse(model=MODEL, messages=messages(system, user), response_format=kind)

        def responses() -> object:
            from openai import OpenAI

            client = OpenAI(base_url=self.url, api_key="none")
            return client.responses.parse(model=MODEL, input=messages(system, user), text_format=kind)

        def langchain() -> object:
            from langchain_openai import ChatOpenAI

            chat = ChatOpenAI(base_url=self.url, api_key="none", model=MODEL)
            return chat.with_structured_output(kind, method="function_calling").invoke(messages(system, user))

        def instructor() -> object:
            import instructor
            from openai import OpenAI

            client = instructor.from_openai(OpenAI(base_url=self.url, api_key="none"))
            return client.chat.completions.create(model=MODEL, messages=messages(system, user), response_model=kind)

        def pydantic_ai() -> object:
            from pydantic_ai import Agent

            return Agent(self.pydantic_model(), instructions=system or None, output_type=kind).run_sync(user)

        def agents() -> object:
            from agents import Agent, OpenAIChatCompletionsModel, Runner
            from openai import AsyncOpenAI

            model = OpenAIChatCompletionsModel(
                model=MODEL, openai_client=AsyncOpenAI(base_url=self.url, api_key="none")
            )
            return Runner.run_sync(Agent(name="o", instructions=system or None, model=model, output_type=kind), user)

        return {
            "openai": openai,
            "openai/responses": responses,
            "langchain-openai": langchain,
            "instructor": instructor,
            "pydantic-ai-slim": pydantic_ai,
            "openai-agents": agents,
        }

    def typed(self, kind: type[BaseModel], system: str, user: str) -> dict[str, Way]:
        """Clients that ask in words for an object of a class."""

        def dspy_() -> object:
            import dspy

            fields: dict[str, Any] = {"request": (str, dspy.InputField()), "response": (kind, dspy.OutputField())}
            return dspy.Predict(dspy.Signature(fields, system or None))(request=user)

        def llama_index() -> object:
            from llama_index.core.prompts import PromptTemplate
            from llama_index.llms.openai_like import OpenAILike

            llm = OpenAILike(model=MODEL, api_base=self.url, api_key="none", is_chat_model=True)
            template = PromptTemplate("\n\n".join(["{system}"] * bool(system) + ["{user}"]))
            return llm.structured_predict(kind, template, system=system, user=user)

        return {"dspy": dspy_, "llama-index-llms-openai-like": llama_index}

    def loops(self, task: Task) -> dict[str, Way]:
        """Loops of tools: calls, and the answer from their results."""
        system, tools = task.system, task.tools
        by_name = {tool.__name__: tool for tool in tools}
        asked: Any = replace(task, system="").messages if task.earlier else task.user

        def agents() -> object:
            from agents import Agent, OpenAIResponsesModel, Runner, function_tool
            from openai import AsyncOpenAI

            model = OpenAIResponsesModel(model=MODEL, openai_client=AsyncOpenAI(base_url=self.url, api_key="none"))
            held: Any = [function_tool(tool) for tool in tools]
            return Runner.run_sync(Agent(name="t", instructions=system or None, model=model, tools=held), asked)

        def pydantic_ai() -> object:
            from pydantic_ai import Agent

            return Agent(self.pydantic_model(), instructions=system or None, tools=tools).run_sync(task.user)

        def langchain() -> object:
            from langchain_core.messages import ToolMessage
            from langchain_openai import ChatOpenAI

            chat = ChatOpenAI(base_url=self.url, api_key="none", model=MODEL).bind_tools(list(tools))
            said: list[Any] = list(task.messages)
            for _ in range(5):
                reply = chat.invoke(said)
                if not reply.tool_calls:
                    break
                results = [
                    ToolMessage(by_name[call["name"]](**call["args"]), tool_call_id=call["id"])
                    for call in reply.tool_calls
                ]
                said += [reply, *results]
            return said

        def litellm_() -> object:
            import litellm

            where: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": self.url, "api_key": "none"}
            where["tools"] = [{"type": "function", "function": schema_of(tool)} for tool in tools]
            said: list[Any] = list(task.messages)
            for _ in range(5):
                reply = litellm.completion(messages=said, **where).choices[0].message
                if not reply.tool_calls:
                    break
                results = [
                    {"role": "tool", "tool_call_id": call.id, "content": by_name[call.function.name]("x")}
                    for call in reply.tool_calls
                ]
                said += [reply.model_dump(), *results]
            return said

        every = {"openai-agents": agents, "pydantic-ai-slim": pydantic_ai}
        return every | {"langchain-openai": langchain, "litellm": litellm_}

    def notations(self, task: Task) -> dict[str, Way]:
        """Clients whose calls of tools are text: code, ReAct's lines, dspy's fields."""
        return {
            "smolagents": lambda: self.smolagents(task),
            "dspy": lambda: self.react_dspy(task),
            "llama-index-llms-openai-like": lambda: self.react_llama_index(task),
        }

    def react_dspy(self, task: Task) -> object:
        import dspy

        agent = dspy.ReAct(dspy.Signature("request -> answer", task.system or None), tools=list(task.tools))
        return agent(request=task.user)

    def react_llama_index(self, task: Task) -> object:
        import asyncio

        from llama_index.core.agent.workflow import ReActAgent
        from llama_index.llms.openai_like import OpenAILike

        llm = OpenAILike(model=MODEL, api_base=self.url, api_key="none", is_chat_model=True)
        agent = ReActAgent(tools=list(task.tools), llm=llm, system_prompt=task.system or None, streaming=False)

        async def run() -> object:
            return await agent.run(task.user)

        return asyncio.run(run())

    def smolagents(self, task: Task) -> object:
        from smolagents import CodeAgent, OpenAIServerModel, Tool

        def held(tool: Callable[..., str]) -> Any:
            schema = schema_of(tool)
            fields = schema["parameters"]["properties"]
            inputs = {
                name: {"type": field.get("type", "string"), "description": f"the {name}"}
                | ({} if name in schema["parameters"]["required"] else {"nullable": True})
                for name, field in fields.items()
            }
            of_class: dict[str, Any] = {
                "name": tool.__name__,
                "description": tool.__doc__,
                "inputs": inputs,
                "output_type": "string",
            }
            of_class |= {"skip_forward_signature_validation": True, "forward": staticmethod(tool)}
            return type("Held", (Tool,), of_class)()

        model = OpenAIServerModel(model_id=MODEL, api_base=self.url, api_key="none")
        agent = CodeAgent(tools=[held(tool) for tool in task.tools], model=model, max_steps=2, verbosity_level=0)
        return agent.run(f"{task.system} {task.user}".strip())


def turned(ways: Mapping[str, Any], place: int, shifts: Iterable[int]) -> dict[str, Any]:
    """Some of the ways, others at each place."""
    names = list(ways)
    return {names[(place + shift) % len(names)]: ways[names[(place + shift) % len(names)]] for shift in shifts}


def attempt(name: str, way: Callable[[], object]) -> None:
    """Ask; a client that cannot read the canned answer has still sent its request."""
    try:
        way()
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error)[:120]}", flush=True)


def record_first(clients: Clients, tasks: list[Task]) -> None:
    """Schemas and loops of step_tasks.toml, with all clients that have them."""
    for number, (step, kind, system, user) in enumerate(SCHEMAS):
        clients.record(Task(step, f"{step} schema {number}"), clients.ways(kind, system, user), step)
    loops = [task for task in tasks if task.step == "tool_arguments"]
    for task in loops:
        clients.record(task, clients.loops(replace(task, tools=tuple(TOOLS))), "tool_arguments", "look_up")
    for task in loops[:4]:
        held = replace(task, tools=(search,))
        clients.record(task, {"smolagents": partial(clients.smolagents, held)}, "tool_arguments")


def record_blind(clients: Clients, tasks: list[Task]) -> None:
    """Schemas, loops and holes, three or four clients a task, in turn."""
    for place, task in enumerate(task for task in tasks if task.form is not None):
        assert task.form is not None
        given = task.form, task.system, task.user
        clients.record(task, turned(clients.ways(*given), place, (0, 2, 3)), task.step)
        clients.record(task, turned(clients.typed(*given), place, (0,)), task.step, "")
    for place, task in enumerate(task for task in tasks if task.tools):
        ways = clients.loops(task)
        if task.earlier:
            del ways["pydantic-ai-slim"]
        clients.record(task, turned(ways, place, (0, 1)), *task.steps)
        if task.step == "tool_arguments" and not task.earlier:
            clients.record(task, turned(clients.notations(task), place, (0,)), "tool_arguments", "")
    for task in tasks:
        clients.record(task, clients.editors(task), task.step)


def main() -> None:
    """Record all tasks with the clients that are there."""
    os.environ.update(OFFLINE)
    assert importlib.util.find_spec("openai"), "install the clients first"
    recorder = Recorder()
    server = serve(recorder)
    out, *named = map(Path, sys.argv[1:])
    first = Path(__file__).with_name("step_tasks.toml")
    tasks = read_tasks(named[0] if named else first)
    clients = Clients(f"http://127.0.0.1:{server.server_address[1]}/v1", recorder)
    plain = clients.plain()
    print("plain clients:", ", ".join(plain), flush=True)
    asked = [task for task in tasks if not (task.tools or task.form or task.shapes)]
    asked = [task for task in asked if named or task.step != "tool_arguments"]
    for place, task in enumerate(asked):
        for name, ask in turned(plain, place, (0, 2, 5)).items():
            clients.record(task, {name: partial(ask, task)}, task.step)
    (record_blind if named else record_first)(clients, tasks)
    server.shutdown()
    with gzip.GzipFile(out, "wb", mtime=0) as file:
        file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in recorder.rows).encode())
    print(len(recorder.rows), "rows", out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
