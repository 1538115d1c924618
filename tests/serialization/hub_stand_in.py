"""A stand-in of the Hugging Face hub: its HTTP interface, as far as models need it, here."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_may_write"


class Hub(ThreadingHTTPServer):
    """Repositories by name; of each the commits, oldest first, and the files of each commit."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, dict[str, bytes]]] = {}

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def reply(self, status: int, content: Any = None, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, why: str, code: str = "") -> None:
        self.reply(status, {"error": why}, X_Error_Message=why, X_Error_Code=code)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path)
        if path == "/api/validate-yaml":
            return self.reply(200, {"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse(401, "Invalid username or password.")
        if path == "/api/repos/create":
            request = json.loads(body)
            repo = f"{request['organization']}/{request['name']}"
            status = 409 if repo in self.server.repos else 200
            self.server.repos.setdefault(repo, {})
            return self.reply(status, {"url": f"{self.server.endpoint}/{repo}"})
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/main", path)
        if match is None or match[1] not in self.server.repos:
            return self.refuse(404, "Repository not found", "RepoNotFound")
        if match[2] == "preupload":
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for file in json.loads(body)["files"]
            ]
            return self.reply(200, {"files": files})
        commits = self.server.repos[match[1]]
        files = dict(list(commits.values())[-1]) if commits else {}
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        oid = hashlib.sha1(body + str(len(commits)).encode()).hexdigest()
        commits[oid] = files
        url = f"{self.server.endpoint}/{match[1]}/commit/{oid}"
        return self.reply(200, {"success": True, "commitOid": oid, "commitUrl": url})

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
        match = match or re.fullmatch(r"/([^/]+/[^/]+)/(resolve)/([^/]+)/(.+)", path)
        commits = self.server.repos.get(match[1], {}) if match else {}
        if match is None or not commits:
            return self.refuse(404, "Repository not found", "RepoNotFound")
        newest = list(commits)[-1]
        commit = newest if match[3] in (None, "main") else match[3]
        if commit not in commits:
            return self.refuse(404, f"Invalid rev id: {commit}", "RevisionNotFound")
        files = commits[commit]
        if match[2] == "tree":
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": digest(content)}
                for name, content in files.items()
            ]
            return self.reply(200, entries)
        if match[2] == "resolve":
            if match[4] not in files:
                return self.refuse(404, "Entry not found", "EntryNotFound")
            content = files[match[4]]
            etag = f'"{digest(content)}"'
            return self.reply(200, content, ETag=etag, X_Repo_Commit=commit)
        siblings = [{"rfilename": name} for name in files]
        return self.reply(200, {"id": match[1], "sha": commit, "siblings": siblings})

    do_HEAD = do_GET  # noqa: N815


def digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def running_hub() -> Iterator[Hub]:
    with Hub() as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        yield hub
        hub.shutdown()
