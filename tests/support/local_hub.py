"""A Hugging Face hub on this machine: the endpoints by which a repository is made, committed to and downloaded."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import threading
from collections import defaultdict
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

TOKEN = "hf_local"
REVISION = "c" * 40


class Hub:
    """Repositories in memory; files by repository and path. Files that end in `.safetensors` are uploaded as large
    ones."""

    def __init__(self):
        self.files = defaultdict(dict)
        self.created = []
        self.large = {}
        self.url = ""

    def create(self, asked):
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        self.files[name] = {}
        self.created.append(
            (asked.get("type", "model"), name, asked.get("private") or asked.get("visibility") == "private")
        )
        return {"url": f"{self.url}/{name}", "name": name}

    def preupload(self, _, asked):
        modes = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                "shouldIgnore": False,
            }
            for file in asked["files"]
        ]
        return {"files": modes}

    def batch(self, asked):
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.url}/upload/{one['oid']}"}}} for one in asked["objects"]
        ]
        return {"transfer": "basic", "objects": objects}

    def commit(self, repo, lines):
        for line in map(json.loads, lines.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.files[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.files[repo][value["path"]] = self.large[value["oid"]]
        return {
            "commitUrl": f"{self.url}/{repo}/commit/{REVISION}",
            "commitOid": REVISION,
            "hookOutput": "",
            "success": True,
        }


class Handler(http.server.BaseHTTPRequestHandler):
    """Requests of huggingface_hub."""

    hub = None

    def do_POST(self):  # noqa: PLR0911 - one answer for each kind of request
        place, body = unquote(urlsplit(self.path).path), self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer(401, {"error": "Invalid credentials"})
        parts = place.strip("/").split("/")
        if place == "/api/repos/create":
            return self.answer(200, self.hub.create(json.loads(body)))
        if place == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        if place.endswith("/info/lfs/objects/batch"):
            return self.answer(200, self.hub.batch(json.loads(body)), "application/vnd.git-lfs+json")
        if parts[4:5] == ["preupload"]:
            return self.answer(200, self.hub.preupload("/".join(parts[2:4]), json.loads(body)))
        if parts[4:5] == ["commit"]:
            return self.answer(200, self.hub.commit("/".join(parts[2:4]), body))
        return self.answer(404, {"error": place})

    def do_PUT(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        assert hashlib.sha256(content).hexdigest() == self.path.rpartition("/")[2]
        self.hub.large[hashlib.sha256(content).hexdigest()] = content
        self.answer(200, {})

    def do_GET(self, *, whole=True):
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[0] == "api":
            repo = "/".join(parts[2:4])
            files = self.hub.files.get(repo)
            if files is None:
                return self.answer(404, {"error": "Repository not found"}, code="RepoNotFound")
            if parts[4:5] == ["tree"]:
                entries = [
                    {"type": "file", "path": name, "size": len(content), "oid": _etag(content)}
                    for name, content in files.items()
                ]
                return self.answer(200, entries)
            siblings = [{"rfilename": name} for name in files]
            return self.answer(
                200,
                {
                    "_id": "1",
                    "id": repo,
                    "sha": REVISION,
                    "siblings": siblings,
                    "private": False,
                    "tags": [],
                    "downloads": 0,
                },
            )
        content = self.hub.files["/".join(parts[:2])].get("/".join(parts[4:]))
        if content is None:
            return self.answer(404, {"error": "Entry not found"}, code="EntryNotFound")
        self.send_response(200)
        for name, value in (
            ("X-Repo-Commit", REVISION),
            ("ETag", f'"{_etag(content)}"'),
            ("Content-Length", str(len(content))),
        ):
            self.send_header(name, value)
        self.end_headers()
        if whole:
            self.wfile.write(content)
        return None

    def do_HEAD(self):
        self.do_GET(whole=False)

    def answer(self, status, value, kind="application/json", code=""):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def _etag(content):
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@contextmanager
def local_hub():
    """Yields a hub that serves at its `url`."""
    hub = Hub()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
