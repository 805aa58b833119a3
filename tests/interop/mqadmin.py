"""Apache's own mqadmin, unmodified: its sub-commands run in one JVM.

Its main class prints what goes wrong and ends in order all the same; so `main` looks at stderr. It
also waits up to 3 s at the end of each sub-command, for a thread of its client; `together` calls
the same sub-commands' `execute` from several threads, and what they print comes out in one piece.
They give a server 3 s or 5 s, which no flag changes: one that was too busy is asked again.
"""

import time
from concurrent.futures import ThreadPoolExecutor

from py4j.protocol import Py4JJavaError

from tests.interop.jvm import Jvm
from tests.waiting import retrying

PATIENCE_S = 120.0  # a bound against hanging
APART_S = 0.03
IMPATIENT = (
    "created already",  # two clients of the same millisecond
    "RemotingTimeoutException",
    "RemotingConnectException",
)


def is_impatient(complaint: str) -> bool:
    return any(text in complaint for text in IMPATIENT)


AGAIN = retrying(lambda error: is_impatient(str(error)), patience_s=PATIENCE_S, pause_s=APART_S)


class ApacheAdmin:
    """`main("clusterList")` → what it printed."""

    def __init__(self, jvm: Jvm, namesrv: str) -> None:
        """`jvm` has the tools on its class path."""
        self._jvm = jvm
        self._namesrv = namesrv
        self._java = jvm.gateway.jvm
        self._startup = jvm.rocketmq.tools.command.MQAdminStartup
        self._startup.initCommand()
        klass = self._java.java.lang.Class.forName(
            "org.apache.rocketmq.tools.command.MQAdminStartup"
        )
        field = klass.getDeclaredField("SUB_COMMANDS")
        field.setAccessible(True)
        self.commands = {c.commandName(): c for c in field.get(None).toArray()}

    def options(self, name: str) -> set[tuple[str, str]]:
        """(short, long) of a sub-command's flags but -h and -n."""
        options = self._options(self.commands[name]).getOptions().toArray()
        result = {(o.getOpt() or "", (o.getLongOpt() or "").strip()) for o in options}
        return {flag for flag in result if flag[0] not in ("h", "n")}

    def main(self, *arguments: str) -> str:
        """Its main class. Raises AssertionError with everything it printed if it complained."""
        line = [*arguments, "-n", self._namesrv]

        def once() -> str:
            out = self._printed(lambda: self._startup.main0(self._array(line), None))
            printed, complained = out
            assert not complained, f"{' '.join(line)}\n{printed}\n{complained}"
            return printed

        return AGAIN(once)

    def together(self, *lines: str) -> str:
        """Several sub-commands at a time; raises the first one's exception. Some print that a
        server was too busy, and go on: all are run again then, one at a time, but for sends."""

        def work() -> None:
            with ThreadPoolExecutor(8) as pool:
                futures = []
                for line in lines:
                    futures.append(pool.submit(self._execute, line))
                    time.sleep(APART_S)
                for future in futures:
                    future.result()

        def again() -> None:
            for line in lines:
                if not line.startswith("sendMessage"):
                    self._execute(line)

        printed, complained = self._printed(work)
        deadline = time.monotonic() + PATIENCE_S
        while is_impatient(complained) and time.monotonic() < deadline:
            more, complained = self._printed(again)
            printed += more
        assert not complained, f"{lines}\n{printed}\n{complained}"
        return printed

    def _execute(self, line: str) -> None:
        name, *arguments = [*line.split(), "-n", self._namesrv]
        options = self._options(self.commands[name])
        parser = self._java.org.apache.commons.cli.PosixParser()
        parsed = parser.parse(options, self._array(arguments))

        def once() -> None:
            # Some keep the client that they shut down at their end.
            command = self.commands[name].getClass().newInstance()
            try:
                command.execute(parsed, options, None)
            except Py4JJavaError as error:
                raise AssertionError(f"{line}: {error}") from error

        AGAIN(once)

    def _options(self, command):
        util = self._jvm.rocketmq.srvutil.ServerUtil
        plain = util.buildCommandlineOptions(self._java.org.apache.commons.cli.Options())
        return command.buildCommandlineOptions(plain)

    def _array(self, texts):
        array = self._jvm.gateway.new_array(self._java.String, len(texts))
        for number, text in enumerate(texts):
            array[number] = text
        return array

    def _printed(self, work) -> tuple[str, str]:
        out, err = (self._java.java.io.ByteArrayOutputStream() for _ in range(2))
        system = self._java.java.lang.System
        before = system.out, system.err
        system.setOut(self._java.java.io.PrintStream(out, True))
        system.setErr(self._java.java.io.PrintStream(err, True))
        try:
            work()
        finally:
            system.setOut(before[0])
            system.setErr(before[1])
        return str(out.toString()), str(err.toString())
