"""An MCP server on standard input and output: a notebook with two tools."""

from __future__ import annotations

from mcp.server import MCPServer

server = MCPServer("notes")
NOTES: list[str] = []


@server.tool()
def add_note(topic: str, importance: int) -> str:
    """Write a note."""
    NOTES.append(f"{topic} ({importance})")
    return f"note {len(NOTES)}"


@server.tool()
def count_notes(least: int) -> int:
    """How many notes there are, and at least this number."""
    return max(least, len(NOTES))


if __name__ == "__main__":
    server.run("stdio")
