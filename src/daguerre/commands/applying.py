"""The command that merges changes into files: a snippet into one, a diff or blocks into one or several."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from daguerre.commands.files import STDIN, FileChange, InputText
from daguerre.commands.loading import Loading, takes_groups
from daguerre.editing.changes import FileChanges, applied, is_changes, read_changes
from daguerre.editing.merging import merged
from daguerre.editing.snippets import merged_exactly
from daguerre.errors import InputError


@takes_groups
def apply(
    file: Annotated[
        str, typer.Argument(help="The file; or alone, a unified diff or blocks that name files of this folder.")
    ],
    snippet: Annotated[
        str | None,
        typer.Argument(help="What goes into it: `# ... existing code ...` for what stays, a diff, or blocks."),
    ] = None,
    *,
    loading: Loading,
    change: FileChange,
) -> None:
    """Merge a file with a snippet, a unified diff or search-and-replace blocks; `-` reads either from standard input.

    No model is needed where the lines alone say where each goes; else --model decides, and can damage nothing.
    """
    if snippet is None:
        _apply_all(InputText.read(file).text, change)
        return
    if file == snippet == STDIN:
        raise InputError("standard input can be the file or the snippet, not both: give one of them as a file")
    change.check(file, False, {})
    source, new = InputText.read(file), InputText.read(snippet).text
    text = _changed(source, new) if is_changes(new) else _merged(source, new, loading)
    if change.wanted:
        change.apply(source, text)
    else:
        sys.stdout.buffer.write(text.encode("utf-8"))


def _changed(source: InputText, new: str) -> str:
    found = read_changes(new)
    if len(found) != 1:
        names = ", ".join(one.path or "(no name)" for one in found)
        raise InputError(f"the changes are of {len(found)} files ({names:.200}): give them alone, without a file")
    return applied(source.text, found[0].changes)


def _merged(source: InputText, new: str, loading: Loading) -> str:
    exact = merged_exactly(source.text, new)
    if exact is not None:
        return exact
    model = loading.load()
    if "apply" not in model.tasks and getattr(model.tokenizer, "chat_template", None) is None:
        raise InputError(
            "the snippet's lines leave open where they go, and this model takes no instructions: begin and end each "
            "part with a line that the file has once, or name an instruct model with --model"
        )
    return merged(model, source.text, new)


def _apply_all(text: str, change: FileChange) -> None:
    """Apply changes that name their files, all or none; print the difference, or write the files."""
    if change.backup and not change.write:
        raise InputError("--backup is for --write: give both or neither")
    made = [(one, source, applied(source.text, one.changes)) for one, source in _sources(read_changes(text))]
    for one, source, new in made:
        if one.deleted and new:
            raise InputError(f"{source.path} is to be deleted, but has other lines than the change: nothing is written")
    if change.diff or not change.write:
        for _, source, new in made:
            sys.stdout.buffer.write(source.diff(new).encode("utf-8"))
    for one, source, new in made if change.write else ():
        assert source.path is not None
        if one.deleted:
            source.path.unlink()
        elif one.created:
            source.path.parent.mkdir(parents=True, exist_ok=True)
            with source.path.open("x", encoding="utf-8", newline="") as written:
                written.write(new)
        else:
            source.write(new, change.backup)
        typer.echo(f"daguerre: {'deleted' if one.deleted else 'wrote'} {source.path}", err=True)


def _sources(found: Sequence[FileChanges]) -> list[tuple[FileChanges, InputText]]:
    """The files that are changed, as they are. InputError for a name that leads out of the folder, for a file that is
    not there, and for a new one that is.
    """
    out, here = list[tuple[FileChanges, InputText]](), Path.cwd().resolve()
    for one in found:
        if not one.path:
            raise InputError("the changes name no file: give the file first, and then the changes")
        path = Path(one.path)
        if path.is_absolute() or not path.resolve().is_relative_to(here):
            raise InputError(f"{one.path} is not in this folder: run it where the files are")
        if one.created and path.exists() and path.stat().st_size:
            raise InputError(f"{one.path} is there already, and the change makes it: nothing is written")
        out.append((one, InputText(path, "") if one.created and not path.exists() else InputText.read(one.path)))
    return out
