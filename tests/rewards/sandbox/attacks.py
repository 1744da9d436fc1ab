"""Programs that try to get out, to use up the machine, or to be judged better than they are.

An escape prints ESCAPED when it got what it wanted. Names in capitals are filled in by the test.
"""

CTYPES = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *arguments):
    return libc.syscall(ctypes.c_long(number), *arguments)
"""

ESCAPES = {
    "read a file": "print('ESCAPED' if open('SECRET').read() else '')",
    "read a file by os.open": "import os\nprint('ESCAPED' if os.read(os.open('SECRET', os.O_RDONLY), 9) else '')",
    "read a file by io.FileIO": "import io\nprint('ESCAPED' if io.FileIO('SECRET').read() else '')",
    "read a file by ctypes": CTYPES + "print('ESCAPED' if libc.open(b'SECRET', 0) >= 0 else '')",
    "read a file by openat2": CTYPES
    + "how = (ctypes.c_uint64 * 3)()\nprint('ESCAPED' if syscall(437, -100, b'SECRET', how, 24) >= 0 else '')",
    "read a file by a mapping": "import mmap\nf = open('SECRET')\nmmap.mmap(f.fileno(), 0)\nprint('ESCAPED')",
    "list a folder": "import os\nprint('ESCAPED' if os.listdir('/') else '')",
    "look whether a file is there": "import os\nprint('ESCAPED' if os.stat('SECRET').st_size else '')",
    "write to tmp": "open('/tmp/covey-escape', 'w').write('x')\nprint('ESCAPED')",
    "write to shared memory": "open('/dev/shm/covey-escape', 'w').write('x')\nprint('ESCAPED')",
    "memfd": "import os\nos.memfd_create('x')\nprint('ESCAPED')",
    "TCP to a port": "import socket\nsocket.create_connection(('127.0.0.1', PORT), 1)\nprint('ESCAPED')",
    "raw socket by ctypes": CTYPES + "print('ESCAPED' if libc.socket(2, 1, 0) >= 0 else '')",
    "socketpair": "import socket\nsocket.socketpair()\nprint('ESCAPED')",
    "abstract unix socket": "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('\\0ABSTRACT')\nprint('ESCAPED')",
    "kill the parent": "import os\nos.kill(os.getppid(), 9)\nprint('ESCAPED')",
    "kill the host": "import os\nos.kill(HOST_PID, 0)\nprint('ESCAPED')",
    "kill everybody": "import os\nos.kill(-1, 0)\nprint('ESCAPED')",
    "kill the group": "import os\nos.killpg(0, 0)\nprint('ESCAPED')",
    "stop the parent by ctypes": CTYPES + "print('ESCAPED' if libc.kill(libc.getppid(), 19) == 0 else '')",
    "signal by pidfd": CTYPES + "print('ESCAPED' if syscall(434, HOST_PID, 0) >= 0 else '')",
    "fork": "import os\npid = os.fork()\nif pid == 0: os._exit(0)\nprint('ESCAPED')",
    "fork bomb": "import os\nfor _ in range(50): os.fork()\nprint('ESCAPED')",
    "fork by ctypes": CTYPES
    + "pid = libc.fork()\nif pid == 0: libc._exit(0)\nprint('ESCAPED' if pid > 0 else '')",
    "raw vfork": CTYPES
    + "pid = syscall(58)\nif pid == 0: libc._exit(0)\nprint('ESCAPED' if pid > 0 else '')",
    "raw clone": CTYPES
    + "pid = syscall(56, 17, 0, 0, 0, 0)\nif pid == 0: libc._exit(0)\nprint('ESCAPED' if pid > 0 else '')",
    "raw clone3": CTYPES
    + "a = (ctypes.c_uint64 * 8)()\na[4] = 17\npid = syscall(435, a, 64)\nif pid == 0: libc._exit(0)\nprint('ESCAPED' if pid > 0 else '')",
    "thread": "import threading\nt = threading.Thread(target=print)\nt.start()\nprint('ESCAPED')",
    "exec a shell": "import os\nos.execv('/bin/sh', ['sh', '-c', 'echo ESCAPED'])",
    "subprocess": "import subprocess\nprint(subprocess.check_output(['echo', 'ESCAPED']).decode())",
    "os.system": "import os\nprint('ESCAPED' if os.system('true') == 0 else '')",
    "multiprocessing": "import multiprocessing as m\np = m.Process(target=int)\np.start()\nprint('ESCAPED')",
    "ptrace": CTYPES + "print('ESCAPED' if libc.ptrace(16, libc.getppid(), 0, 0) == 0 else '')",
    "read another's memory": CTYPES
    + "b = ctypes.create_string_buffer(8)\nv = (ctypes.c_uint64 * 2)(ctypes.addressof(b), 8)\nr = (ctypes.c_uint64 * 2)(0x400000, 8)\nprint('ESCAPED' if syscall(310, HOST_PID, v, 1, r, 1, 0) > 0 else '')",
    "parent's maps": "print('ESCAPED' if open('/proc/HOST_PID/maps').read() else '')",
    "own memory file": "open('/proc/self/mem', 'r+b')\nprint('ESCAPED')",
    "unshare": CTYPES + "print('ESCAPED' if libc.unshare(0x10000000) == 0 else '')",
    "mount": CTYPES + "print('ESCAPED' if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0 else '')",
    "setuid": "import os\nos.setuid(0)\nos.setresuid(0, 0, 0)\nprint('ESCAPED' if os.getuid() == 0 and CAN_TELL else '')",
    "raise limits": "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY,) * 2)\nprint('ESCAPED')",
    "raise limits by prlimit": CTYPES
    + "n = (ctypes.c_uint64 * 2)(2**63, 2**63)\nprint('ESCAPED' if syscall(302, 0, 9, n, None) == 0 else '')",
    "switch seccomp off": CTYPES + "print('ESCAPED' if libc.prctl(22, 0, 0, 0, 0) == 0 else '')",
    "personality": CTYPES + "print('ESCAPED' if libc.personality(0x0040000) >= 0 else '')",
    "i386 entry": CTYPES
    + """
import mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex('53b814000000cd805bc3'))  # push rbx; mov eax, 20 (getpid); int 0x80; pop rbx; ret
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
print('ESCAPED' if function() > 0 else '')
""",
    "x32 entry": CTYPES + "print('ESCAPED' if syscall(0x40000000 + 39) > 0 else '')",
    "io_uring": CTYPES
    + "p = ctypes.create_string_buffer(120)\nprint('ESCAPED' if syscall(425, 1, p) >= 0 else '')",
    "keyctl": CTYPES + "print('ESCAPED' if syscall(250, 0, -3, 1) >= 0 else '')",
    "bpf": CTYPES + "print('ESCAPED' if syscall(321, 0, ctypes.create_string_buffer(64), 64) >= 0 else '')",
    "perf": CTYPES
    + "print('ESCAPED' if syscall(298, ctypes.create_string_buffer(128), 0, -1, -1, 0) >= 0 else '')",
    "System V shared memory": CTYPES + "print('ESCAPED' if libc.shmget(0, 4096, 0o1600) >= 0 else '')",
    "message queue": CTYPES + "print('ESCAPED' if libc.msgget(0, 0o1600) >= 0 else '')",
    "environment": "import os\nprint('ESCAPED' if set(os.environ) - {'PYTHONHASHSEED', 'OMP_NUM_THREADS', 'LC_ALL', 'LC_CTYPE'} else '')",
    "type into the terminal": "import fcntl\nfor c in b'x': fcntl.ioctl(0, 0x5412, bytes([c]))\nprint('ESCAPED')",
    "inherited descriptors": """
import os
for descriptor in range(4, 1024):
    try:
        os.read(descriptor, 1)
        print('ESCAPED')
    except OSError:
        pass
""",
    "own signals by F_SETOWN": "import fcntl\nfcntl.fcntl(0, 8, HOST_PID)\nprint('ESCAPED')",
}

RESOURCES = {  # name: (program, statuses it may end with)
    "endless loop": ("while True: pass", {"timeout"}),
    "endless loop, signals ignored": (
        "import signal\nfor s in (signal.SIGXCPU, signal.SIGALRM, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        {"timeout"},
    ),
    "endless loop that catches all": (
        "while True:\n    try:\n        while True: pass\n    except BaseException:\n        pass",
        {"timeout"},
    ),
    "sleep": ("import time\ntime.sleep(60)", {"timeout"}),
    "wait for input": ("import sys, os\nos.dup2(3, 0)\nos.read(3, 1)", {"timeout", "crash"}),
    "memory": ("x = []\nwhile True: x.append(bytearray(1 << 20))", {"memory"}),
    "memory, caught": (
        "x = []\nwhile True:\n    try:\n        x.append(bytearray(1 << 20))\n    except MemoryError:\n        pass",
        {"timeout", "memory"},
    ),
    "memory by mmap": ("import mmap\nx = [mmap.mmap(-1, 1 << 30) for _ in range(99)]", {"memory", "crash"}),
    "stdout flood": ("while True: print('x' * 10_000)", {"output"}),
    "stderr flood": ("import sys\nwhile True: sys.stderr.write('x' * 10_000)", {"output"}),
    "descriptor bomb": ("import os\nx = [os.dup(0) for _ in range(100_000)]", {"crash"}),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10**9)\nf = lambda: f()\nf()",
        {"crash", "memory", "timeout"},
    ),
    "C stack": (
        "import re, sys\nsys.setrecursionlimit(10**8)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
        {"crash", "memory", "timeout"},
    ),
    "null dereference": ("import ctypes\nctypes.string_at(0)", {"crash"}),
    "stop itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", {"timeout"}),
    "abort": ("import os\nos.abort()", {"crash"}),
    "tower of powers": ("9**9**9**9", {"timeout", "memory"}),
    "regex": ("import re\nre.match('(a+)+$', 'a' * 64 + 'b')", {"timeout"}),
    "closed stdout, then a loop": ("import os\nos.close(1)\nwhile True: pass", {"timeout"}),
    "closed channel, then a loop": ("import os\nos.close(3)\nwhile True: pass", {"timeout", "crash"}),
    "giant decimal": ("import sys\nsys.set_int_max_str_digits(0)\nstr(7**10**7)", {"timeout"}),
    "exit": ("import sys\nsys.exit(0)", {"ok"}),
    "exit at once": ("import os\nos._exit(0)", {"crash"}),
}

HONEST = "def f(x):\n    return x * x\n"
TESTS = (
    "assert f(3) == 9  # MARK_OF_THE_TESTS",
    "assert f(-2) == 4",
    "assert isinstance(f(2), int)",
    "assert f(10) == 100",
)

VERDICTS = {
    "object that equals all": "class A:\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\ndef f(x): return A()",
    "int that equals all": "class A(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\ndef f(x): return A(1)",
    "str that equals all": "class A(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\ndef f(x): return A('')",
    "exit at import": "import sys\nsys.exit(0)",
    "exit in the call": "import sys\ndef f(x): sys.exit(0)",
    "hard exit in the call": "import os\ndef f(x): os._exit(0)",
    "SystemExit": "def f(x): raise SystemExit(0)",
    "atexit": "import atexit\natexit.register(print, 'passed')\ndef f(x): raise SystemExit(0)",
    "print the verdict": "import sys\nprint(('passed',))\nsys.stderr.write(\"('passed',)\")\ndef f(x): return 0",
    "write the verdict to all descriptors": """
import os, struct
payload = b't' + struct.pack('>I', 1) + b's' + struct.pack('>I', 6) + b'passed'
for _ in range(9):
    for descriptor in range(64):
        try:
            os.write(descriptor, struct.pack('>I', len(payload)) + payload)
        except OSError:
            pass
def f(x): return 0
""",
    "answer in advance": """
import os, struct
def frame(value):
    body = (b't' + struct.pack('>I', 3) + b's' + struct.pack('>I', 5) + b'value'
            + b'i' + struct.pack('>I', 1) + bytes([value]) + b'N')
    return struct.pack('>I', len(body)) + body
ready = b't' + struct.pack('>I', 2) + b's' + struct.pack('>I', 5) + b'ready' + b'd' + struct.pack('>I', 1) + b's' + struct.pack('>I', 1) + b'fF'
os.write(3, struct.pack('>I', len(ready)) + ready + b''.join(map(frame, (1, 2, 3, 4))))
def f(x): return 0
""",
    "replace builtins": "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.AssertionError = int\nbuiltins.int = str\ndef f(x): return 0",
    "poison the namespace": "__builtins__ = {}\nassert True\ndef f(x): return 0",
    "replace the encoder": """
import gc, types
for thing in gc.get_objects():
    if isinstance(thing, types.FunctionType) and thing.__name__ in ('encode', '_answer', 'write_bytes', '_verdict'):
        thing.__code__ = (lambda *a, **k: b'T').__code__
def f(x): return 0
""",
    "search the frames for tests": """
import sys
mark = 'MARK_OF_' + 'THE_TESTS'
def texts(thing, depth=0):
    if isinstance(thing, str):
        return [thing]
    parts = list(thing.values()) if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ()
    return [text for part in parts if depth < 4 for text in texts(part, depth + 1)]
def f(x):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if any(mark in text and text is not mark for text in texts(value)):
                return {3: 9, -2: 4, 2: 4, 10: 100}.get(x, 49)
        frame = frame.f_back
    return 0
""",
    "search the heap for tests": """
import gc
mark = 'MARK_OF_' + 'THE_TESTS'
def texts(thing):
    parts = list(thing.values()) if isinstance(thing, dict) else list(thing)
    return [part for part in parts if isinstance(part, str) and part is not mark]
def f(x):
    for thing in gc.get_objects():
        if isinstance(thing, (dict, list, tuple)) and any(mark in text for text in texts(thing)):
            return {3: 9, -2: 4, 2: 4, 10: 100}.get(x, 49)
    return 0
""",
    "a float for an int": "def f(x): return x * x + 1e-6",
    "text for an int": "def f(x): return str(x * x)",
    "NaN": "def f(x): return float('nan')",
    "deep value": "def f(x):\n    v = []\n    for _ in range(10_000): v = [v]\n    return v",
    "long value": "def f(x): return 'x' * 50_000_000",
    "giant integer": "def f(x): return 1 << 10**8",
    "generator": "def f(x): yield x * x",
    "sleep": "import time\ndef f(x): time.sleep(60)",
    "raise AssertionError": "def f(x): raise AssertionError",
    "raise an exception that lies": "class E(Exception):\n    def __str__(self): return 'passed'\ndef f(x): raise E()",
    "no function": "x = 1",
    "a class": "class f:\n    def __init__(self, x): self.x = x\n    def __eq__(self, o): return True",
    "no python": "def f(x: return x * x",
    "change the argument": "def f(x):\n    global TESTS\n    TESTS = []\n    return 0",
}

FORGE = """
import os, struct
def i(number):
    body = number.to_bytes(number.bit_length() // 8 + 1, 'big')
    return b'i' + struct.pack('>I', len(body)) + body
def s(text):
    return b's' + struct.pack('>I', len(text)) + text.encode()
def t(*parts):
    return b't' + struct.pack('>I', len(parts)) + b''.join(parts)
def send(frame):
    os.write(3, struct.pack('>I', len(frame)) + frame)
big = i(1 << 20_000)  # Python refuses to write it in decimals
"""

FORGED = {  # answers on the channel that the host would stumble over, if it took them at their word
    "forged: raised, an integer by an integer": FORGE + "send(t(s('raised'), big, big))",
    "forged: returned an integer's type": FORGE
    + "send(t(s('ready'), b'd' + struct.pack('>I', 0)))\nsend(t(s('opaque'), big))",
    "forged: raised, and no more": FORGE + "send(t(s('raised')))",
    "forged: ended by an integer": FORGE + "send(t(s('ended'), t(big, big)))",
    "forged: raised, after it was ready": FORGE
    + "send(t(s('ready'), b'd' + struct.pack('>I', 0)))\nsend(t(s('raised'), big, big))",
}
VERDICTS |= FORGED
