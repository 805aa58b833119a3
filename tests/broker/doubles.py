"""Hand-made stand-ins for what the broker's parts talk to."""

from types import SimpleNamespace
from typing import Any

from raftmq.broker.tables.config_files import ConfigFiles
from raftmq.remoting.codec import FrameReader, decode_command
from raftmq.store.frame import FrameKind, seal_frame


class FakeConnection:
    """Keeps what was written, as decoded commands."""

    def __init__(self, address="10.0.0.9:4000"):
        self.peer_address = address
        self.is_open = True
        self.writes = []
        self.oneways = []
        self.attachment = None

    def write(self, data):
        return self.write_many([data])

    def write_many(self, frames):
        self.writes.append(b"".join(frames))
        return True

    def invoke_oneway(self, command):
        self.oneways.append(command)

    async def invoke(self, command, timeout_ms):
        raise AssertionError("nobody answers here")

    def answers(self):
        reader = FrameReader()
        reader.receive_data(b"".join(self.writes))
        self.writes = []
        commands = []
        while (raw := reader.next_frame()) is not None:
            commands.append(decode_command(raw))
        return commands


class FakeLog:
    """Places frames one behind the other and seals commands, as a member would."""

    def __init__(self, state):
        self.state = state
        self.index = 0
        self.term = 1
        self.end = 0
        self.cuts_requested = 0
        self.commands = []  # (payload, done)

    def request_cut(self, at_once):
        self.cuts_requested += 1

    def propose(self, payload, done):
        self.commands.append((payload, done))

    def allocate(self, length):
        position = self.end
        self.end += length
        return position

    def cut(self, sends):
        frame = sends.next_frame(self.term, self.index + 1, self.allocate)
        if frame is not None:
            self.index += 1
        return frame

    def commit_commands(self, application_topics=lambda name: None):
        commands, self.commands = self.commands, []
        for payload, done in commands:
            self.index += 1
            frame = seal_frame(
                self.index,
                self.term,
                self.allocate(60 + len(payload)),
                5,
                FrameKind.COMMAND,
                0,
                payload,
            )
            for name in self.state.apply(frame.index, 5, frame.payload).topics:
                application_topics(name)
            done(None)


def config_files(disk, state):
    """Return the files of the tables of a broker whose log is empty; they are written at once."""
    nobody: Any = None
    log: Any = SimpleNamespace(max_offset=0)
    return ConfigFiles(disk, state, nobody, log)
