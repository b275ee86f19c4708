"""A small S3 on this machine, with weather: what a bucket far away may do, and on purpose.

    with in_process() as s3:                    # or `in_thread`; by hand: `python tests/s3_server.py --port 9100 --folder DIR`
        os.environ.update(s3.environment)
        Bucket(s3.url("prefix"))
        s3.weather(says={"SlowDown": 3}, verbs="PUT")

It knows PUT (`If-None-Match: *`), GET (ranges), HEAD, DELETE, POST `?delete` and ListObjectsV2 (prefix, start, continuation), path style,
in buckets of any name. It looks at no signature, but at the times of those in a header and of those in a URL, as S3 does. It keeps
objects in memory, and in files if it has a folder. Of six creates at once one wins; moto, which takes 85 MB, let two win.

`POST /_weather` replaces the weather (`Weather`, as JSON), and `GET /_counts` tells how many requests of each verb have come, and how many
answers of each code were given.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import math
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

SKEW_S = 900  # S3's bound on how far apart the clocks may be
PAGE = 1_000
STATUSES = {
    "AccessDenied": 403,
    "AuthorizationHeaderMalformed": 400,
    "ConditionalRequestConflict": 409,
    "ExpiredToken": 400,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "InvalidRange": 416,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NotImplemented": 501,
    "PermanentRedirect": 301,
    "PreconditionFailed": 412,
    "RequestTimeTooSkewed": 403,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "TooManyRequests": 429,
}


@dataclass
class Weather:
    """What befalls the requests whose verb is among `verbs` and whose bucket and key have `only` in them.

    A whole number befalls as many of the next ones, `True` all of them, and a fraction that share of them, by a die with a seed.

    Attributes:
        put_ms, get_ms: how long a request takes: the median of a log-normal whose p99 is four times that.
        says: chances by code: the answer is that error, and there is no effect.
        lost_before, lost_after: the connection is closed before the request takes effect, or after it.
        late: the connection is closed at once, and the request takes effect `late_s` later.
        stall: the request waits for `stall_s`, then goes on, whether or not anybody waits for its answer.
        down: "closes" every connection, or "hangs" until there is other weather.
        stale_list: lists tell what there was when this weather began.
        overwrites: `If-None-Match` is not looked at.
        clock_s: by how much the server's clock is ahead.
    """

    put_ms: float = 0
    get_ms: float = 0
    says: dict[str, float] = field(default_factory=dict)
    lost_before: float = 0
    lost_after: float = 0
    late: float = 0
    late_s: float = 0.3
    stall: float = 0
    stall_s: float = 0.3
    down: str = ""
    stale_list: bool = False
    overwrites: bool = False
    clock_s: float = 0
    verbs: str = "PUT GET HEAD DELETE POST LIST"
    only: str = ""
    seed: int = 7


class Held(NamedTuple):
    """An object."""

    body: bytes
    tag: str
    modified_s: float


class Asked(NamedTuple):
    """A request: its verb (LIST for a GET of a bucket), bucket, key, and the rest."""

    verb: str
    bucket: str
    key: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return f"{self.bucket}/{self.key}"


class Told(NamedTuple):
    """An answer."""

    status: int
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""


def xml(status: int, inner: str) -> Told:
    return Told(status, {"Content-Type": "application/xml"}, f'<?xml version="1.0" encoding="UTF-8"?>{inner}'.encode())


def error(code: str, words: str = "") -> Told:
    return xml(STATUSES[code], f"<Error><Code>{code}</Code><Message>{escape(words or code)}</Message></Error>")


class Objects:
    """What is kept: by bucket and key, in memory, and in a folder if there is one."""

    def __init__(self, folder: Path | None) -> None:
        self.held: dict[str, Held] = {}
        self.folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for each in folder.glob("*.object"):
                self._hold(unquote(each.name.removesuffix(".object")), each.read_bytes(), each.stat().st_mtime)

    def put(self, path: str, body: bytes, at_s: float) -> Held:
        if self.folder is not None:
            new = self.folder / "new"
            new.write_bytes(body)
            new.replace(self._file(path))
        return self._hold(path, body, at_s)

    def delete(self, path: str) -> None:
        if self.held.pop(path, None) is not None and self.folder is not None:
            self._file(path).unlink()

    def _file(self, path: str) -> Path:
        return Path(self.folder or "", f"{quote(path, safe='')}.object")

    def _hold(self, path: str, body: bytes, at_s: float) -> Held:
        self.held[path] = Held(body, f'"{blake2b(body, digest_size=16).hexdigest()}"', at_s)
        return self.held[path]


class Server:
    """The objects, the weather, and the connections."""

    def __init__(self, folder: Path | None = None) -> None:
        self.objects = Objects(folder)
        self.counts: Counter[str] = Counter()
        self.change(Weather())
        self.later: set[asyncio.Task[Told]] = set()
        self.delayed_now = 0

    def change(self, weather: Weather) -> None:
        self.weather, self.die = weather, random.Random(weather.seed)
        self.listed = dict(self.objects.held) if weather.stale_list else self.objects.held
        self.changed = asyncio.Event()

    def now_s(self) -> float:
        return time.time() + self.weather.clock_s

    # ---------------------------------------------------------------- connections

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (told := await self.told(reader)) is not None:
                writer.write(told)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def told(self, reader: asyncio.StreamReader) -> bytes | None:
        """The answer to the next request of a connection. None closes it."""
        asked = await read(reader)
        answer = await self.control(asked) if asked.bucket.startswith("_") else await self.weathered(asked)
        if answer is None:
            return None
        headers = {"Content-Length": str(len(answer.body)), **answer.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        body = b"" if asked.verb == "HEAD" else answer.body
        return f"HTTP/1.1 {answer.status} {answer.status}\r\n{head}\r\n".encode() + body

    async def control(self, asked: Asked) -> Told:
        while asked.bucket == "_settled" and self.delayed_now:
            await asyncio.sleep(0.01)
        if asked.verb == "POST":
            changed = self.changed
            self.change(Weather(**json.loads(asked.body)))
            changed.set()
        counts = {**self.counts, "objects": len(self.objects.held)}
        return Told(200, {"Content-Type": "application/json"}, json.dumps(counts).encode())

    async def weathered(self, asked: Asked) -> Told | None:
        """The answer to a request as the weather has it; None if there is none."""
        weather = self.weather
        self.counts[asked.verb] += 1
        if asked.verb not in weather.verbs.split() or weather.only not in asked.path:
            return self.answer(asked)
        if weather.down:
            if weather.down == "hangs":
                await self.changed.wait()
            return None
        if self.falls("lost_before"):
            return None
        if self.falls("late"):
            self.later.add(task := asyncio.create_task(self.delayed(weather.late_s, asked)))
            task.add_done_callback(self.later.discard)
            return None
        code = next((code for code in weather.says if self.falls(code, weather.says)), None)
        if code is not None:
            self.counts[code] += 1
            return error(code)
        is_lost, is_stalled = self.falls("lost_after"), self.falls("stall")
        told = await self.delayed(self.delay_s(asked) + is_stalled * weather.stall_s, asked)
        return None if is_lost else told

    def falls(self, what: str, chances: dict[str, float] | None = None) -> bool:
        """Whether it befalls this request."""
        chances = vars(self.weather) if chances is None else chances
        chance = chances[what]
        if chance is True or not chance:
            return chance is True
        if isinstance(chance, int):
            chances[what] = chance - 1
            return True
        return self.die.random() < chance

    def delay_s(self, asked: Asked) -> float:
        median_ms = self.weather.put_ms if asked.verb == "PUT" else self.weather.get_ms
        return median_ms and median_ms / 1000 * math.exp(self.die.gauss(0, math.log(4) / 2.326))

    async def delayed(self, pause_s: float, asked: Asked) -> Told:
        if pause_s:
            self.delayed_now += 1
            try:
                await asyncio.sleep(pause_s)
            finally:
                self.delayed_now -= 1
        return self.answer(asked)

    # ---------------------------------------------------------------- what S3 does

    def answer(self, asked: Asked) -> Told:
        told = self.refusal(asked) or self.effect(asked)
        if told.status >= 400:
            code = re.search(rb"<Code>(\w+)", told.body)
            self.counts[code[1].decode() if code else str(told.status)] += 1
        return told

    def refusal(self, asked: Asked) -> Told | None:
        """Of a signature's time."""
        query, now_s = asked.query, self.now_s()
        at_s = moment(query.get("X-Amz-Date", [""])[0] or asked.headers.get("x-amz-date", ""))
        if at_s is None:
            return None
        if "X-Amz-Expires" in query:
            return (
                error("AccessDenied", "Request has expired") if now_s > at_s + int(query["X-Amz-Expires"][0]) else None
            )
        far = abs(now_s - at_s) > SKEW_S
        words = "The difference between the request time and the current time is too large."
        return error("RequestTimeTooSkewed", words) if far else None

    def effect(self, asked: Asked) -> Told:
        match asked.verb:
            case "PUT":
                return self.put(asked)
            case "GET" | "HEAD":
                return self.get(asked)
            case "LIST":
                return self.list(asked)
            case "DELETE":
                self.objects.delete(asked.path)
                return Told(204)
            case "POST" if "delete" in asked.query:
                keys = re.findall(r"<Key>(.*?)</Key>", asked.body.decode(), re.DOTALL)
                for key in keys:
                    self.objects.delete(f"{asked.bucket}/{unescape(key)}")
                gone = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
                return xml(200, f"<DeleteResult>{gone}</DeleteResult>")
        return error("NotImplemented")

    def put(self, asked: Asked) -> Told:
        is_new = asked.path not in self.objects.held
        if asked.headers.get("if-none-match") == "*" and not is_new and not self.weather.overwrites:
            return error("PreconditionFailed")
        self.counts["bytes"] += len(asked.body)
        return Told(200, {"ETag": self.objects.put(asked.path, asked.body, self.now_s()).tag})

    def get(self, asked: Asked) -> Told:
        held = self.objects.held.get(asked.path)
        if held is None:
            return error("NoSuchKey")
        body, tag, modified_s = held
        headers = {"ETag": tag, "Last-Modified": formatdate(modified_s, usegmt=True), "Accept-Ranges": "bytes"}
        if (wanted := asked.headers.get("range")) is None:
            return Told(200, headers, body)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(body) - int(last))
        end = min(int(last), len(body) - 1) if first and last else len(body) - 1
        if start > end:
            return error("InvalidRange")
        return Told(206, {**headers, "Content-Range": f"bytes {start}-{end}/{len(body)}"}, body[start : end + 1])

    def list(self, asked: Asked) -> Told:
        given = {name: values[0] for name, values in asked.query.items()}
        after = max(given.get("start-after", ""), given.get("continuation-token", ""))
        prefix, page = asked.bucket + "/", int(given.get("max-keys", PAGE))
        paths = (path for path in self.listed if path.startswith(prefix + given.get("prefix", "")))
        keys = sorted(key for path in paths if (key := path.removeprefix(prefix)) > after)
        items = "".join(self._item(key, self.listed[prefix + key]) for key in keys[:page])
        more = len(keys) > page
        token = f"<NextContinuationToken>{escape(keys[page - 1])}</NextContinuationToken>" if more else ""
        count = f"<KeyCount>{len(keys[:page])}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>"
        return xml(200, f"<ListBucketResult>{count}{items}{token}</ListBucketResult>")

    def _item(self, key: str, held: Held) -> str:
        modified = datetime.fromtimestamp(held.modified_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        size = f"<Size>{len(held.body)}</Size><LastModified>{modified}</LastModified>"
        return f"<Contents><Key>{escape(key)}</Key>{size}<ETag>{escape(held.tag)}</ETag></Contents>"


def moment(text: str) -> float | None:
    return datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp() if text else None


async def read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    verb, target, _ = head[0].split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    url = urlsplit(target)
    bucket, _, key = unquote(url.path)[1:].partition("/")
    is_list = verb == "GET" and not key
    query = parse_qs(url.query, keep_blank_values=True)
    return Asked("LIST" if is_list else verb, bucket, key, query, headers, body)


async def listen(server: Server, host: str, port: int) -> tuple[asyncio.Server, int]:
    listening = await asyncio.start_server(server.serve, host, port, limit=1 << 20, backlog=512)
    return listening, listening.sockets[0].getsockname()[1]


# ---------------------------------------------------------------- for those who use it


class S3:
    """A server that runs: where, and how its weather is changed.

    Attributes:
        environment: what a program needs to find it.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def url(self, prefix: str, bucket: str = "bucket") -> str:
        return f"s3://{bucket}/{prefix}"

    def weather(self, **given: Any) -> None:
        """Replace it; without arguments by fine weather."""
        self._asked("POST", "/_weather", json.dumps(vars(Weather(**given))))

    def counts(self) -> Counter[str]:
        return Counter(json.loads(self._asked("GET", "/_counts")))

    def settle(self) -> None:
        """Wait until none waits in its weather whose answer would be counted later."""
        self._asked("GET", "/_settled")

    def _asked(self, verb: str, path: str, body: str | None = None) -> bytes:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        connection.request(verb, path, body)
        answer = connection.getresponse().read()
        connection.close()
        return answer


@contextmanager
def in_process(folder: Path | None = None, port: int = 0, host: str = "127.0.0.1") -> Iterator[S3]:
    """A server in a process of its own. What it has in a folder outlives it."""
    command = [sys.executable, __file__, "--host", host, "--port", str(port)]
    command += ["--folder", str(folder)] if folder else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield S3(host, int(process.stdout.readline()))
        finally:
            process.kill()


@contextmanager
def in_thread(folder: Path | None = None, port: int = 0, host: str = "127.0.0.1") -> Iterator[S3]:
    """A server in a thread of this process."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    listening, found = asyncio.run_coroutine_threadsafe(listen(Server(folder), host, port), loop).result()
    try:
        yield S3(host, found)
    finally:
        asyncio.run_coroutine_threadsafe(closed(listening), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def closed(listening: asyncio.Server) -> None:
    listening.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0.01)  # in which what was aborted is closed


async def main() -> None:
    parser = argparse.ArgumentParser(description="A small S3 with weather, for tests.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9100)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    listening, port = await listen(Server(given.folder), given.host, given.port)
    print(port, flush=True)  # noqa: T201 - whoever has started it reads where it listens
    await listening.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
