"""The host of all local VMs: a small process that forks one init process per VM.

Run as a script with isolated imports, standard library only, so that a VM costs
a fork and not an interpreter start. Three facts make "no process left behind"
hold, whatever dies:

* Every VM init is a *child subreaper*: whatever its processes do (`setsid`,
  double fork), orphans come back to it, so killing its children until it has
  none ends every process of the VM.
* Each VM init holds one end of a socket whose other end only the server holds.
  When the server dies, even by SIGKILL, the kernel closes it and the init ends
  its VM.
* The host is a subreaper too and ends the orphans of an init that was killed.

Protocol: JSON lines. To the host: one line per boot, with the init's socket
attached. To an init: `run`, `signal`, `destroy`. From an init: `started`,
`exited`, `gone`.
"""

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import socket
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CHUNK = 65536
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
LIBC = ctypes.CDLL(None, use_errno=True)


def become_subreaper():
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_of(parent):
    """Process ids whose parent is `parent`, read from /proc."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open("/proc/" + name + "/stat", "rb") as stat:
            if int(stat.read().rpartition(b")")[2].split()[1]) == parent:
                found.append(int(name))
    return found


def kill_descendants(keep=()):
    """End every descendant of this process; orphans come to us, so repeat until there are none."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        victims = [pid for pid in children_of(os.getpid()) if pid not in keep]
        for pid in victims:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not victims:
            return
        for pid in victims:
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)


def exit_code(status):
    """A wait status as a shell shows it: 128 + n for signal n."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def reset_signals():
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)


def execute(order):
    """Replace this process by the command; a command that is not there exits 127, as in a shell."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        os.chdir(order["cwd"])
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        os.write(2, ("%s: %s\n" % (order["argv"][0], error.strerror)).encode())
        os._exit(127 if error.errno == errno.ENOENT else 126)


def as_container(order):
    """Behave as a container's shim: signals go to the main process only, and its end ends the rest."""
    become_subreaper()
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    main = os.fork()
    if main == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        os.setsid()
        execute(order)
    for number in FORWARDED:
        signal.signal(number, lambda got, _frame: os.kill(main, got))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == main:
            kill_descendants()
            os._exit(exit_code(status))


def spawn(order, out, err):
    """Fork a runnable in a session of its own, its output going to the two pipes."""
    pid = os.fork()
    if pid:
        return pid
    try:
        reset_signals()
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for have, want in ((null, 0), (out, 1), (err, 2)):
            os.dup2(have, want)
        os.closerange(3, 4096)
        if order["container"]:
            as_container(order)
        execute(order)
    finally:
        os._exit(126)


class Output:
    """One pipe of a runnable, written to the task's log as one JSON line per line of output."""

    def __init__(self, order, severity):
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.log, self.rest = order["log"], b""
        self.mark = {"severity": severity, "runnable": order["runnable"], "attempt": order["attempt"]}

    def fileno(self):
        return self.reader

    def drain(self):
        """Take what is there; False at the end of the pipe."""
        while True:
            try:
                data = os.read(self.reader, CHUNK)
            except BlockingIOError:
                return True
            if not data:
                self.write_lines(final=True)
                return False
            self.rest += data
            self.write_lines(final=len(self.rest) > 16 * CHUNK)

    def write_lines(self, final=False):
        lines = self.rest.split(b"\n")
        self.rest = b"" if final else lines.pop()
        if final and lines and not lines[-1]:
            lines.pop()
        if lines:
            self.append(b"".join(self.entry(line) for line in lines))

    def entry(self, line):
        text = line.decode("utf-8", "replace")
        return (json.dumps(dict(self.mark, time=time.time(), message=text)) + "\n").encode()

    def append(self, data):
        with contextlib.suppress(OSError):
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(log, data)
            os.close(log)

    def close(self):
        os.close(self.reader)


class Init:
    """Process 1 of one VM."""

    def __init__(self, control):
        self.control, self.pending = control, b""
        self.runs, self.outputs = {}, []
        self.wake_reader, wake_writer = os.pipe()
        for end in (self.wake_reader, wake_writer):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        become_subreaper()

    def send(self, **event):
        with contextlib.suppress(OSError):
            self.control.sendall(json.dumps(event).encode() + b"\n")

    def loop(self):
        host = os.getppid()
        while os.getppid() == host:
            ready = select.select([self.control, self.wake_reader, *self.outputs], [], [], 2)[0]
            for output in [item for item in ready if isinstance(item, Output)]:
                self.read(output)
            if self.wake_reader in ready:
                os.read(self.wake_reader, CHUNK)
            self.reap()
            if self.control in ready and not self.receive():
                break
        self.end()

    def read(self, output):
        if output in self.outputs and not output.drain():
            self.outputs.remove(output)
            output.close()

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self.runs:
                order, pipes = self.runs.pop(pid)
                for output in pipes:
                    self.read(output)
                self.send(event="exited", id=order["id"], code=exit_code(status))

    def receive(self):
        """Follow the orders that arrived; False when the server is gone or wants the VM ended."""
        try:
            data = self.control.recv(CHUNK)
        except OSError:
            return False
        self.pending += data
        *lines, self.pending = self.pending.split(b"\n")
        return bool(data) and all(self.follow(json.loads(line)) for line in lines)

    def follow(self, order):
        if order["do"] == "run":
            self.run(order)
        elif order["do"] == "signal":
            self.signal(order)
        return order["do"] != "destroy"

    def run(self, order):
        pipes = [Output(order, "INFO"), Output(order, "ERROR")]
        pid = spawn(order, pipes[0].writer, pipes[1].writer)
        for output in pipes:
            os.close(output.writer)
        self.runs[pid] = (order, pipes)
        self.outputs += pipes
        self.send(event="started", id=order["id"], pid=pid)

    def signal(self, wanted):
        for pid, (order, _) in self.runs.items():
            if wanted["id"] in (None, order["id"]):
                with contextlib.suppress(OSError):
                    kill = os.kill if order["container"] and wanted["number"] != signal.SIGKILL else os.killpg
                    kill(pid, wanted["number"])

    def end(self):
        kill_descendants()
        for output in list(self.outputs):
            self.read(output)
        self.send(event="gone")
        os._exit(0)


class Host:
    """Boots VMs on request, and cleans up behind inits that were killed."""

    def __init__(self, control):
        self.control, self.inits = control, set()
        become_subreaper()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def loop(self):
        server = os.getppid()
        while os.getppid() == server:
            if select.select([self.control], [], [], 1)[0] and not self.boot():
                break
            self.reap()
        # The inits notice by themselves that the server is gone; wait for them, then make sure.
        deadline = time.monotonic() + 15
        while self.inits and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.02)
        kill_descendants()

    def boot(self):
        message, fds, _, _ = socket.recv_fds(self.control, 1, 1)
        if not message:
            return False
        for fd in fds:
            pid = os.fork()
            if pid == 0:
                self.control.close()
                os.setsid()
                try:
                    Init(socket.socket(fileno=fd)).loop()
                finally:
                    os._exit(1)
            os.close(fd)
            self.inits.add(pid)
        return True

    def reap(self):
        orphaned = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            if pid in self.inits:
                self.inits.discard(pid)
                orphaned |= not os.WIFEXITED(status)
        if orphaned:
            kill_descendants(keep=self.inits)


if __name__ == "__main__":
    Host(socket.socket(fileno=int(sys.argv[1]))).loop()
