"""A model that is no model: it answers the real clients over HTTP on this machine.

It asks for one shell command, and ends its turn when it is told what came of it. What it was sent
is kept: the skills that a client lists, and what it says of the command.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}


class ScriptedModel:
    """A server that speaks both Anthropic's Messages and OpenAI's Responses, streamed."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.asked: list[dict[str, Any]] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                path = self.path.partition("?")[0]
                if path == "/v1/messages":
                    events = model.messages(body)
                elif path == "/v1/responses":
                    events = model.responses(body)
                else:
                    return self.send_error(404)
                model.asked.append(body)
                lines = (f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)
                data = "".join(lines).encode()
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                return None

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ScriptedModel:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def texts(self) -> str:
        """Return all text that was sent, as it would be read."""
        return "\n".join(text for body in self.asked for text in _strings(body))

    def messages(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Answer Claude Code."""
        message = {"id": "m", "type": "message", "role": "assistant", "model": body["model"],
                   "content": [], "stop_reason": None, "usage": USAGE}  # fmt: skip
        block: dict[str, Any]
        if "tool_result" in json.dumps(body["messages"]):
            stop, block = "end_turn", {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": "done"}
        else:
            stop, block = "tool_use", {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}
            words = json.dumps({"command": self.command, "description": "as told"})
            delta = {"type": "input_json_delta", "partial_json": words}
        yield {"type": "message_start", "message": message}
        yield {"type": "content_block_start", "index": 0, "content_block": block}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
        yield {"type": "content_block_stop", "index": 0}
        yield {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": USAGE}
        yield {"type": "message_stop"}

    def responses(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Answer Codex."""
        item: dict[str, Any]
        if "function_call_output" in json.dumps(body["input"]):
            content = [{"type": "output_text", "text": "done"}]
            item = {"type": "message", "id": "m", "role": "assistant", "content": content}
        else:
            words = json.dumps({"cmd": self.command})
            item = {"type": "function_call", "call_id": "c", "name": "exec_command",
                    "arguments": words}  # fmt: skip
        yield {"type": "response.created", "response": {"id": "r"}}
        yield {"type": "response.output_item.done", "item": item}
        yield {"type": "response.completed", "response": {"id": "r", "usage": USAGE}}


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)
