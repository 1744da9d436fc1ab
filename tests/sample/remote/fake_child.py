"""A program that acts as a child server: `fake_child.py FAULT --port N`. It answers /health, and /token with a token.

Faults: "" none; dies, hangs: before it listens; deaf: ignores SIGTERM; mute: answers /health alone; once: dies at its first start.
Always it has a process of its own in its group, which ignores SIGTERM, and shared memory that nobody gives back.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

fault, port, folder = (
    sys.argv[1],
    int(sys.argv[sys.argv.index("--port") + 1]),
    Path(os.environ["FAKE_FOLDER"]),
)
print("the fake child begins", flush=True)
if fault == "dies" or (fault == "once" and not (folder / "was").exists()):
    (folder / "was").touch()
    print("RuntimeError: no memory for this model", file=sys.stderr, flush=True)
    sys.exit(7)
resource_tracker.register = lambda *_: None
memory = shared_memory.SharedMemory(create=True, size=4096)
memory.buf[0] = 1
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
grandchild = subprocess.Popen([sys.executable, "-S", "-c", code])
if fault == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
seen = {
    "pid": os.getpid(),
    "grandchild": grandchild.pid,
    "memory": memory.name,
    "environment": dict(os.environ),
}
(folder / "seen.json").write_text(json.dumps(seen))
if fault == "hangs":
    time.sleep(600)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(500 if fault == "mute" and self.path == "/token" else 200)
        self.end_headers()

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
