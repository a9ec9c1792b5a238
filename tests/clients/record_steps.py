"""Record what real clients send for tasks of each step type: `python tests/clients/record_steps.py recorded.jsonl.gz`.

Runs in an environment with the clients (openai, openai-agents, langchain-openai, litellm, instructor, pydantic-ai,
llama-index, smolagents, dspy; those that are missing are left out and named) against a server of its own on this
machine, which keeps each body and gives canned answers, calls of tools included, so that loops go on. A row is
{"step", "task", "client", "operation", "body"}; the label is of the task, which a person chose.
"""

# ruff: noqa: T201
from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import sys
import threading
import tomllib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENAI_API_KEY": "none",
    "HF_HUB_OFFLINE": "1",
    "DSPY_CACHEDIR": "/tmp/dspy-none",
}
OPERATIONS = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/completions": "completions"}
MODEL = "gpt-4o-mini"


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

    def expect(self, client: str, task: str, *steps: str) -> None:
        """The labels of the next requests; the last holds for all that follow."""
        self.client, self.task, self.steps = client, task, list(steps)

    def take(self, path: str, body: dict[str, Any]) -> str:
        """Keep a body; its label."""
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        row = {"step": step, "task": self.task, "client": f"{self.client} {version(self.client)}"}
        self.rows.append(row | {"operation": OPERATIONS[path], "body": body})
        return step


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


def answer(path: str, body: dict[str, Any], step: str) -> dict[str, Any]:
    """A canned answer of a surface."""
    call, usage = called(body, step), {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    if path.endswith("responses"):
        content = [{"type": "output_text", "text": text_of(body), "annotations": []}]
        item: dict[str, Any] = {"type": "message", "id": "m", "role": "assistant", "status": "completed"} | {
            "content": content
        }
        if call:
            item = {"type": "function_call", "id": "f", "call_id": "c1", "name": call[0], "status": "completed"}
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
            message |= {"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
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
            data = json.dumps(answer(self.path, body, recorder.take(self.path, body))).encode()
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


def get_weather(city: str) -> str:
    """Current weather of a city."""
    return "7 degrees, rain"


def find_items(query: str, limit: int = 5) -> str:
    """Search records of the workspace: stock, flights, pull requests, calendar."""
    return '[{"id": 31, "title": "56 cm frame", "state": "open", "on_time": true}]'


def do_action(target: str, details: str) -> str:
    """Change something: send, move, write, remind."""
    return "done"


TOOLS = [find_items, get_weather, do_action]


def messages(system: str, user: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}] * bool(system) + [{"role": "user", "content": user}]


def schema_of(tool: Callable[..., str]) -> dict[str, Any]:
    names = [name for name in tool.__annotations__ if name != "return"]
    fields = {name: {"type": "integer" if name == "limit" else "string"} for name in names}
    parameters = {"type": "object", "properties": fields, "required": [name for name in names if name != "limit"]}
    return {"name": tool.__name__, "description": tool.__doc__, "parameters": parameters}


Ask = Callable[[str, str], object]
Tasks = list[tuple[str, str, str, str]]


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

        def ask(system: str, user: str) -> object:
            turn[0] += 1
            if turn[0] % 3 == 0:
                return client.responses.create(model=MODEL, input=user, **({"instructions": system} if system else {}))
            if turn[0] % 7 == 0:
                return client.completions.create(model=MODEL, prompt=f"{system}\n\n{user}".strip(), max_tokens=400)
            more: dict[str, Any] = {"temperature": 0} if turn[0] % 2 else {"max_completion_tokens": 1024}
            return client.chat.completions.create(model=MODEL, messages=messages(system, user), **more)

        return ask

    def ask_openai_agents(self) -> Ask:
        from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
        from openai import AsyncOpenAI

        set_tracing_disabled(True)
        client, turn = AsyncOpenAI(base_url=self.url, api_key="none"), [0]

        def ask(system: str, user: str) -> object:
            turn[0] += 1
            kind = OpenAIChatCompletionsModel if turn[0] % 2 else OpenAIResponsesModel
            agent = Agent(name="one", instructions=system or None, model=kind(model=MODEL, openai_client=client))
            return Runner.run_sync(agent, user)

        return ask

    def ask_langchain_openai(self) -> Ask:
        from langchain_core.prompts import ChatPromptTemplate
        from langchain_openai import ChatOpenAI

        chat = ChatOpenAI(base_url=self.url, api_key="none", model=MODEL, temperature=0.3, max_tokens=800)
        with_system = ChatPromptTemplate([("system", "{system}"), ("human", "{user}")]) | chat
        alone = ChatPromptTemplate([("human", "{user}")]) | chat
        return lambda system, user: (with_system if system else alone).invoke({"system": system, "user": user})

    def ask_litellm(self) -> Ask:
        import litellm

        where: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": self.url, "api_key": "none"}
        return lambda system, user: litellm.completion(messages=messages(system, user), **where)

    def ask_pydantic_ai_slim(self) -> Ask:
        from pydantic_ai import Agent

        return lambda system, user: Agent(self.pydantic_model(), instructions=system or None).run_sync(user)

    def pydantic_model(self) -> Any:
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=self.url, api_key="none"))

    def ask_dspy(self) -> Ask:
        import dspy

        dspy.configure(lm=dspy.LM(f"openai/{MODEL}", api_base=self.url, api_key="none", cache=False))

        def ask(system: str, user: str) -> object:
            signature = dspy.Signature("request -> response", system or None)
            return dspy.Predict(signature)(request=user)

        return ask

    def ask_llama_index_llms_openai_like(self) -> Ask:
        from llama_index.core.llms import ChatMessage
        from llama_index.llms.openai_like import OpenAILike

        llm = OpenAILike(model=MODEL, api_base=self.url, api_key="none", is_chat_model=True, max_tokens=512)
        return lambda system, user: llm.chat([ChatMessage(**one) for one in messages(system, user)])

    def schemas(self) -> None:
        """Each client's own way to get an object of a class."""
        for number, (step, kind, system, user) in enumerate(SCHEMAS):
            ways = self.ways(kind, system, user)
            for name, way in ways.items():
                self.recorder.expect(name.partition("/")[0], f"{step} schema {number}", step)
                attempt(name, way)

    def ways(self, kind: type[BaseModel], system: str, user: str) -> dict[str, Callable[[], object]]:
        """One call for each client."""

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

    def loops(self, tasks: Tasks) -> None:
        """Loops of tools: a call, and the answer from its result."""
        for _, system, user, task in tasks:
            for name, way in self.loop_ways(system, user).items():
                self.recorder.expect(name, task, "tool_arguments", "look_up")
                attempt(name, way)
        for _, system, user, task in tasks[:4]:
            self.recorder.expect("smolagents", task, "tool_arguments")
            attempt("smolagents", lambda s=system, u=user: self.smolagents(s, u))

    def loop_ways(self, system: str, user: str) -> dict[str, Callable[[], object]]:
        def agents() -> object:
            from agents import Agent, OpenAIResponsesModel, Runner, function_tool
            from openai import AsyncOpenAI

            model = OpenAIResponsesModel(model=MODEL, openai_client=AsyncOpenAI(base_url=self.url, api_key="none"))
            tools = [function_tool(tool) for tool in TOOLS]
            return Runner.run_sync(Agent(name="t", instructions=system or None, model=model, tools=tools), user)

        def pydantic_ai() -> object:
            from pydantic_ai import Agent

            return Agent(self.pydantic_model(), instructions=system or None, tools=TOOLS).run_sync(user)

        def langchain() -> object:
            from langchain_core.messages import ToolMessage
            from langchain_openai import ChatOpenAI

            chat = ChatOpenAI(base_url=self.url, api_key="none", model=MODEL).bind_tools(TOOLS)
            said: list[Any] = list(messages(system, user))
            reply = chat.invoke(said)
            results = [ToolMessage(find_items("x"), tool_call_id=call["id"]) for call in reply.tool_calls]
            return chat.invoke([*said, reply, *results])

        def litellm_() -> object:
            import litellm

            where: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": self.url, "api_key": "none"}
            where["tools"] = [{"type": "function", "function": schema_of(tool)} for tool in TOOLS]
            said: list[Any] = list(messages(system, user))
            reply = litellm.completion(messages=said, **where).choices[0].message
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": find_items("x")} for call in reply.tool_calls
            ]
            return litellm.completion(messages=[*said, reply.model_dump(), *results], **where)

        return {
            "openai-agents": agents,
            "pydantic-ai-slim": pydantic_ai,
            "langchain-openai": langchain,
            "litellm": litellm_,
        }

    def smolagents(self, system: str, user: str) -> object:
        from smolagents import CodeAgent, OpenAIServerModel, tool

        @tool
        def search(query: str) -> str:
            """Search records.

            Args:
                query: what to look for
            """
            return "nothing"

        model = OpenAIServerModel(model_id=MODEL, api_base=self.url, api_key="none")
        return CodeAgent(tools=[search], model=model, max_steps=2, verbosity_level=0).run(f"{system} {user}".strip())


def attempt(name: str, way: Callable[[], object]) -> None:
    """Ask; a client that cannot read the canned answer has still sent its request."""
    try:
        way()
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error)[:120]}", flush=True)


def main() -> None:
    """Record all tasks with the clients that are there."""
    os.environ.update(OFFLINE)
    assert importlib.util.find_spec("openai"), "install the clients first"
    recorder = Recorder()
    server = serve(recorder)
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    table = tomllib.loads(Path(__file__).with_name("step_tasks.toml").read_text(encoding="utf-8"))
    tasks: Tasks = [
        (step, system, user, f"{step} {number}")
        for step, some in table.items()
        for number, (system, user) in enumerate(some)
    ]
    clients = Clients(url, recorder)
    plain = clients.plain()
    print("plain clients:", ", ".join(plain), flush=True)
    asked = [one for one in tasks if one[0] != "tool_arguments"]
    for place, (step, system, user, task) in enumerate(asked):
        names = list(plain)
        for name in [names[(place + shift) % len(names)] for shift in (0, 2, 5)][: min(3, len(names))]:
            recorder.expect(name, task, step)
            attempt(name, lambda ask=plain[name], s=system, u=user: ask(s, u))
    clients.schemas()
    clients.loops([one for one in tasks if one[0] == "tool_arguments"])
    server.shutdown()
    with gzip.GzipFile(sys.argv[1], "wb", mtime=0) as file:
        file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in recorder.rows).encode())
    print(len(recorder.rows), "rows", Path(sys.argv[1]).stat().st_size, "bytes")


if __name__ == "__main__":
    main()
