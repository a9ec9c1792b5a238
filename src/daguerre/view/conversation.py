"""A conversation in the terminal: messages, commands that begin with a slash, and answers that sharpen as they come."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from daguerre.decoding.defaults import with_sampling
from daguerre.decoding.effort import EFFORTS, effort_options
from daguerre.decoding.request import CALLS, Decode
from daguerre.decoding.result import Result, StreamEvent
from daguerre.errors import DaguerreError, InputError, unknown
from daguerre.files import atomic_write
from daguerre.model import CHAT_TOKENS, Model

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
LEAVE, SAYING = ("/bye", "/exit"), ("help", "show", "regenerate")
ENDS = {
    "length": "cut at max_tokens: /set max_tokens 1024 lets answers be longer",
    "timeout": "cut by the timeout",
}
"""Why an answer is not whole."""
FENCE, MORE = '"""', "\\"
HELP = f"""/help           this text
/effort WORD    how many forwards an answer may take: {", ".join(EFFORTS)}
/system TEXT    what the model is told before the conversation; without a text, nothing
/set NAME VALUE an option of decoding, such as: /set temperature .2; without a value, what it was at first
/show           the options that hold, the system message and how long the conversation is
/regenerate     answer the last question again
/undo           take the last question and its answer back
/clear          begin again
/save FILE      write the conversation as JSON
/load FILE      read one
/bye            leave, as /exit and Ctrl-D do
A line that ends with {MORE} goes on in the next one; {FENCE} begins and ends a text of several lines.
Ctrl-C stops an answer; what was written of it stays."""

Message = dict[str, str]


class ChatSession:
    """The messages so far, and how they are answered. `options` are those of `Model.stream`."""

    def __init__(self, model: Model, effort: str = "medium", system: str | None = None, **options: Any) -> None:
        self.model, self.options, self._first = model, dict(options), dict(options)
        self.messages: list[Message] = []
        self._num_answers = 0
        self.system(system or "")
        self.set_effort(effort)
        model.chat_prompt([*self.messages, {"role": "user", "content": "hello"}])  # says now what it cannot do

    def set_effort(self, effort: str) -> None:
        """Choose one of EFFORTS."""
        self._of_effort = effort_options(effort, self.model.config, self.model.defaults, self.options)
        self.effort = effort

    def system(self, text: str) -> None:
        """Put a system message before all others, in place of an earlier one; an empty text removes it."""
        rest = [message for message in self.messages if message["role"] != "system"]
        self.messages = ([{"role": "system", "content": text}] if text else []) + rest

    def answer(self, question: str) -> Iterator[StreamEvent]:
        """Ask, and stream the answer; both are kept, the answer as far as it was written when this is closed. Each
        answer is drawn with a seed of its own: with a `seed` among the options, it and those that follow it; else
        random ones.
        """
        asked = {"role": "user", "content": question}
        prompt = self.model.chat_prompt([*self.messages, asked])
        options, written = self.holding, ""
        drawn = secrets.randbits(63) if options.get("seed") is None else options["seed"] + self._num_answers
        options["seed"] = drawn % 2**64
        self._num_answers += 1
        try:
            for event in self.model.stream(prompt, **options):
                written = event.committed
                yield event
        finally:
            self.messages += [asked, {"role": "assistant", "content": written}]

    @property
    def holding(self) -> dict[str, Any]:
        """The options of an answer."""
        asked = {"max_tokens": CHAT_TOKENS, **self._of_effort, **self.options}
        return with_sampling(asked, self.model.chat_sampling)

    def set(self, name: str, text: str) -> None:
        """Give an option another value, written as in JSON or Python; without one, what it had at first."""
        options, value = dict(self.options), _value(text)
        options.pop(name, None)
        if text:
            options[name] = value
        elif name in self._first:
            options[name] = self._first[name]
        Decode.of(None, **{key: held for key, held in options.items() if key not in CALLS})
        of_effort = effort_options(self.effort, self.model.config, self.model.defaults, options)
        self.options, self._of_effort = options, of_effort

    def take_question(self) -> str:
        """The last question, which is taken back."""
        questions = [message["content"] for message in self.messages if message["role"] == "user"]
        self.undo()
        return questions[-1]

    def undo(self) -> None:
        """Take back the last question and its answer."""
        places = [place for place, message in enumerate(self.messages) if message["role"] == "user"]
        if not places:
            raise InputError("there is no question to take back")
        self.messages = self.messages[: places[-1]]

    def clear(self) -> None:
        """Forget all but the system message."""
        self.messages = [message for message in self.messages if message["role"] == "system"]

    def save(self, path: Path) -> None:
        """Write the messages as JSON, atomically."""
        content = json.dumps({"messages": self.messages}, ensure_ascii=False, indent=2) + "\n"
        try:
            with atomic_write(path) as file:
                file.write(content.encode())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cannot write {str(path)!r} ({reason}): check the path") from None

    def load(self, path: Path) -> None:
        """Read messages that `save` wrote."""
        try:
            messages = json.loads(path.read_text(encoding="utf-8"))["messages"]
            self.messages = [{"role": str(one["role"]), "content": str(one["content"])} for one in messages]
        except OSError as error:
            raise InputError(f"cannot read {path} ({error.strerror or error}): check the path") from None
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path} is not a conversation that /save wrote: give another file") from None


def _value(text: str) -> Any:
    """What is written: a number, true or false, JSON, or else the text itself."""
    try:
        return json.loads(re.sub(r"^(-?)\.", r"\g<1>0.", text))
    except ValueError:
        return {"True": True, "False": False}.get(text, text)


class Terminal:
    """Reads lines, obeys commands and shows answers.

    read  gives a line for a prompt, as `input` does; raises EOFError at the end
    """

    def __init__(self, conversation: ChatSession, console: Console, read: Callable[[str], str]) -> None:
        self._talk, self._console, self._read = conversation, console, read

    def run(self) -> None:
        """Until the end of the input, or /bye."""
        by = "as its publisher recommends" if self._talk.model.recommends_sampling else "by default"
        self._console.print(f"answers are drawn {by}: {self._sampling()}; /help", style="dim", highlight=False)
        while (text := self._next()) is not None:
            try:
                if text.startswith("/") and "/" not in text[1:].partition(" ")[0]:  # or a path begins the question
                    self._obey(text)
                elif text.strip():
                    self._answer(text)
            except DaguerreError as error:
                self._console.print(f"{error}", style="red", markup=False, highlight=False)

    def _next(self) -> str | None:
        """The next text, of one line or several; None at the end."""
        try:
            lines = [self._read("> ")]
            if lines[0].strip() in LEAVE:
                return None
            if lines[0].startswith(FENCE):
                while not lines[-1].endswith(FENCE) or (len(lines) == 1 and len(lines[0]) < 2 * len(FENCE)):
                    lines.append(self._read("  "))
                return "\n".join(lines)[len(FENCE) : -len(FENCE)].strip("\n")
            while lines[-1].endswith(MORE):
                lines[-1] = lines[-1][: -len(MORE)]
                lines.append(self._read("  "))
            return "\n".join(lines)
        except (EOFError, KeyboardInterrupt):
            self._console.print()
            return None

    def _obey(self, line: str) -> None:
        name, _, rest = line[1:].partition(" ")
        rest = rest.strip()
        commands: Mapping[str, Callable[[], object]] = {
            "help": lambda: self._console.print(HELP, markup=False, highlight=False),
            "effort": lambda: self._talk.set_effort(rest),
            "system": lambda: self._talk.system(rest),
            "set": lambda: self._set(rest),
            "show": self._show,
            "regenerate": lambda: self._answer(self._talk.take_question()),
            "undo": self._talk.undo,
            "clear": self._talk.clear,
            "save": lambda: self._talk.save(self._file(rest)),
            "load": lambda: self._talk.load(self._file(rest)),
        }
        if name not in commands:
            raise unknown("command", f"/{name}", [*(f"/{known}" for known in commands), *LEAVE])
        commands[name]()
        if name not in SAYING:
            self._console.print("done", style="dim")

    def _set(self, rest: str) -> None:
        name, _, text = rest.partition(" ")
        if not name:
            raise InputError("name an option and its value, such as /set temperature .2")
        self._talk.set(name.replace("-", "_"), text.strip())

    def _sampling(self) -> str:
        """How answers are drawn, in words."""
        held = self._talk.holding
        if not held.get("temperature"):
            return "temperature 0, the likeliest"
        return ", ".join(f"{name} {held[name]:g}" for name in SAMPLING if held.get(name) is not None)

    def _show(self) -> None:
        talk, system = self._talk, [one["content"] for one in self._talk.messages if one["role"] == "system"]
        others = {name: value for name, value in talk.holding.items() if name not in SAMPLING}
        num = len(talk.messages) - len(system)
        tokens = len(talk.model.chat_prompt([*talk.messages, {"role": "user", "content": ""}]))
        lines = [self._sampling(), *(f"{name} {value}" for name, value in others.items()), f"effort {talk.effort}"]
        lines += [f"system: {text}" for text in system]
        lines += [f"{num} messages, {tokens} tokens of {talk.model.config.max_positions}"]
        self._console.print("\n".join(lines), markup=False, highlight=False)

    def _file(self, name: str) -> Path:
        if not name:
            raise InputError("name a file, such as /save talk.json")
        return Path(name).expanduser()

    def _answer(self, question: str) -> None:
        events = self._talk.answer(question)
        try:
            result = self._draw(events) if self._console.is_terminal else self._print(events)
        except KeyboardInterrupt:
            self._console.print("\n(stopped)", style="dim")
            return
        finally:
            events.close()  # type: ignore[attr-defined]  # a generator
        usage = result.usage
        rate = f"{usage.tokens_per_forward:.2f} a forward, {usage.seconds:.1f} s"
        end = f"; {ENDS[result.finish_reason]}" if result.finish_reason in ENDS else ""
        end = "; it repeated itself and was ended: /set stop_loops false writes on" if result.looped else end
        self._console.print(f"({usage.completion_tokens} tokens, {rate}{end})", style="dim", highlight=False)

    def _print(self, events: Iterator[StreamEvent]) -> Result:
        """Text that cannot change any more, as it comes."""
        shown, last = "", None
        for event in events:
            self._console.print(event.committed[len(shown) :], end="", markup=False, highlight=False, soft_wrap=True)
            shown, last = event.committed, event
        self._console.print()
        assert last is not None and last.result is not None
        return last.result

    def _draw(self, events: Iterator[StreamEvent]) -> Result:
        """The whole draft, drawn in place, dim where it can still change."""
        last = None
        with Live(console=self._console, refresh_per_second=20, vertical_overflow="visible") as screen:
            for event in events:
                draft = event.text[len(event.committed) :] if event.text.startswith(event.committed) else ""
                screen.update(Text(event.committed).append(draft, style="dim"))
                last = event
        assert last is not None and last.result is not None
        return last.result
