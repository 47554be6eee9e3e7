"""A hub on loopback: the endpoints that huggingface_hub asks, over a folder. `python hub.py FOLDER` prints its address.

FOLDER holds `models/ORG/NAME/COMMIT/` and `datasets/ORG/NAME/COMMIT/` with their files, `main` beside them with the
commit it stands for, and where a repository is gated, `gated` with the token that opens it. `FOLDER/requests.log` gets
a line a request: method, path, token.
"""

import hashlib
import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

FOLDER = Path(sys.argv[1])
_API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree)/([^/?]+))?(?:\?.*)?$")
_FILE = re.compile(r"/(?:(datasets)/)?([^/]+/[^/]+)/resolve/([^/]+)/([^?]+)$")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: bool) -> None:
        path, token = unquote(self.path), self.headers.get("Authorization", "").removeprefix("Bearer ")
        with open(FOLDER / "requests.log", "a") as log:
            log.write(f"{self.command} {path} {token}\n")
        api, file = _API.match(path), _FILE.match(path)
        if api is not None:
            kind, name, what, revision = api.groups()
        elif file is not None:
            kind, name, revision, what = file[1] or "models", file[2], file[3], file[4]
        else:
            return self._refuse(404, "")
        repository = FOLDER / kind / name
        if not repository.is_dir():
            return self._refuse(401, "RepoNotFound")
        if (repository / "gated").exists() and token != (repository / "gated").read_text():
            return self._refuse(403, "GatedRepo")
        named = repository / (revision or "main")
        commit = named.read_text() if named.is_file() else named.name
        if not (repository / commit).is_dir():
            return self._refuse(404, "RevisionNotFound")
        files = {
            each.relative_to(repository / commit).as_posix(): each.read_bytes()
            for each in sorted((repository / commit).rglob("*"))
            if each.is_file()
        }
        if file is not None:
            if what not in files:
                return self._refuse(404, "EntryNotFound")
            return self._send(files[what], body, {"ETag": f'"{_id(files[what])}"', "X-Repo-Commit": commit})
        if what == "tree":
            entries = [
                {"type": "file", "path": path, "size": len(data), "oid": _id(data)} for path, data in files.items()
            ]
            return self._send(json.dumps(entries).encode(), body)
        siblings = [{"rfilename": path, "size": len(data)} for path, data in files.items()]
        info = {"id": name, "sha": commit, "private": False, "tags": [], "downloads": 0, "siblings": siblings}
        self._send(json.dumps(info).encode(), body)

    def _refuse(self, status: int, code: str) -> None:
        self._send(b"{}", True, {"X-Error-Code": code, "X-Error-Message": code}, status)

    def _send(self, data: bytes, body: bool, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(data)


def _id(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
