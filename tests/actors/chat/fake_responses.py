"""One answer of OpenAI's responses API: a thought, a text, and a call."""

from __future__ import annotations

import itertools
import json
from typing import Any

_numbers = itertools.count()


def event(kind: str, **fields: Any) -> dict[str, Any]:
    """An event of the stream."""
    return {"type": kind, "sequence_number": next(_numbers), **fields}


def response(status: str, **fields: Any) -> dict[str, Any]:
    """The response that some events bear."""
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5", "status": status}
    return {**head, "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], **fields}


def named(*events: dict[str, Any]) -> bytes:
    """The events as they travel."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (each["type"].encode(), json.dumps(each).encode()) for each in events)


SUMMARY = {"type": "summary_text", "text": "thinking"}
REASONING = {"id": "rs_1", "type": "reasoning", "summary": []}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
CALL = {
    "id": "fc_1",
    "type": "function_call",
    "call_id": "call_1",
    "name": "weather",
    "arguments": "",
    "status": "in_progress",
}
ARGUMENTS = '{"city":"Ulm"}'
WORDS = [{"type": "output_text", "text": "Hello", "annotations": []}]
_at = {"output_index": 1, "content_index": 0, "item_id": "msg_1", "logprobs": []}

ANSWER = [
    event("response.created", response=response("in_progress")),
    event("response.output_item.added", output_index=0, item=REASONING),
    event("response.reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta="thinking"),
    event(
        "response.output_item.done",
        output_index=0,
        item={**REASONING, "summary": [SUMMARY], "encrypted_content": "ENC"},
    ),
    event("response.output_item.added", output_index=1, item=MESSAGE),
    event("response.output_text.delta", delta="Hel", **_at),
    event("response.output_text.delta", delta="lo", **_at),
    event("response.output_item.done", output_index=1, item={**MESSAGE, "status": "completed", "content": WORDS}),
    event("response.output_item.added", output_index=2, item=CALL),
    event("response.function_call_arguments.delta", item_id="fc_1", output_index=2, delta=ARGUMENTS[:5]),
    event("response.function_call_arguments.delta", item_id="fc_1", output_index=2, delta=ARGUMENTS[5:]),
    event("response.function_call_arguments.done", item_id="fc_1", output_index=2, name="weather", arguments=ARGUMENTS),
    event("response.output_item.done", output_index=2, item={**CALL, "arguments": ARGUMENTS, "status": "completed"}),
]
_usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "input_tokens_details": {"cached_tokens": 0},
          "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
COMPLETED = event("response.completed", response=response("completed", usage=_usage))
INCOMPLETE = event(
    "response.incomplete", response=response("incomplete", incomplete_details={"reason": "max_output_tokens"})
)
FAILED = event("response.failed", response=response("failed", error={"code": "server_error", "message": "oops"}))
