"""A hub on this machine: the part of the Hugging Face Hub's HTTP interface that uploads, listings and downloads use."""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0" * 40


class Hub:
    """Repositories by name, each a dict of files; what was asked is in `requests`."""

    def __init__(self, repositories=None):
        self.repositories = repositories or {}
        self.objects, self.requests, self.address = {}, [], ""

    @contextmanager
    def serving(self):
        """Answers on a free port while the block runs."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Answer,), {"hub": self}))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()


class Answer(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.file()

    def do_GET(self):
        if "/api/models/" not in self.path:
            return self.file()
        name = re.match(r"/api/models/([^/]+/[^/?]+)", self.path)[1]
        if name not in self.hub.repositories:
            return self.send(404, b"", **{"X-Error-Code": "RepoNotFound"})
        files = self.hub.repositories[name]
        if "/tree/" in self.path:
            return self.json([{"type": "file", "path": n, "oid": "0", "size": len(b)} for n, b in files.items()])
        return self.json({"id": name, "sha": COMMIT, "siblings": [{"rfilename": n} for n in files]})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.requests.append(self.path)
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            there = name in self.hub.repositories
            self.hub.repositories.setdefault(name, {})
            return self.json({"url": f"{self.hub.address}/{name}"}, 409 if there else 200)
        if self.path == "/api/validate-yaml":
            return self.json({"warnings": [], "errors": []})
        if self.path.endswith("/objects/batch"):
            objects = [self.action(entry) for entry in json.loads(body)["objects"]]
            return self.json({"transfer": "basic", "objects": objects})
        name, action = re.match(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/", self.path).groups()
        if action == "preupload":
            files = [e["path"] for e in json.loads(body)["files"]]
            modes = {f: "lfs" if f.endswith((".safetensors", ".bin")) else "regular" for f in files}
            told = [{"path": f, "uploadMode": mode, "shouldIgnore": False} for f, mode in modes.items()]
            return self.json({"files": told})
        for entry in map(json.loads, body.splitlines()):
            value = entry["value"]
            if entry["key"] == "file":
                self.hub.repositories[name][value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                self.hub.repositories[name][value["path"]] = self.hub.objects[value["oid"]]
        return self.json({"commitUrl": f"{self.hub.address}/{name}/commit/{COMMIT}", "commitOid": COMMIT})

    def action(self, entry):
        upload = {"href": f"{self.hub.address}/objects/{entry['oid']}"}
        return {**entry, "authenticated": True, "actions": {"upload": upload}}

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        oid = hashlib.sha256(body).hexdigest()
        right = oid == self.path.rpartition("/")[2]
        if right:
            self.hub.objects[oid] = body
        self.send(200 if right else 400, b"")

    def file(self):
        found = re.match(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path)
        repository = self.hub.repositories.get(found[1]) if found else None
        if repository is None or found[2] not in repository:
            return self.send(404, b"", **{"X-Error-Code": "RepoNotFound" if repository is None else "EntryNotFound"})
        body = repository[found[2]]
        etag = hashlib.sha256(body).hexdigest()
        return self.send(200, body, **{"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def json(self, value, status=200):
        self.send(status, json.dumps(value).encode(), **{"Content-Type": "application/json"})

    def send(self, status, body, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass
