"""A local hub: enough of its HTTP interface for the real client library, including failures."""

import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "c8d24a3f4adaeef46881b450e1bf7d1005203bd7"


@dataclass
class Hub:
    """The state of the server.

    repos: name -> folder; the name of a data set begins with "datasets/".
    gated, drops, sizes: failures to simulate.
    """

    repos: dict[str, Path]
    gated: set[str] = field(default_factory=set)
    # after how many bytes of a file the connection drops, one entry per request
    drops: dict[str, list[int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # file sizes to report
    commit: str = COMMIT  # of the branch main
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, range
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        if path.startswith("/api/"):
            kind = "tree" if "/tree/" in path else "info"
            name, _, rest = path.removeprefix("/api/").partition(
                "/tree/" if kind == "tree" else "/revision/"
            )
            name, revision = name.removeprefix("models/"), rest or "main"
        else:
            name, _, rest = path.lstrip("/").partition("/resolve/")
            revision, _, file = rest.partition("/")
            kind = "file"
        folder = self.hub.repos.get(name)
        if folder is None:
            return self.refuse(401, "RepoNotFound", "Invalid username or password.")
        commit = COMMIT if revision in ("v1", COMMIT) else self.hub.commit
        if revision not in ("main", "v1", COMMIT, self.hub.commit):
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if kind == "file" and name in self.hub.gated:
            return self.refuse(403, "GatedRepo", f"Access to model {name} is restricted")
        if kind == "info":
            files = [{"rfilename": entry["path"]} for entry in self.entries(folder)]
            return self.send(
                200,
                json.dumps(
                    {"id": name, "modelId": name, "sha": commit, "siblings": files}
                ).encode(),
                body,
            )
        if kind == "tree":
            return self.send(200, json.dumps(self.entries(folder)).encode(), body)
        if not (folder / file).is_file():
            return self.refuse(404, "EntryNotFound", "Entry not found")
        return self.file(folder / file, commit, body)

    def entries(self, folder):
        return [self.entry(folder, path) for path in sorted(folder.rglob("*")) if path.is_file()]

    def entry(self, folder, path):
        content = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        return {
            "type": "file",
            "path": name,
            "size": len(content),
            "oid": hashlib.sha1(content).hexdigest(),
        }

    def file(self, path, commit, body):
        content = path.read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "X-Repo-Commit": commit,
            "Accept-Ranges": "bytes",
        }
        headers |= (
            {"X-Linked-Size": str(self.hub.sizes[path.name])} if path.name in self.hub.sizes else {}
        )
        wanted, start, status = self.headers.get("Range"), 0, 200
        if wanted:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            status = 206
        drops = self.hub.drops.get(path.name) if body else None
        self.send(status, content[start:], body, headers, stop=drops.pop(0) if drops else None)

    def send(self, status, content, body, headers=None, stop=None):
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content[:stop])
        if stop is not None:
            self.wfile.flush()
            self.close_connection = True

    def refuse(self, status, code, message):
        self.send(
            status, b"{}", self.command == "GET", {"X-Error-Code": code, "X-Error-Message": message}
        )


@contextmanager
def serving(hub):
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
